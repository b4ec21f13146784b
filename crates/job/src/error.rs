//! Errors of a journal.

use crate::id::JobId;
use crate::limits::ZeroLimit;
use crate::state::{IllegalTransition, State};

/// The reason why a journal refused a request or failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no such job.
    #[error("there is no job {id} in {place} (`{list}` shows those that there are)")]
    Unknown {
        /// The id of the job.
        id: JobId,
        /// The location of the journal that was searched.
        place: String,
        /// The command that lists the jobs of that journal.
        list: &'static str,
    },
    /// A job with this id exists already.
    #[error("there is a job {id} already in {place}; try again")]
    Exists {
        /// The id of the job.
        id: JobId,
        /// The location of the journal that has the job.
        place: String,
    },
    /// Another process owns the job.
    #[error(
        "job {id} is worked at by {process}, which gave a sign of life {age_ms} ms ago; \
         stop that process first, or wait until it is silent for {stale_after_ms} ms"
    )]
    Owned {
        /// The id of the job.
        id: JobId,
        /// The process that owns the job.
        process: String,
        /// Age of that process's last heartbeat, in milliseconds.
        age_ms: u64,
        /// Age of a heartbeat from which on the job may be taken over, in milliseconds.
        stale_after_ms: u64,
    },
    /// Another process took the job over.
    #[error(
        "job {id} was taken over: this process claimed it with epoch {epoch}, and the epoch is \
         now {now}; it must stop working at the job"
    )]
    Fenced {
        /// The id of the job.
        id: JobId,
        /// The epoch of the refused request.
        epoch: u64,
        /// The present epoch.
        now: u64,
    },
    /// The job's state is final.
    #[error("job {id} is {state}; nothing about it can change any more")]
    Final {
        /// The id of the job.
        id: JobId,
        /// The job's state.
        state: State,
    },
    /// The job has not ended, so its record cannot be removed.
    #[error("job {id} is {state}, and its record is still needed")]
    Unfinished {
        /// The id of the job.
        id: JobId,
        /// The job's state.
        state: State,
    },
    /// The requested state may not follow the present one.
    #[error("job {id}: {source}")]
    Transition {
        /// The id of the job.
        id: JobId,
        /// The refused transition.
        source: Box<IllegalTransition>,
    },
    /// A limit is zero.
    #[error(transparent)]
    Limit(#[from] ZeroLimit),
    /// The record cannot be parsed.
    #[error("what {place} keeps of job {id} cannot be read: {reason}")]
    Damaged {
        /// The id of the job, as far as it is known.
        id: String,
        /// The location of the journal that has the record.
        place: String,
        /// The error of the parser.
        reason: String,
    },
    /// The journal's storage refused the request; a retry does not help.
    #[error("cannot {doing} in {place}: {reason}")]
    Refused {
        /// The attempted action; completes "cannot …".
        doing: &'static str,
        /// The location of the journal.
        place: String,
        /// The error, and the remedy.
        reason: String,
    },
    /// The journal's storage is unavailable at present.
    #[error("cannot {doing} in {place}")]
    Unavailable {
        /// The attempted action; completes "cannot …".
        doing: &'static str,
        /// The location of the journal.
        place: String,
        /// The cause of the failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl JournalError {
    /// Returns true if a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, JournalError::Unavailable { .. })
    }
}

//! Errors of a journal, the storage of jobs' records.

use crate::id::JobId;
use crate::limits::ZeroLimit;
use crate::state::{IllegalTransition, State};

/// The reason why a journal refused a request, or why it failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The journal has no job with this id.
    #[error("there is no job {id} in {place} (`{list}` shows those that there are)")]
    Unknown {
        /// The id of the job that was requested.
        id: JobId,
        /// The location of the journal that was searched.
        place: String,
        /// The command that lists the jobs of that journal.
        list: &'static str,
    },
    /// The journal already has a job with the id of the record to be created.
    #[error("there is a job {id} already in {place}; try again")]
    Exists {
        /// The id that both jobs have.
        id: JobId,
        /// The location of the journal that has the job.
        place: String,
    },
    /// A claim was refused, because another process owns the job.
    #[error(
        "job {id} is worked at by {process}, which gave a sign of life {age_ms} ms ago; \
         stop that process first, or wait until it is silent for {stale_after_ms} ms"
    )]
    Owned {
        /// The id of the claimed job.
        id: JobId,
        /// Name of the process that owns the job, such as `host/1234`.
        process: String,
        /// Age of the owner's last heartbeat, in milliseconds.
        age_ms: u64,
        /// Age from which on a heartbeat is stale, so that the job may be taken over, in milliseconds.
        stale_after_ms: u64,
    },
    /// A save or release was refused, because its epoch is not that of the job's present owner.
    #[error(
        "job {id} was taken over: this process claimed it with epoch {epoch}, and the epoch is \
         now {now}; it must stop working at the job"
    )]
    Fenced {
        /// The id of the job.
        id: JobId,
        /// The epoch of the claim by which the refused request was made.
        epoch: u64,
        /// The epoch of the latest claim of the job.
        now: u64,
    },
    /// A claim or request was refused, because the job is done or cancelled.
    #[error("job {id} is {state}; nothing about it can change any more")]
    Final {
        /// The id of the job.
        id: JobId,
        /// The final state of the job.
        state: State,
    },
    /// The record was not removed, because the job is neither done nor cancelled.
    #[error("job {id} is {state}, and its record is still needed")]
    Unfinished {
        /// The id of the job.
        id: JobId,
        /// The present state of the job.
        state: State,
    },
    /// The state to be saved may not follow the present state of the job.
    #[error("job {id}: {source}")]
    Transition {
        /// The id of the job.
        id: JobId,
        /// The present and the refused state.
        source: Box<IllegalTransition>,
    },
    /// A limit on the job's speed is zero.
    #[error(transparent)]
    Limit(#[from] ZeroLimit),
    /// The stored record of a job cannot be parsed, or a record cannot be serialized.
    #[error("what {place} keeps of job {id} cannot be read: {reason}")]
    Damaged {
        /// The id of the job, as far as it is known.
        id: String,
        /// The location of the journal that has the record.
        place: String,
        /// The error of the parser or serializer.
        reason: String,
    },
    /// The journal's storage refused the request, and a retry does not help.
    #[error("cannot {doing} in {place}: {reason}")]
    Refused {
        /// The attempted action; completes the sentence "cannot …".
        doing: &'static str,
        /// The location of the journal.
        place: String,
        /// The error of the storage, and the remedy.
        reason: String,
    },
    /// The journal's storage is unavailable at present; a retry may succeed.
    #[error("cannot {doing} in {place}")]
    Unavailable {
        /// The attempted action; completes the sentence "cannot …".
        doing: &'static str,
        /// The location of the journal.
        place: String,
        /// The error of the storage.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl JournalError {
    /// Returns true if the same request may succeed when it is repeated.
    pub fn is_transient(&self) -> bool {
        matches!(self, JournalError::Unavailable { .. })
    }
}

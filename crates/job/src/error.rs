//! Errors of a journal.

use crate::id::JobId;
use crate::limits::ZeroLimit;
use crate::state::{IllegalTransition, State};

/// The reason why a journal refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No such job.
    #[error("there is no job {id} in {place} (`{list}` shows those that there are)")]
    Unknown {
        /// The job.
        id: JobId,
        /// The journal in which it was looked for.
        place: String,
        /// The command that lists the jobs of that journal.
        list: &'static str,
    },
    /// The id is taken.
    #[error("there is a job {id} already in {place}; try again")]
    Exists {
        /// The job.
        id: JobId,
        /// The journal that has it.
        place: String,
    },
    /// Another process works at it.
    #[error(
        "job {id} is worked at by {process}, which gave a sign of life {age_ms} ms ago; \
         stop that process first, or wait until it is silent for {stale_after_ms} ms"
    )]
    Owned {
        /// The job.
        id: JobId,
        /// The process that works at it.
        process: String,
        /// Age of its last sign of life, in milliseconds.
        age_ms: u64,
        /// Silence after which the job may be taken over, in milliseconds.
        stale_after_ms: u64,
    },
    /// Another process took the job over.
    #[error(
        "job {id} was taken over: this process claimed it with epoch {epoch}, and the epoch is \
         now {now}; it must stop working at the job"
    )]
    Fenced {
        /// The job.
        id: JobId,
        /// The epoch that tried to save.
        epoch: u64,
        /// The epoch that may.
        now: u64,
    },
    /// The job's state is final.
    #[error("job {id} is {state}; nothing about it can change any more")]
    Final {
        /// The job.
        id: JobId,
        /// Its state.
        state: State,
    },
    /// The state cannot follow the one before.
    #[error("job {id}: {source}")]
    Transition {
        /// The job.
        id: JobId,
        /// The refused transition.
        source: Box<IllegalTransition>,
    },
    /// A limit cannot be kept.
    #[error(transparent)]
    Limit(#[from] ZeroLimit),
    /// The record cannot be parsed.
    #[error("what {place} keeps of job {id} cannot be read: {reason}")]
    Damaged {
        /// The job, as far as it can be told.
        id: String,
        /// The journal that keeps the record.
        place: String,
        /// The fault.
        reason: String,
    },
    /// The place where records are kept answers with a refusal that trying again does not change.
    #[error("cannot {doing} in {place}: {reason}")]
    Refused {
        /// The attempted action.
        doing: &'static str,
        /// The journal.
        place: String,
        /// The message, and the remedy.
        reason: String,
    },
    /// The place where records are kept does not answer, for now.
    #[error("cannot {doing} in {place}")]
    Unavailable {
        /// The attempted action.
        doing: &'static str,
        /// The journal.
        place: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl JournalError {
    /// True if trying again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self, JournalError::Unavailable { .. })
    }
}

//! Where records are kept: what every journal must do, wherever it keeps them.
//!
//! A record is changed by two parties. Its *owner*, who claimed it, saves state, progress and
//! checkpoint; a claim is fenced: each has a higher epoch than the one before, and what is saved
//! under an older epoch is refused, so that a process that was thought dead cannot undo the work of
//! the one that took over. The *operator*, from any process, requests control and limits; the owner
//! learns of them with the answer to each save.
//!
//! What was answered survives a crash of the process and of the machine.

#[doc(hidden)]
pub mod contract;

use std::future::Future;
use std::pin::Pin;

use serde_json::Value;

use crate::event::Progress;
use crate::id::JobId;
use crate::record::{Limits, Record, Requested, ZeroLimit};
use crate::state::{IllegalTransition, State};

/// What a journal answers, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, JournalError>> + Send + 'a>>;

/// Keeps records.
pub trait Journal: Send + Sync {
    /// Keeps a new record.
    fn create<'a>(&'a self, record: &'a Record) -> Answer<'a, ()>;

    /// The record of a job.
    fn load<'a>(&'a self, id: &'a JobId) -> Answer<'a, Record>;

    /// All records, oldest first.
    fn list(&self) -> Answer<'_, Vec<Record>>;

    /// Makes `process` the owner, with a new epoch. Refused while another owner gave a sign of life
    /// in the last `stale_after_ms` milliseconds, and when the job's state is final.
    fn claim<'a>(
        &'a self,
        id: &'a JobId,
        process: &'a str,
        stale_after_ms: u64,
    ) -> Answer<'a, Claimed>;

    /// Saves what the owner says, and that it is alive; answers what the operator wants.
    fn save<'a>(&'a self, id: &'a JobId, epoch: u64, update: &'a Update) -> Answer<'a, Asked>;

    /// Ends the ownership of `epoch`, so that another process can claim at once.
    fn release<'a>(&'a self, id: &'a JobId, epoch: u64) -> Answer<'a, ()>;

    /// Requests control or limits. Refused when the job's state is final.
    fn request<'a>(&'a self, id: &'a JobId, request: &'a Request) -> Answer<'a, ()>;

    /// Keeps another checkpoint of a job that has ended, which nobody owns: what it left behind was
    /// tidied up. Its state stays as it is.
    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()>;
}

/// What a claim gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The epoch to save under.
    pub epoch: u64,
    /// The record as it is now.
    pub record: Record,
}

/// What the owner saves; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The new state; refused if it cannot follow the one before.
    pub state: Option<State>,
    /// How far the job is.
    pub progress: Option<Progress>,
    /// What the operation needs to go on.
    pub checkpoint: Option<Value>,
}

/// What the operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Run, pause or cancel.
    pub control: Requested,
    /// How fast.
    pub limits: Limits,
}

/// What the operator requests of a running or waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run, pause or cancel.
    Control(Requested),
    /// All limits, in place of the ones before.
    Limits(Limits),
}

/// Why a journal did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No such job.
    #[error("there is no job {id} in {place} (`imago job list` shows those that there are)")]
    Unknown {
        /// The job.
        id: JobId,
        /// Where it was looked for.
        place: String,
    },
    /// The id is taken.
    #[error("there is a job {id} already in {place}; try again")]
    Exists {
        /// The job.
        id: JobId,
        /// Where.
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
        /// Who works at it.
        process: String,
        /// How long ago it was alive, in milliseconds.
        age_ms: u64,
        /// How long it must be silent, in milliseconds.
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
        /// What was refused.
        source: Box<IllegalTransition>,
    },
    /// A limit cannot be kept.
    #[error(transparent)]
    Limit(#[from] ZeroLimit),
    /// What is kept cannot be understood.
    #[error("what {place} keeps of job {id} cannot be read: {reason}")]
    Damaged {
        /// The job, as far as it can be told.
        id: String,
        /// Where.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The place where records are kept answers with a refusal that trying again does not change.
    #[error("cannot {doing} in {place}: {reason}")]
    Refused {
        /// What was tried.
        doing: &'static str,
        /// Where.
        place: String,
        /// What it said, and what to do.
        reason: String,
    },
    /// The place where records are kept does not answer, for now.
    #[error("cannot {doing} in {place}")]
    Unavailable {
        /// What was tried.
        doing: &'static str,
        /// Where.
        place: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl JournalError {
    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self, JournalError::Unavailable { .. })
    }
}

//! The interface of a journal: persistent storage of jobs' records.
//!
//! A record is changed by two parties. Its *owner*, the process that claimed the job, saves state, progress and
//! checkpoint. A claim is fenced: each has a higher epoch than the one before, and a save under an older epoch is
//! refused. So a process that was presumed dead cannot undo the work of its successor. The *operator*, from any
//! process, requests control and limits; the owner receives them in the reply to each save.
//!
//! An acknowledged change survives a crash of the process and of the machine.

#[doc(hidden)]
pub mod contract;

use std::future::Future;
use std::pin::Pin;

use serde_json::Value;

pub use crate::error::JournalError;
use crate::id::JobId;
use crate::record::Record;
pub use crate::record::{OperatorRequests, Request, Update};

/// The future of a journal's reply to one request.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, JournalError>> + Send + 'a>>;

/// Persistent storage of jobs' records.
pub trait Journal: Send + Sync {
    /// Stores the record of a new job. Refused if the journal has a job with the record's id.
    fn create<'a>(&'a self, record: &'a Record) -> Answer<'a, ()>;

    /// Returns the record of the job `id`.
    fn load<'a>(&'a self, id: &'a JobId) -> Answer<'a, Record>;

    /// Returns the records of all jobs of the journal, oldest first.
    fn list(&self) -> Answer<'_, Vec<Record>>;

    /// Makes `process` the owner of the job `id`, with a new epoch. Refused if the job has an owner whose last
    /// heartbeat is less than `stale_after_ms` milliseconds old, or if the job's state is final.
    fn claim<'a>(
        &'a self,
        id: &'a JobId,
        process: &'a str,
        stale_after_ms: u64,
    ) -> Answer<'a, Claimed>;

    /// Saves the owner's update of the job `id` and the time of its heartbeat, and returns the operator's present
    /// requests. Refused if `epoch` is not that of the present owner.
    fn save<'a>(
        &'a self,
        id: &'a JobId,
        epoch: u64,
        update: &'a Update,
    ) -> Answer<'a, OperatorRequests>;

    /// Ends the ownership of the job `id` by the claim with this epoch, so that another process can claim the job at
    /// once. Refused if `epoch` is not that of the present owner.
    fn release<'a>(&'a self, id: &'a JobId, epoch: u64) -> Answer<'a, ()>;

    /// Stores the operator's request for control or limits of the job `id`. Refused if the job's state is final.
    fn request<'a>(&'a self, id: &'a JobId, request: &'a Request) -> Answer<'a, ()>;

    /// Replaces the checkpoint of the job `id`, whose state is final, after its leftovers were cleaned up. The state
    /// stays as it is.
    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()>;

    /// Removes the record of the job `id`. Refused unless the job is done or cancelled.
    fn remove<'a>(&'a self, id: &'a JobId) -> Answer<'a, ()>;
}

/// The result of a granted claim of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The epoch of the claim, to be passed to each save and release by the new owner.
    pub epoch: u64,
    /// The job's record after the claim.
    pub record: Record,
}

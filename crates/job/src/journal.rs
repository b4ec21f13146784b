//! The interface of a journal: persistent storage of jobs' records.
//!
//! A record is changed by two parties. Its *owner*, the process that claimed it, saves state, progress and
//! checkpoint. A claim is fenced: each has a higher epoch than the one before, and a save under an older
//! epoch is refused. So a process that was presumed dead cannot undo the work of its successor. The
//! *operator*, from any process, requests control and limits; the owner receives them in the reply to each
//! save.
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

/// The future of a journal's reply.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, JournalError>> + Send + 'a>>;

/// Persistent storage of jobs' records.
pub trait Journal: Send + Sync {
    /// Stores a new record. Refused if the id exists.
    fn create<'a>(&'a self, record: &'a Record) -> Answer<'a, ()>;

    /// Returns the record of a job.
    fn load<'a>(&'a self, id: &'a JobId) -> Answer<'a, Record>;

    /// Returns all records, oldest first.
    fn list(&self) -> Answer<'_, Vec<Record>>;

    /// Makes `process` the owner, with a new epoch. Refused if another owner's last heartbeat is less than
    /// `stale_after_ms` milliseconds ago, and if the job's state is final.
    fn claim<'a>(
        &'a self,
        id: &'a JobId,
        process: &'a str,
        stale_after_ms: u64,
    ) -> Answer<'a, Claimed>;

    /// Saves the owner's update and its heartbeat, and returns the operator's request.
    fn save<'a>(
        &'a self,
        id: &'a JobId,
        epoch: u64,
        update: &'a Update,
    ) -> Answer<'a, OperatorRequests>;

    /// Ends the ownership of `epoch`, so that another process can claim at once.
    fn release<'a>(&'a self, id: &'a JobId, epoch: u64) -> Answer<'a, ()>;

    /// Stores the operator's request for control or limits. Refused if the job's state is final.
    fn request<'a>(&'a self, id: &'a JobId, request: &'a Request) -> Answer<'a, ()>;

    /// Replaces the checkpoint of a job that has ended, and so has no owner, after its leftovers were cleaned
    /// up. The state stays as it is.
    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()>;

    /// Removes the record of a job that is done or cancelled. Refused if the job's state is not final.
    fn remove<'a>(&'a self, id: &'a JobId) -> Answer<'a, ()>;
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The epoch of the claim, under which the owner saves.
    pub epoch: u64,
    /// The record after the claim.
    pub record: Record,
}

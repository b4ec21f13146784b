//! The interface of a journal: the store of jobs' records.
//!
//! A record is changed by two parties. Its *owner*, the process that claimed it, saves state,
//! progress and checkpoint. A claim is fenced: each has a higher epoch than the one before, and a
//! save under an older epoch is refused, so a process that was presumed dead cannot undo the work of
//! its successor. The *operator*, from any process, requests control and limits; the owner learns of
//! them with the reply to each save.
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
pub use crate::record::{Asked, Request, Update};

/// A journal's reply, later.
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

    /// Keeps another checkpoint of a job that has ended, which has no owner: what it left behind was
    /// tidied up. Its state stays as it is.
    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()>;
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The epoch to save under.
    pub epoch: u64,
    /// The record as it is now.
    pub record: Record,
}

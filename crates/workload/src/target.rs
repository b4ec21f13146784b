//! The target of a load: a database, accessed by five operations.
//!
//! Invariant that the check requires: a target returns [`Outcome::Refused`] for a write only if the write was
//! certainly not applied and never will be. If that is uncertain it returns [`Outcome::Unknown`].

use std::future::Future;

use crate::review::Review;

/// The outcome of an operation that a target executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A read found its document, or a scan its documents; or a write was applied and acknowledged.
    Acked,
    /// A read found the document of the write with this `seq`.
    Found(u64),
    /// There is no document under the key, so nothing was read, updated or deleted.
    NotFound,
    /// The operation failed, with this error message, and certainly changed nothing.
    Refused(String),
    /// The operation failed, with this error message, and may have been applied or may be applied later.
    Unknown(String),
    /// The operation failed because too few replicas were available or answered in time.
    Unavailable {
        /// Error message of the database.
        message: String,
        /// True for a write that some replicas may have applied, or may apply later.
        perhaps_applied: bool,
    },
}

/// An insert of one document under a key that has none.
#[derive(Debug, Clone, PartialEq)]
pub struct Insert {
    /// Number of the key under which the document is inserted.
    pub key: u64,
    /// Number of this write, stored in the document as `seq`.
    pub seq: u64,
    /// Fields of the document; `price` is the price for `seq`.
    pub review: Review,
}

/// An update of one document, which sets `seq` and `price` and increments the counter `n`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Number of the key whose document is updated.
    pub key: u64,
    /// Number of this write, stored in the document as `seq`.
    pub seq: u64,
    /// New price of the document, in dollars.
    pub price: f64,
}

/// A database to which a load can be sent.
///
/// A target must not retry an operation that may have been applied, unless the database detects the
/// repetition. It may be called from many tasks at once.
pub trait Target: Send + Sync + 'static {
    /// Reads the document under the key number `key`.
    fn read(&self, key: u64) -> impl Future<Output = Outcome> + Send;
    /// Inserts the document that `insert` contains.
    fn insert(&self, insert: Insert) -> impl Future<Output = Outcome> + Send;
    /// Updates the document under `update.key` if it exists; never creates one.
    fn update(&self, update: Update) -> impl Future<Output = Outcome> + Send;
    /// Deletes the document under the key number `key`.
    fn delete(&self, key: u64) -> impl Future<Output = Outcome> + Send;
    /// Reads at most `documents_max` documents from `key` on, in the order in which the database stores them.
    fn scan(&self, key: u64, documents_max: u32) -> impl Future<Output = Outcome> + Send;
    /// Returns the name of the target, for people to read, without secrets.
    fn label(&self) -> String;
}

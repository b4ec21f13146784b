//! The target of a load: a database behind five operations.
//!
//! Invariant that the check requires: a target returns [`Outcome::Refused`] only for a write that was
//! certainly not applied and never will be. For everything uncertain it returns [`Outcome::Unknown`].

use std::future::Future;

use crate::review::Review;

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A read found its document, a scan its documents; a write was applied and acknowledged.
    Acked,
    /// A read found the document that this write left, by its `seq`.
    Found(u64),
    /// There is no document under the key: nothing was read, updated or deleted.
    NotFound,
    /// It failed, and it certainly changed nothing.
    Refused(String),
    /// It failed, and may or may not have been applied, or may still be applied later.
    Unknown(String),
    /// It failed because too few replicas could be asked, or answered in time.
    Unavailable {
        /// The database's words.
        message: String,
        /// True for a write that some replicas may have applied.
        perhaps_applied: bool,
    },
}

/// A document to insert.
#[derive(Debug, Clone, PartialEq)]
pub struct Insert {
    /// The key's number.
    pub key: u64,
    /// The number of this write, stored in the document as `seq`.
    pub seq: u64,
    /// The document's fields. `price` already is the one that belongs to `seq`.
    pub review: Review,
}

/// A change of one document: `seq` and `price` are set, the counter `n` is incremented.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// The key's number.
    pub key: u64,
    /// The number of this write, stored in the document as `seq`.
    pub seq: u64,
    /// The new price.
    pub price: f64,
}

/// A database that a load can be sent to.
///
/// A target does not retry by itself an operation that may have been applied, unless the database
/// recognises the repetition; it may be called from many tasks at once.
pub trait Target: Send + Sync + 'static {
    /// Reads the document under the key.
    fn read(&self, key: u64) -> impl Future<Output = Outcome> + Send;
    /// Inserts a document.
    fn insert(&self, insert: Insert) -> impl Future<Output = Outcome> + Send;
    /// Updates a document that exists, and never creates one.
    fn update(&self, update: Update) -> impl Future<Output = Outcome> + Send;
    /// Deletes a document.
    fn delete(&self, key: u64) -> impl Future<Output = Outcome> + Send;
    /// Reads documents from the key on, at most so many, in the order in which the database keeps them.
    fn scan(&self, key: u64, documents_max: u32) -> impl Future<Output = Outcome> + Send;
    /// The name of the target, for people to read, without secrets.
    fn label(&self) -> String;
}

//! The sources of a collection's operations. A source can be read more than once: first to learn the fields, then to route
//! the operations.

use super::operation::Operation;
use crate::error::Result;

/// Where operations come from, and how many of all there are.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SourceFacts {
    /// Description of the source.
    pub source: String,
    /// Number of operations that were read.
    pub operations: u64,
    /// Share of all operations of the time that the source shows, by its own setting; `None` if unknown.
    pub share: Option<f64>,
    /// Time that the operations span, in seconds; `None` if unknown.
    pub seconds: Option<f64>,
    /// Limits of the source, in words.
    pub notes: Vec<String>,
}

/// An operation as a source shows it.
pub(super) struct Observed {
    pub(super) operation: Operation,
    /// Index of the shard that executed it, if the source is a shard: an operation at several shards is seen at each.
    pub(super) shard: Option<u16>,
}

/// A source of operations.
pub(super) trait Source: Send {
    /// Calls `each` with each operation, in the order of their times.
    ///
    /// # Errors
    /// The source cannot be read, or the error of `each`.
    fn read(&mut self, each: &mut dyn FnMut(Observed) -> Result<()>) -> Result<()>;

    /// Describes the source, after it was read.
    fn facts(&self) -> SourceFacts;
}

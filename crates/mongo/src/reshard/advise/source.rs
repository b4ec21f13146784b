//! The sources of a collection's operations. A source can be read more than once: first to learn the fields, then to route
//! the operations.

use std::collections::BTreeMap;

use imago_plan::shard_key::Kind;

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
pub(super) struct Observed<'a> {
    pub(super) operation: &'a Operation,
    /// Index of the shard that executed it, if the source is a shard: an operation at several shards is seen at each.
    pub(super) shard: Option<u16>,
}

/// A source of operations.
pub(super) trait Source: Send {
    /// Calls `each` with each operation, in the order of their times.
    ///
    /// # Errors
    /// The source cannot be read, or the error of `each`.
    fn read(&mut self, each: &mut dyn FnMut(Observed<'_>) -> Result<()>) -> Result<()>;

    /// Reads the source once, and counts.
    ///
    /// # Errors
    /// The source cannot be read.
    fn survey(&mut self) -> Result<Uses> {
        let mut uses = Uses::default();
        self.read(&mut |observed| {
            uses.add(observed.operation, 1);
            Ok(())
        })?;
        Ok(uses)
    }

    /// Describes the source, after it was read.
    fn facts(&self) -> SourceFacts;
}

/// Largest number of paths that are counted.
const PATHS_MAX: usize = 10_000;

/// What a first reading of a source tells.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Number of operations.
    pub(super) operations: u64,
    /// Number of operations with a condition on each path, inserts not included.
    pub(super) paths: BTreeMap<String, u64>,
}

impl Uses {
    /// Counts `count` operations like `operation`.
    pub(super) fn add(&mut self, operation: &Operation, count: u64) {
        self.operations += count;
        if operation.kind == Kind::Insert {
            return;
        }
        for (path, _) in &operation.bounds {
            if let Some(uses) = self.paths.get_mut(path) {
                *uses += count;
            } else if self.paths.len() < PATHS_MAX {
                self.paths.insert(path.clone(), count);
            }
        }
    }
}

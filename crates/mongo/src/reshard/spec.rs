//! The spec of a change of shape in a job's record, its options, and its outcome.

use std::time::Duration;

use imago_job::id::JobId;
use imago_job::record::Record;
use serde::{Deserialize, Serialize};

use super::plan::{Engine, Plan};
use crate::copy::preflight;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::block::Block;
use crate::verify::Mode;

/// Kind of the record of a change of shape.
pub const KIND: &str = "reshard";

/// Specification of a job that changes a collection's shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The copy to the shadow.
    #[serde(flatten)]
    pub copy: preflight::Plan,
    /// The plan of the change.
    pub reshard: Plan,
    /// Implementation that changes the shape.
    #[serde(default)]
    pub engine: Engine,
    /// Facts about the collection at the creation of the job.
    pub known: Known,
}

/// Facts that distinguish a collection from another one of its name, and settings to restore.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known {
    /// UUID of the collection.
    pub uuid: String,
    /// True if the balancer was disabled for the collection before the job.
    pub was_off: bool,
}

impl Spec {
    /// Returns the spec in a job's record.
    ///
    /// # Errors
    /// Fails if the record is not that of a change of shape.
    pub fn of(record: &Record) -> Result<Self> {
        if record.kind != KIND {
            return Err(Error::precondition(
                format!("job {} is a {}, not a {KIND}", record.id, record.kind),
                "`imago job list` shows what each job is",
            ));
        }
        serde_json::from_value(record.spec.clone()).map_err(|e| Error::malformed("the plan", e))
    }

    /// Returns the name of the shadow, to which the documents are copied.
    #[must_use]
    pub fn shadow(&self) -> &Namespace {
        &self.copy.collections[0].to
    }
}

/// Settings of a process that works on a change of shape.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of slices that this process copies concurrently.
    pub workers: usize,
    /// Name of this process, for the job's record.
    pub process: String,
    /// Documents that are compared before the commit; `None` compares none.
    pub verify: Option<Mode>,
    /// Method by which writes to the collection are blocked at the commit.
    pub block: Block,
    /// Time allowed from the block to the end of the drain. When it is exceeded the block is lifted, and the commit
    /// is attempted again.
    pub block_max: Duration,
}

/// Outcome of a change of shape.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// Implementation that changed the shape.
    pub engine: Engine,
    /// Time from the request of the block until it was lifted, in ms; `None` if another process did it.
    pub write_block_ms: Option<u64>,
    /// Duration of the drain, in ms; `None` if another process did it.
    pub drain_ms: Option<u64>,
    /// Time from the request of the rename until it was recorded or answered, in ms; `None` if another process did
    /// it.
    pub rename_ms: Option<u64>,
    /// The steps of the block in their order, whose durations add up to that of the block.
    pub block_steps: Vec<BlockStep>,
    /// Predicted duration of the block, in ms, from the two measurements of the rehearsal.
    pub predicted_block_ms: Option<u64>,
    /// Measured duration of a rename of an almost empty collection onto another, in ms.
    pub bare_rename_ms: Option<u64>,
    /// Measured duration of a write that waits for a majority, in ms.
    pub majority_write_ms: Option<u64>,
    /// Number of documents that were compared before the commit.
    pub verified: u64,
    /// Number of documents of the last changes that were compared under the block; `None` if another process did
    /// it.
    pub last_verified: Option<u64>,
    /// Changes to the old collection between the drain and the rename.
    pub late_writes: LateWrites,
    /// Time from the start of this process's work to its end, in seconds.
    pub seconds: f64,
}

/// A step of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockStep {
    /// Name of the step: `set`, `drain`, `compare`, `rename` or `lift`. Late writes are brought over in `lift`.
    pub step: &'static str,
    /// Duration of the step, in ms.
    pub ms: u64,
}

/// Changes to the old collection between the drain and the rename.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LateWrites {
    /// Number of documents whose delete was brought over.
    pub deleted: u64,
    /// Number of documents that were written past the validator and brought over.
    pub written: u64,
    /// The `_id`s of documents whose update past the validator is lost.
    pub lost: Vec<String>,
    /// True if the server's oplog no longer had the changes: then all of these values are unknown.
    pub unknown: bool,
}

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

/// The kind of job, in its record, that changes a collection's shape.
pub const KIND: &str = "reshard";

/// Specification of a job that changes a collection's shape, as the job's record contains it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The plan of the copy from the collection to its shadow.
    #[serde(flatten)]
    pub copy: preflight::Plan,
    /// The plan of the change of shape.
    pub reshard: Plan,
    /// Implementation that changes the shape.
    #[serde(default)]
    pub engine: Engine,
    /// Facts about the collection at the creation of the job, before any change.
    pub known: Known,
}

/// Facts about a collection before a job: its identity, and a setting that the job restores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known {
    /// UUID of the collection, which distinguishes it from another one of its name.
    pub uuid: String,
    /// True if the balancer was disabled for the collection before the job.
    pub was_off: bool,
}

impl Spec {
    /// Returns the spec in the job's `record`.
    ///
    /// # Errors
    /// Fails if the record is not that of a job that changes a collection's shape.
    pub fn of(record: &Record) -> Result<Self> {
        if record.kind != KIND {
            return Err(Error::precondition(
                format!("job {} is a {}, not a {KIND}", record.id, record.kind),
                "`imago job list` shows what each job is",
            ));
        }
        serde_json::from_value(record.spec.clone()).map_err(|e| Error::malformed("the plan", e))
    }

    /// Returns the full name of the shadow, to which the documents are copied.
    #[must_use]
    pub fn shadow(&self) -> &Namespace {
        &self.copy.collections[0].to
    }
}

/// Settings of a process that runs a job that changes a collection's shape.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of slices that this process copies concurrently.
    pub workers: usize,
    /// Name of this process in the job's record, such as `host/1234`.
    pub process: String,
    /// The documents that are compared before the commit; `None` compares none.
    pub verify: Option<Mode>,
    /// The way in which writes to the collection are blocked at the commit.
    pub block: Block,
    /// Longest time from the request of the write block to the end of the drain. When it is exceeded the write block
    /// is lifted, and the commit is attempted again.
    pub block_max: Duration,
}

/// Outcome of a job that changed a collection's shape.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Id of the job.
    pub job: JobId,
    /// Implementation that changed the shape.
    pub engine: Engine,
    /// Time from the request of the write block until it was lifted, in milliseconds; `None` if another process or
    /// the server did it.
    pub write_block_ms: Option<u64>,
    /// Duration of the drain (applying the last changes to the shadow), in milliseconds; `None` if another process or
    /// the server did it.
    pub drain_ms: Option<u64>,
    /// Time from the request of the rename until it was recorded or answered, in milliseconds; `None` if another
    /// process or the server did it.
    pub rename_ms: Option<u64>,
    /// The steps of the write block in their order, whose durations add up to that of the write block.
    pub block_steps: Vec<BlockStep>,
    /// Duration of the write block, in milliseconds, as predicted from the two measurements of the rehearsal; `None`
    /// without a rehearsal.
    pub predicted_block_ms: Option<u64>,
    /// Measured duration of a rename of an almost empty collection onto another, in milliseconds; `None` without a
    /// rehearsal.
    pub bare_rename_ms: Option<u64>,
    /// Measured duration of a write that waits for a majority, in milliseconds; `None` without a rehearsal.
    pub majority_write_ms: Option<u64>,
    /// Number of documents that were compared before the commit.
    pub verified: u64,
    /// Number of documents of the last changes that were compared during the write block; `None` if another process
    /// or the server did it.
    pub last_verified: Option<u64>,
    /// Changes of the old collection between the drain and the rename.
    pub late_writes: LateWrites,
    /// Time from the start of this process's work at the job to its end, in seconds.
    pub seconds: f64,
}

/// A step of the write block at the commit of a reshard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockStep {
    /// Name of the step: `set`, `drain`, `compare`, `rename` or `lift`. Late writes are brought over in `lift`.
    pub step: &'static str,
    /// Duration of the step, in milliseconds.
    pub ms: u64,
}

/// Changes of the old collection between the drain and the rename, and what became of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LateWrites {
    /// Number of documents whose delete was applied to the new collection.
    pub deleted: u64,
    /// Number of documents that were written past the validator and then written to the new collection.
    pub written: u64,
    /// The `_id`s, as extended JSON, of documents whose update past the validator is lost.
    pub lost: Vec<String>,
    /// True if the server's oplog no longer had the changes: then it is unknown which there were, and none was
    /// brought over.
    pub unknown: bool,
}

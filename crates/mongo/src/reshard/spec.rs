//! A change of shape in a job's record, its options, and its outcome.

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

/// The kind of such a job's record.
pub const KIND: &str = "reshard";

/// The specification of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The copy into the shadow.
    #[serde(flatten)]
    pub copy: preflight::Plan,
    /// The change of shape.
    pub reshard: Plan,
    /// The means of the change.
    #[serde(default)]
    pub engine: Engine,
    /// Facts about the collection when the job was created.
    pub known: Known,
}

/// Facts that tell a collection from another one of its name, and that are to be restored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known {
    /// Its UUID.
    pub uuid: String,
    /// True if the balancer left it alone before the job already.
    pub was_off: bool,
}

impl Spec {
    /// The spec in a job's record.
    ///
    /// # Errors
    /// Fails if the record is not one of a change of shape.
    pub fn of(record: &Record) -> Result<Self> {
        if record.kind != KIND {
            return Err(Error::precondition(
                format!("job {} is a {}, not a {KIND}", record.id, record.kind),
                "`imago job list` shows what each job is",
            ));
        }
        serde_json::from_value(record.spec.clone()).map_err(|e| Error::malformed("the plan", e))
    }

    /// The collection that the documents are copied to.
    #[must_use]
    pub fn shadow(&self) -> &Namespace {
        &self.copy.collections[0].to
    }
}

/// The settings of a process that works at a change of shape.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slices that this process copies at the same time.
    pub workers: usize,
    /// The name of this process, for the job's record.
    pub process: String,
    /// Which documents are compared before the commit; none when absent.
    pub verify: Option<Mode>,
    /// The way in which writes to the collection are blocked at the commit.
    pub block: Block,
    /// The drain may take this long; then the block is lifted, and it is tried again.
    pub block_max: Duration,
}

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// The means of the change.
    pub engine: Engine,
    /// From the block until it was lifted, in ms; absent when another process did it.
    pub write_block_ms: Option<u64>,
    /// The drain alone, in ms.
    pub drain_ms: Option<u64>,
    /// The rename alone, in ms.
    pub rename_ms: Option<u64>,
    /// Documents that were compared before the commit.
    pub verified: u64,
    /// Documents of the last changes that were compared under the block.
    pub last_verified: Option<u64>,
    /// Changes between the drain and the rename.
    pub late_writes: LateWrites,
    /// From the start of this process's work to its end, in s.
    pub seconds: f64,
}

/// Changes between the drain and the rename.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LateWrites {
    /// Documents whose delete was brought over.
    pub deleted: u64,
    /// Documents that were written past the validator, and brought over.
    pub written: u64,
    /// The `_id`s of documents whose update past the validator is lost.
    pub lost: Vec<String>,
    /// True if the server no longer kept the changes: then all of these are unknown.
    pub unknown: bool,
}

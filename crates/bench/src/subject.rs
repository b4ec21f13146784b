//! The measured program: the commands of Imago, run as processes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use imago_mongo::reshard::plan::Placing;

/// A command of Imago. Every command reports its events on stderr as JSON, and its result on stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Copies a collection until the copy has caught up.
    Copy,
    /// Cancels a job.
    Cancel {
        /// Id of the job.
        job: String,
    },
    /// Resumes a job until it has caught up.
    CatchUp {
        /// Id of the job.
        job: String,
    },
    /// Resumes a job, which follows its source until it is interrupted.
    Follow {
        /// Id of the job.
        job: String,
    },
    /// Compares all documents of the collection on both sides.
    Verify,
    /// Plans a change of the shard key of the collection at `to`, at full pace.
    PlanReshard {
        /// Field of the new key.
        key: String,
        /// Rule by which chunks are placed.
        placing: Placing,
        /// Size of chunks, in MiB; the cluster's setting if absent.
        chunk_mb: Option<u32>,
    },
    /// Executes a plan, at full pace.
    Reshard {
        /// The file of the plan.
        plan: PathBuf,
    },
    /// Records the operations of clients that connect to an address, until it is interrupted.
    RecordOperations {
        /// The file of the recording.
        out: PathBuf,
        /// Address at which clients connect.
        listen: String,
    },
    /// Judges shard keys by a recording, at full pace.
    AdviseKeys {
        /// The file of the recording.
        recording: PathBuf,
        /// Keys to judge, as extended JSON.
        keys: Vec<String>,
        /// Processor time of a shard for a request, a returned and a written document, in ns; `None` for the defaults.
        costs_ns: Option<[u64; 3]>,
    },
    /// Records operations by the shards' profilers for a minute, or until it is interrupted, and judges shard keys.
    ProfileOperations,
    /// Plans and executes a change to a shard key, at full pace, without a comparison of the documents.
    ReshardTo {
        /// The new key, as extended JSON.
        key: String,
    },
    /// Plans and executes a change of the shard key, at the default pace.
    ReshardBy {
        /// Field of the new key.
        key: String,
    },
}

/// The two ends of the measured work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The source's connection string.
    pub from: String,
    /// The destination's connection string.
    pub to: String,
    /// The collection, of the same name on both sides.
    pub ns: String,
}

/// A function that builds the command line of a subject. The caller passes it in, because this crate must not know
/// flags.
pub type Commands = Arc<dyn Fn(&Subject, &Ends) -> Command + Send + Sync>;

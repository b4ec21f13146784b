//! The measured program: Imago's own commands, as processes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use imago_mongo::reshard::plan::Placing;

/// A command of Imago. All report their events on stderr as JSON, and their result on stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Copies a collection until the copy has caught up.
    Copy,
    /// Gives a job up.
    Cancel {
        /// The job.
        job: String,
    },
    /// Goes on with a job until it has caught up.
    CatchUp {
        /// The job.
        job: String,
    },
    /// Goes on with a job until it is interrupted.
    Follow {
        /// The job.
        job: String,
    },
    /// Compares everything.
    Verify,
    /// Plans a change of the shard key of the collection at `to`, at full pace.
    PlanReshard {
        /// The new key's field.
        key: String,
        /// Rule by which chunks are placed.
        placing: Placing,
        /// Size of chunks, in MiB; the cluster's setting if absent.
        chunk_mb: Option<u32>,
    },
    /// Does what a plan says, at full pace.
    Reshard {
        /// The file that the plan is in.
        plan: PathBuf,
    },
    /// Plans and does it, at the default pace.
    ReshardBy {
        /// The new key's field.
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

/// Makes the command line of a subject. The caller passes it in, because this crate must not know
/// flags.
pub type Commands = Arc<dyn Fn(&Subject, &Ends) -> Command + Send + Sync>;

//! The part of a copy's state that belongs to one kind of job: a cut-over, a reverse job after one, or a reshard.

use imago_job::id::JobId;
use serde::{Deserialize, Serialize};

use crate::server::block::Block;

/// The kind of job that a copy is part of, with the state that only that kind has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Job {
    /// A copy to another cluster.
    Copy(CutOver),
    /// The reverse job: after a cut-over with `--reverse` it makes the old cluster follow the new one.
    WayBack(ReverseJob),
    /// A reshard: a change of a collection's shape within one cluster.
    Reshard(Commit),
}

impl Default for Job {
    fn default() -> Self {
        Self::Copy(CutOver::default())
    }
}

/// The state of a cut-over to the destination.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CutOver {
    /// The state of the write block at the source.
    pub block: SourceBlock,
    /// Total time, in ms, for which attempts at this cut-over that died blocked writes; 0 once an attempt has ended.
    #[serde(default)]
    pub blocked_before_ms: u64,
    /// True from the start of the hook that moves the clients until its end is recorded. Meanwhile it is unknown which
    /// cluster the clients use.
    pub hook_begun: bool,
    /// The job that makes the old cluster follow the new one; `None` unless it is cut over with `--reverse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse_job: Option<JobId>,
}

/// The state of the write block that a cut-over sets at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SourceBlock {
    /// No write block was set, or it was lifted.
    #[default]
    None,
    /// The write block is being set or is in force: the job's next process lifts it first.
    MayStand {
        /// Time at which the block was requested, in ms since 1970 by the clock of that process; `None` in records of
        /// earlier versions.
        since_ms: Option<u64>,
    },
    /// The cut-over left the write block in force, for the operator to lift.
    Left,
}

impl CutOver {
    /// Returns true if an attempt that did not end may have left writes at the source blocked.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        matches!(self.block, SourceBlock::MayStand { .. })
    }

    /// Adds the duration of a dead attempt's write block, which is lifted at `now_ms` (ms since 1970), to
    /// `blocked_before_ms`, and records the lift.
    pub(crate) fn count_block(&mut self, now_ms: u64) {
        if let SourceBlock::MayStand { since_ms: Some(since_ms) } = self.block {
            self.blocked_before_ms += now_ms.saturating_sub(since_ms);
        }
        self.block = SourceBlock::None;
    }

    /// Records that an attempt at the cut-over ended and left the write block in the state `block`.
    pub(crate) fn end_attempt(&mut self, block: SourceBlock) {
        self.block = block;
        self.blocked_before_ms = 0;
        self.hook_begun = false;
    }
}

/// The state of a reverse job, which makes the old cluster follow the new one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReverseJob {
    /// The job whose cut-over this job reverses.
    pub from: JobId,
    /// True if the destination, which is the old cluster, refuses its users' writes while it follows. The job's next
    /// process sets that block again.
    pub is_destination_blocked: bool,
    /// The state of the cut-over back to the old cluster.
    pub cut_over: CutOver,
}

/// The state of a reshard job's commit, by which the resharded collection takes the original's place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Commit {
    /// True if a commit that did not end may have left writes to the collection blocked: the job's next process lifts
    /// the write block first.
    pub is_blocked: bool,
    /// True from the request to rename the shadow collection (the resharded copy) until the outcome is recorded.
    pub rename_requested: bool,
    /// The UUID of the collection that takes the original's name; `None` until the rename is requested, or the
    /// server's own reshard has ended.
    #[serde(default)]
    pub becomes: Option<String>,
    /// The kind of write block that the job was started with; `None` if none is recorded.
    #[serde(default)]
    pub block: Option<Block>,
    /// The collection's own validator, level and action, in extended JSON, while a validator that refuses every write
    /// may replace them; else `None`.
    #[serde(default)]
    pub validation: Option<String>,
    /// The source's cluster time (seconds since 1970, and increment) up to which the shadow collection equals the
    /// original. Set when a rename is requested under a write block that admits deletes, until those deletes are
    /// applied; else `None`.
    #[serde(default)]
    pub drained_to: Option<(u32, u32)>,
}

//! The part of a copy's state that belongs to one kind of job: a cut-over, the way back from one, or a
//! change of shape.

use imago_job::id::JobId;
use serde::{Deserialize, Serialize};

use crate::server::block::Block;

/// The kind of job that a copy is a part of, with the state that only that kind has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Job {
    /// A copy to another cluster.
    Copy(CutOver),
    /// The job that keeps an old cluster following the new one after a cut-over with `--reverse`.
    WayBack(WayBack),
    /// A change of shape within one cluster.
    Reshard(Commit),
}

impl Default for Job {
    fn default() -> Self {
        Self::Copy(CutOver::default())
    }
}

/// A cut-over to the destination.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CutOver {
    /// The block of writes at the source.
    pub block: SourceBlock,
    /// Time for which attempts at the cut-over that died blocked writes, in ms.
    #[serde(default)]
    pub blocked_before_ms: u64,
    /// True once the hook that moves the clients began, until its end is recorded. The clients'
    /// cluster is unknown then.
    pub hook_begun: bool,
    /// The job that keeps the old cluster following the new one, once cut over with `--reverse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse_job: Option<JobId>,
}

/// The block of a cut-over at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SourceBlock {
    /// None was set, or it was lifted.
    #[default]
    None,
    /// It is being set or stands: the next process of the job lifts it first.
    MayStand {
        /// Time of the request, in ms since 1970; absent in records of earlier versions.
        since_ms: Option<u64>,
    },
    /// The cut-over left it, for the operator to lift.
    Left,
}

impl CutOver {
    /// True if an attempt that did not end may have left writes at the source blocked.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        matches!(self.block, SourceBlock::MayStand { .. })
    }

    /// Notes that the block of an attempt that died is lifted now.
    pub(crate) fn count_block(&mut self, now_ms: u64) {
        if let SourceBlock::MayStand { since_ms: Some(since_ms) } = self.block {
            self.blocked_before_ms += now_ms.saturating_sub(since_ms);
        }
        self.block = SourceBlock::None;
    }

    /// Notes that an attempt ended, with its block lifted or left.
    pub(crate) fn end_attempt(&mut self, block: SourceBlock) {
        self.block = block;
        self.blocked_before_ms = 0;
        self.hook_begun = false;
    }
}

/// A job that leads back to the old cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WayBack {
    /// The job that it leads back from.
    pub from: JobId,
    /// True if the destination, which is the old cluster, refuses its users' writes while it
    /// follows. The next process of the job renews that block.
    pub is_destination_blocked: bool,
    /// The cut-over back.
    pub cut_over: CutOver,
}

/// The commit of a change of shape.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Commit {
    /// True if a commit that did not end may have left writes blocked: the next process of the job
    /// lifts the block first.
    pub is_blocked: bool,
    /// True once the rename was requested, until its outcome is recorded.
    pub rename_requested: bool,
    /// The UUID of the collection that takes the name, once the rename was requested.
    #[serde(default)]
    pub becomes: Option<String>,
    /// The kind of block that the job was begun with.
    #[serde(default)]
    pub block: Option<Block>,
    /// The collection's own validator, level and action, in extended JSON, while one that refuses
    /// everything may stand in their place.
    #[serde(default)]
    pub validation: Option<String>,
    /// The source's time up to which the shadow equals the collection: from the request of a rename
    /// behind a block that admits deletes until these are brought over.
    #[serde(default)]
    pub drained_to: Option<(u32, u32)>,
}

//! Reads the state in the format of earlier versions: one flat list of fields for all kinds of job.

use imago_job::id::JobId;
use serde::Deserialize;

use super::job::{Commit, CutOver, Job, ReverseJob, SourceBlock};
use crate::server::block::Block;

/// The fields of the states of all kinds of job in the earlier format; each belongs to one kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flat {
    is_blocked: bool,
    blocked_at_ms: Option<u64>,
    blocked_before_ms: u64,
    block_left: bool,
    /// In a reshard job, this field says whether the rename was requested.
    hook_begun: bool,
    is_destination_blocked: bool,
    reverse_job: Option<JobId>,
    leads_back_from: Option<JobId>,
    becomes: Option<String>,
    block: Option<Block>,
    validation: Option<String>,
    drained_to: Option<(u32, u32)>,
}

impl Flat {
    /// Converts the fields to the state of one kind of job: a copy or its reverse job if `is_copy`, else a reshard
    /// job. Records of a copy and of its reverse job are both of kind `copy`.
    pub(super) fn of_kind(self, is_copy: bool) -> Job {
        if !is_copy {
            return Job::Reshard(Commit {
                is_blocked: self.is_blocked,
                rename_requested: self.hook_begun,
                becomes: self.becomes,
                block: self.block,
                validation: self.validation,
                drained_to: self.drained_to,
            });
        }
        let block = match (self.is_blocked, self.block_left) {
            (true, _) => SourceBlock::MayStand { since_ms: self.blocked_at_ms },
            (_, true) => SourceBlock::Left,
            _ => SourceBlock::None,
        };
        let cut_over = CutOver {
            block,
            blocked_before_ms: self.blocked_before_ms,
            hook_begun: self.hook_begun,
            reverse_job: self.reverse_job,
        };
        match self.leads_back_from {
            None => Job::Copy(cut_over),
            Some(from) => {
                let is_destination_blocked = self.is_destination_blocked;
                Job::WayBack(ReverseJob { from, is_destination_blocked, cut_over })
            }
        }
    }
}

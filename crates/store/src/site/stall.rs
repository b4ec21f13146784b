//! Handles a log that accepts no entries for now, because its disk is full.
//!
//! A site applies its own commits before the log has them, so a stalled log leaves rows at the site that must
//! not be shown. All other rows equal the log, and are read as usual. A request that would have to wait for
//! the log is refused: a write, and a read of a row whose last change is not logged. Entries that the site
//! wrote before it learned of the stall are in the queue to the log; their callers are told that they may
//! still take effect.

use super::copy::Copy;
use super::{Core, Held, Output};
use crate::key::KeyRange;
use crate::record::Write;
use crate::transaction::{Abort, Done};

impl Copy {
    /// Returns true if the log has the last change of each row of the copy in the range. `ordered` is the number of
    /// this site's last entry in the log.
    fn is_logged(&self, range: &KeyRange, ordered: u64) -> bool {
        self.last <= ordered
            || !self.unlogged_deletes.iter().any(|(key, _)| range.contains(key))
                && self.rows.range(range).all(|(_, row)| row.version <= self.logged)
    }

    /// Records that the log has this site's commit that gave the copy this version.
    pub(super) fn note_logged(&mut self, version: u64) {
        self.logged = version;
        if !self.unlogged_deletes.is_empty() {
            self.unlogged_deletes.retain(|(_, deleted)| *deleted > version);
        }
    }
}

impl Core {
    /// Records whether the log accepts no entries for now. When it stalls, the answers that wait for it are given: as
    /// errors if they show changes that are not logged.
    pub(super) fn stall(&mut self, is_stalled: bool) {
        self.is_stalled = is_stalled;
        if !is_stalled {
            return;
        }
        for Held { ticket, answer, reads, .. } in std::mem::take(&mut self.answers) {
            let answer = match (answer, reads) {
                (Ok(_), None) => Err(Abort::Unlogged),
                (Ok(_), Some(reads)) if !self.are_logged(&reads) => Err(Abort::LogFull),
                (Ok(answer), Some(_)) => Ok(Done { answer, committed: None }),
                (Err(abort), _) => Err(abort),
            };
            self.say(Output::Answer(ticket, self.known, answer));
        }
        self.stall_two_phase();
        self.attempt_all();
    }

    /// Returns the number of the last log entry of this site that the log must have before a read of the range in
    /// this copy is answered; 0 if there is none.
    pub(super) fn last_for(&self, copy: &Copy, range: &KeyRange) -> u64 {
        let is_logged = self.is_stalled && copy.is_logged(range, self.ordered);
        #[cfg(test)]
        let is_logged = is_logged || self.is_stalled && self.has(super::tests::Bug::UnloggedRead);
        if is_logged { 0 } else { copy.last }
    }

    /// Returns true if the log has the last change of each row in these ranges.
    fn are_logged(&self, ranges: &[KeyRange]) -> bool {
        ranges.iter().all(|range| {
            let mut copies =
                self.design.within(range).filter_map(|at| self.copies.get(&at.range.start));
            copies.all(|copy| self.last_for(copy, range) <= self.ordered)
        })
    }

    /// Records in the copies that the log has a commit of this site with these writes.
    pub(super) fn note_logged(&mut self, writes: &[Write]) {
        for write in writes {
            if let Some(copy) = self.copies.get_mut(&write.start) {
                copy.note_logged(write.version);
            }
        }
    }
}

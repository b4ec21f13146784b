//! Keeps the rows of a site's process when an epoch ends with its connection: the next epoch begins from these rows,
//! and receives only the log after them.
//!
//! A master runs ahead of the log by commits that the log may never have. Until the log contains a commit, the site
//! keeps the rows as they were before it, and restores them when its epoch ends. Then each copy equals the site's
//! prefix of the log, as at a site that never wrote.
//!
//! While a site is absent, the design can take partitions from it, but gives it none: a replica is added only in the
//! site's own epoch, after the site confirmed the rows. One such confirmation can still be under way to the log when
//! the connection ends. A site that meets it drops its kept rows, and begins with all rows.
//!
//! Invariant: the copies of a site that begins from kept rows are those that the design at its prefix gives it, as of
//! that prefix.

use super::Core;
use super::copy::Copy;
use crate::key::Key;
use crate::record::{Change, Epoch, Operator, Write};
use crate::rows::Row;

/// The state of one partition's written rows before a commit of this site.
struct PartitionUndo {
    /// The first key of the partition that the commit changed.
    start: Key,
    /// The version of the partition before the commit.
    version: u64,
    /// Each key that the commit wrote, with its row before the commit; `None` if it had none.
    rows: Vec<(Key, Option<Row>)>,
}

/// The state that restores the rows which one commit of this site changed.
pub(super) struct CommitUndo {
    /// The number of the commit's log entry in the site's epoch.
    number: u64,
    /// The state of each partition that the commit changed.
    partitions: Vec<PartitionUndo>,
}

impl Core {
    /// Saves the rows that the commit with log entry `number` is about to change, if the site is a subscriber. Only a
    /// site in a separate process outlives its connection to the log, so other sites need not restore rows.
    pub(super) fn record_undo(&mut self, number: u64, writes: &[Write]) {
        if !self.is_subscriber {
            return;
        }
        let before = |write: &Write| {
            let copy = &self.copies[&write.start];
            let row = |key: &Key| (key.clone(), copy.rows.get(key).cloned());
            let rows = write.rows.iter().map(|(key, _)| row(key)).collect();
            PartitionUndo { start: write.start.clone(), version: copy.version, rows }
        };
        let partitions = writes.iter().map(before).collect();
        self.undo.push_back(CommitUndo { number, partitions });
    }

    /// Drops the saved rows of commits that the log has.
    pub(super) fn forget_undo(&mut self) {
        while self.undo.front().is_some_and(|undo| undo.number <= self.ordered) {
            self.undo.pop_front();
        }
    }

    /// Returns true if a change of the design gives this site a replica, although the site began with kept rows and
    /// is not live: it then has no such rows.
    pub(super) fn lacks_granted_replica(&self, change: &Change) -> bool {
        let is_given =
            matches!(change.operator, Operator::AddReplica(site, _) if site == self.site);
        self.has_retained_rows && !self.is_live && is_given
    }

    /// Returns an observer with the site's copies as of its position in the log, after the end of its epoch; `None`
    /// if the site has read that it was declared dead, or if it is no subscriber.
    #[must_use]
    pub fn into_retained(mut self) -> Option<Self> {
        if self.is_over || !self.is_subscriber {
            return None;
        }
        #[cfg(test)]
        if self.has(super::tests::Bug::KeptAheadOfLog) {
            self.undo.clear();
        }
        while let Some(undo) = self.undo.pop_back() {
            for PartitionUndo { start, version, rows } in undo.partitions {
                let copy = self.copies.get_mut(&start)?;
                copy.version = version;
                for (key, row) in rows {
                    match row {
                        Some(row) => _ = copy.rows.insert(key, row),
                        None => _ = copy.rows.remove(&key),
                    }
                }
            }
        }
        let mut kept = Self::observer(self.design);
        // No epoch of any process is above it, so none ends it.
        (kept.site, kept.epoch, kept.known) = (self.site, Epoch(u64::MAX), self.known);
        kept.has_retained_rows = true;
        let settled = |copy: Copy| {
            let (logged, unlogged_deletes) = (copy.version, Vec::new());
            Copy { last: 0, logged, unlogged_deletes, ..copy }
        };
        let copies = std::mem::take(&mut self.copies).into_iter();
        kept.copies = copies.map(|(start, copy)| (start, settled(copy))).collect();
        kept.align_copies();
        #[cfg(test)]
        {
            kept.broken.bug = self.broken.bug;
        }
        Some(kept)
    }
}

//! The copies of partitions that a site has, and their changes as the log grows.
//!
//! A copy advances version by version: by its master's writes, and by changes of the
//! partition's design, in the order of the log. No version is left out.

use std::cell::Cell;
use std::hint::black_box;
use std::ops::Bound;
use std::sync::Arc;

use super::Core;
use crate::design::Partition;
use crate::key::{Key, KeyRange, Value};
use crate::record::{Change, Operator, Site, Write};
use crate::rows::{Row, Rows};
use crate::transaction::{ReadRows, Seen};

/// A site's copy of one partition.
#[derive(Clone)]
pub(super) struct Copy {
    /// The partition's range of keys.
    pub range: KeyRange,
    /// True if this site masters the partition.
    pub is_own: bool,
    /// The partition's rows at this site.
    pub rows: Rows,
    /// The version of the copy, which each commit to the partition and each change of its design increases.
    pub version: u64,
    /// The version of the copy after the last change of the partition's design.
    pub changed: u64,
    /// Number of transactions that read the copy here, counted from its installation.
    pub reads: Cell<u64>,
    /// The number of this epoch's last log entry by which this site wrote to the copy; 0 if there is none.
    pub last: u64,
    /// The version up to which the log has this site's writes to the copy.
    pub logged: u64,
    /// Keys of rows that this site deleted after version `logged`, each with the version of the deletion.
    pub unlogged_deletes: Vec<(Key, u64)>,
}

impl Copy {
    /// Returns site `site`'s copy of the partition with these rows, at the version that the design gives the
    /// partition.
    pub(super) fn new(partition: &Partition, site: Site, rows: Rows) -> Self {
        let (range, version) = (partition.range.clone(), partition.version);
        let is_own = partition.master == site;
        let (changed, logged, unlogged_deletes) = (version, version, Vec::new());
        let (reads, last) = (Cell::new(0), 0);
        Self { range, is_own, rows, version, changed, reads, last, logged, unlogged_deletes }
    }

    /// Applies a commit's writes to the copy, whose version must be the one before the commit.
    pub(super) fn apply(&mut self, write: &Write) {
        assert_eq!(self.version + 1, write.version, "a copy goes from version to version");
        self.version = write.version;
        for (key, update) in &write.rows {
            // Most updates do not need the old row.
            let old = if update.is_part() { self.rows.get(key) } else { None };
            match update.value(old) {
                Some(value) => {
                    self.rows.insert(key.clone(), Row { version: write.version, value });
                }
                None => _ = self.rows.remove(key),
            }
        }
    }
}

impl Core {
    /// Drops the copies that the design no longer places at this site, and updates the range of each other copy and
    /// whether the site masters it.
    pub(super) fn align_copies(&mut self) {
        #[cfg(test)]
        let is_kept = self.has(super::tests::Bug::GrantWithoutRelease);
        let (site, design) = (self.site, &self.design);
        self.copies.retain(|start, copy| {
            let Some(partition) = design.beginning_at(start) else { return false };
            let is_own = partition.master == site;
            #[cfg(test)]
            let is_own = is_own || is_kept && copy.is_own;
            (copy.range, copy.is_own) = (partition.range.clone(), is_own);
            partition.is_at(site)
        });
    }

    /// Returns the copy at this site that contains the key, or `None` if there is none.
    pub(super) fn copy_of(&self, key: &Key) -> Option<&Copy> {
        let (_, copy) = self.copies.range(..=key).next_back()?;
        copy.range.contains(key).then_some(copy)
    }

    /// Applies another master's writes to the copy here, or keeps them for the installation of a replica; does
    /// nothing if the site has neither.
    pub(super) fn replicate(&mut self, write: &Write) {
        if let Some(copy) = self.copies.get_mut(&write.start) {
            // An image's copies may be ahead of its prefix, by changes that the log has later.
            if self.is_live || copy.version < write.version {
                self.work[2] += write.rows.len() as u64;
                copy.apply(write);
            }
        } else if let Some(adoption) = self.installations.get_mut(&write.start) {
            adoption.news.push((write.version, Some(write.clone())));
        }
    }

    /// Applies a change of the design to the copy of the changed partition: its version, and a split or merge of its
    /// rows.
    pub(super) fn reshape(&mut self, change: &Change) {
        let start = &change.start;
        if !self.copies.contains_key(start) {
            return;
        }
        let mut swallowed = None;
        if change.operator == Operator::Merge {
            let behind = self.copies.range((Bound::Excluded(start), Bound::Unbounded)).next();
            let behind = behind.map(|(at, _)| at.clone()).expect("copies of both are where one is");
            swallowed = self.copies.remove(&behind);
        }
        let copy = self.copies.get_mut(start).expect("it is there");
        copy.version += 1;
        if let Some(behind) = swallowed {
            copy.version = copy.version.max(behind.version + 1);
            copy.last = copy.last.max(behind.last);
            copy.rows.append(behind.rows);
        }
        copy.changed = copy.version;
        if let Operator::Split(at) = &change.operator {
            let (range, rows) = (copy.range.clone(), copy.rows.split_off(at));
            // A partition whose design changes has no changes that are not logged.
            let (reads, unlogged_deletes) = (copy.reads.clone(), Vec::new());
            let behind = Copy { range, rows, reads, unlogged_deletes, ..*copy };
            self.copies.insert(at.clone(), behind);
        }
    }

    /// Advances the copies whose partitions were taken from a fenced site to the versions that the design gives these
    /// partitions.
    pub(super) fn inherit(&mut self) {
        for (start, copy) in &mut self.copies {
            if let Some(partition) = self.design.beginning_at(start)
                && partition.version > copy.version
            {
                (copy.version, copy.changed) = (partition.version, partition.version);
            }
        }
        self.notice_all();
    }
}

impl ReadRows for Core {
    fn get(&self, key: &Key) -> Option<Seen> {
        let row = self.copy_of(key)?.rows.get(key)?;
        Some(Seen { version: row.version, value: Arc::clone(&row.value) })
    }

    fn get_each(&self, keys: &[Key]) -> Vec<Option<Seen>> {
        let mut all = Vec::with_capacity(keys.len());
        let mut rest = keys;
        while let Some(first) = rest.first() {
            let Some(copy) = self.copy_of(first) else {
                all.push(None);
                rest = &rest[1..];
                continue;
            };
            let here = rest.iter().take_while(|key| copy.range.contains(key)).count();
            let (these, others) = rest.split_at(here);
            let rows = copy.rows.get_each(these);
            // The values are likely to be cache misses too; reading all counts first overlaps the waits for memory.
            black_box(
                rows.iter().flatten().map(|row| Arc::strong_count(&row.value)).sum::<usize>(),
            );
            let seen = |row: &Row| Seen { version: row.version, value: Arc::clone(&row.value) };
            all.extend(rows.into_iter().map(|row| row.map(seen)));
            rest = others;
        }
        all
    }

    fn visit(&self, range: &KeyRange, limit: usize, visit: &mut dyn FnMut(&Key, u64, &Value)) {
        let copies = self.design.within(range).filter_map(|at| self.copies.get(&at.range.start));
        let rows = copies.flat_map(|copy| copy.rows.range(range));
        rows.take(limit).for_each(|(key, row)| visit(key, row.version, &row.value));
    }
}

//! The database as of a prefix of the log, assembled from parts of all sites.
//!
//! At one position of the log every site takes snapshots of the partitions that it masters, which costs almost
//! nothing. A master may be ahead of that position, by commits that follow in the log. Its part is
//! valid once the log has them. A process that continues from the image skips the log entries that the
//! image contains already; it recognises them by their versions.
//!
//! The parts make up the database if each partition of the design at that position is in one of them.

use super::{Copy, Core};
use crate::design::Design;
use crate::key::Key;
use crate::record::{Epoch, Position};
use crate::rows::Rows;

/// One site's part of an image of the database: snapshots of the partitions that the site masters.
#[derive(Clone)]
pub struct Part {
    /// Position of the log as of which the snapshots were taken.
    pub known: Position,
    /// The store's design at that position; the same for all parts with the same position.
    pub design: Design,
    /// The snapshots of the partitions that the site masters.
    pub copies: Vec<Snapshot>,
    /// The epoch of the site when it took the part; 0 for a part that another process sent.
    epoch: Epoch,
    /// The number, in that epoch, of the site's last log entry when it took the part: the part is valid once the log
    /// has it.
    number: u64,
}

impl Part {
    /// Returns a part that a site in another process sent after the log had all its changes.
    #[must_use]
    pub fn given(known: Position, design: Design, copies: Vec<Snapshot>) -> Self {
        Self { known, design, copies, epoch: Epoch(0), number: 0 }
    }
}

/// A snapshot of the rows of a partition.
#[derive(Clone)]
pub struct Snapshot {
    /// The first key of the partition.
    pub start: Key,
    /// The version of the partition as of which the rows are.
    pub version: u64,
    /// The rows of the partition.
    pub rows: Rows,
}

impl Core {
    /// Takes snapshots of the partitions that this site masters, or returns `None` unless the site is live.
    #[must_use]
    pub fn part(&self) -> Option<Part> {
        let own = self.copies.values().filter(|copy| copy.is_own);
        let snapshot = |copy: &Copy| Snapshot {
            start: copy.range.start.clone(),
            version: copy.version,
            rows: copy.rows.clone(),
        };
        self.is_live.then(|| Part {
            known: self.known,
            design: self.design.clone(),
            copies: own.map(snapshot).collect(),
            epoch: self.epoch,
            number: self.written,
        })
    }

    /// Returns each copy's version and rows.
    #[cfg(test)]
    pub(crate) fn usage_of_all(&self) -> impl Iterator<Item = (u64, &Rows)> {
        self.copies.values().map(|copy| (copy.version, &copy.rows))
    }

    /// Returns whether the log has all changes in a part that this site took, or `None` if that will never be known
    /// because the site's epoch has ended.
    #[must_use]
    pub fn has_all_of(&self, part: &Part) -> Option<bool> {
        #[cfg(test)]
        if self.has(super::tests::Bug::ImageAheadOfLog) {
            return Some(true);
        }
        let is_same_life = self.is_live && self.epoch == part.epoch;
        is_same_life.then_some(part.number <= self.ordered)
    }

    /// Returns an observer of the database as of position `known`, whose design is `design`, from snapshots of all
    /// partitions of that design in key order.
    ///
    /// # Errors
    /// Returns the first key of a partition whose snapshot is missing, or of a snapshot that belongs to no partition.
    pub fn observer_of(
        known: Position,
        design: Design,
        snapshots: impl IntoIterator<Item = Snapshot>,
    ) -> Result<Self, Key> {
        let mut core = Self::observer(design);
        core.known = known;
        let mut snapshots = snapshots.into_iter();
        for (start, copy) in &mut core.copies {
            let snapshot = snapshots.next().filter(|snapshot| snapshot.start == *start);
            let Snapshot { version, rows, .. } = snapshot.ok_or_else(|| start.clone())?;
            (copy.version, copy.rows) = (version, rows);
        }
        match snapshots.next() {
            None => Ok(core),
            Some(snapshot) => Err(snapshot.start),
        }
    }
}

//! The database as of a prefix of the log, assembled from its sites' parts.
//!
//! At one position of the log every site takes snapshots of its mastered partitions, which costs almost
//! nothing. A master may be ahead of that position, by commits that the log has a little later. Its part is
//! valid once the log has them, and a process that continues from the image skips the log entries that the
//! image contains already; versions show which.
//!
//! The parts are complete if each partition of the design at that position is in one of them.

use super::{Copy, Core};
use crate::design::Design;
use crate::key::Key;
use crate::record::{Epoch, Position};
use crate::rows::Rows;

/// The partitions that one site masters.
#[derive(Clone)]
pub struct Part {
    /// The prefix of the log, and the design there.
    pub known: Position,
    /// The same for all parts of a prefix.
    pub design: Design,
    /// The partitions.
    pub copies: Vec<Snapshot>,
    epoch: Epoch,
    /// The log entry of its site that has the last of it.
    number: u64,
}

impl Part {
    /// A part that a site in another process gave, once the log had all of it.
    #[must_use]
    pub fn given(known: Position, design: Design, copies: Vec<Snapshot>) -> Self {
        Self { known, design, copies, epoch: Epoch(0), number: 0 }
    }
}

/// The rows of a partition.
#[derive(Clone)]
pub struct Snapshot {
    /// The start of its partition.
    pub start: Key,
    /// The version that the rows are of.
    pub version: u64,
    /// The rows.
    pub rows: Rows,
}

impl Core {
    /// The partitions that this site masters now; none of an observer.
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

    /// Its copies, in the order of the keys.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = Snapshot> {
        self.copies.iter().map(|(start, copy)| Snapshot {
            start: start.clone(),
            version: copy.version,
            rows: copy.rows.clone(),
        })
    }

    /// Each copy's version and rows.
    #[cfg(test)]
    pub(crate) fn usage_of_all(&self) -> impl Iterator<Item = (u64, &Rows)> {
        self.copies.values().map(|copy| (copy.version, &copy.rows))
    }

    /// True if the log has all of a part that this site gave; none if it never will.
    #[must_use]
    pub fn has_all_of(&self, part: &Part) -> Option<bool> {
        #[cfg(test)]
        if self.has(super::tests::Bug::ImageAheadOfLog) {
            return Some(true);
        }
        let is_same_life = self.is_live && self.epoch == part.epoch;
        is_same_life.then_some(part.number <= self.ordered)
    }

    /// An observer that has read a prefix of the log, from the rows of all partitions of the design
    /// there, in the order of their keys.
    ///
    /// # Errors
    /// The start of a partition whose rows are missing, or of rows that belong to no partition.
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

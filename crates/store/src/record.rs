//! Log entries: the commits of transactions, and changes of the design.
//!
//! The log is one order of *log entries* for all sites. The position of an entry is the commit timestamp of
//! its changes, so a snapshot of the database is a prefix of the log. An entry is in the log as a whole or
//! not at all, which makes a transaction over several partitions atomic.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::key::{Key, Value};

mod bytes;
mod update;

pub(crate) use bytes::Bytes as StoredValue;
pub(crate) use bytes::{pairs, value};
pub use update::{Part, Update};

/// A site, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Site(pub u16);

/// The position of a log entry, counted from 1; 0 is before all entries.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// The position before all entries.
    pub const START: Self = Self(0);
    /// The position of the first entry.
    pub const FIRST: Self = Self(1);
    /// A position after all entries that there can be.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns this position and all after it.
    pub fn onward(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }

    /// Returns the number of entries from this position up to `end`, exclusive; 0 if `end` is not after it.
    #[must_use]
    pub fn entries_to(self, end: Self) -> u64 {
        end.0.saturating_sub(self.0)
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(to)
    }
}

impl std::ops::Add<u64> for Position {
    type Output = Self;

    fn add(self, entries: u64) -> Self {
        Self(self.0 + entries)
    }
}

impl std::ops::AddAssign<u64> for Position {
    fn add_assign(&mut self, entries: u64) {
        self.0 += entries;
    }
}

impl std::ops::Sub<u64> for Position {
    type Output = Self;

    fn sub(self, entries: u64) -> Self {
        Self(self.0 - entries)
    }
}

impl std::ops::Sub for Position {
    type Output = u64;

    fn sub(self, before: Self) -> u64 {
        self.0 - before.0
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The site that wrote the entry, with the entry's number.
    pub by: Author,
    /// The content of the entry.
    pub body: Body,
}

impl LogEntry {
    /// True if the entry may change the design: it is no commit.
    #[must_use]
    pub fn is_of_design(&self) -> bool {
        !matches!(self.body, Body::Commit(_))
    }

    /// Returns an upper bound of the entry's size in the log, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        // A number takes one to ten bytes, depending on its value.
        const AUTHOR: usize = 3 + 10 + 10;
        const NUMBERS: usize = 32;
        const ROW: usize = 5;
        let row = |(key, update): &(Key, Update)| ROW + key.as_bytes().len() + update.bytes_max();
        let write = |write: &Write| {
            NUMBERS + write.start.as_bytes().len() + write.rows.iter().map(row).sum::<usize>()
        };
        let body = match &self.body {
            Body::Commit(writes) => writes.iter().map(write).sum(),
            Body::Change(Change { start, operator: Operator::Split(at) }) => {
                start.as_bytes().len() + at.as_bytes().len()
            }
            Body::Change(Change { start, .. }) => start.as_bytes().len(),
            Body::Join | Body::Fence => 0,
        };
        AUTHOR + NUMBERS + body
    }
}

/// An epoch of a site: one of its incarnations. Later ones are greater; 0 is that of a site that never began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// True if this is the epoch of a site that has begun.
    #[must_use]
    pub fn has_begun(self) -> bool {
        self.0 > 0
    }
}

/// The author of a log entry, and the entry's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The site that wrote the entry.
    pub site: Site,
    /// The site's epoch: entries of an epoch that was fenced are ignored.
    pub epoch: Epoch,
    /// The entry's number in this epoch, counted from 1. A fence has 0.
    pub number: u64,
}

/// The content of a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// The commit of a transaction: its writes, by partition.
    Commit(Vec<Write>),
    /// The master of a partition requests a change of its design, which takes effect here if it is possible.
    Change(Change),
    /// The site begins this epoch: later entries of earlier epochs are void.
    Join,
    /// The site is declared dead: later entries of this epoch are void, and other sites become masters of the
    /// partitions of which they have copies.
    Fence,
}

/// The writes of a transaction to one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The first key of the partition.
    pub start: Key,
    /// The partition's version after the commit: one more than before.
    pub version: u64,
    /// The written keys, each with the update of its row.
    pub rows: Vec<(Key, Update)>,
}

/// A change of the design (§3.1), by the master of the partition that begins at `start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The first key of the partition.
    pub start: Key,
    /// The kind of change.
    pub operator: Operator,
}

/// The kinds of changes of a design: the five of the paper, and pins. New variants are added at the end, so that
/// older logs can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Splits the partition in two; the second one begins at this key.
    Split(Key),
    /// Merges the partition with the next one.
    Merge,
    /// Adds a replica at a site, which installed it in this epoch.
    AddReplica(Site, Epoch),
    /// Removes a site's replica.
    RemoveReplica(Site),
    /// Makes a site with a replica the master; the former master has a replica.
    Remaster(Site),
    /// Makes a site with a copy the permanent master; the former master has a replica.
    Pin(Site),
    /// Removes the pin: the master may change again.
    Unpin,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "site {}", self.0)
    }
}

/// The row of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The version of the partition after the commit that wrote the row (§4.2: v(d)).
    pub version: u64,
    /// The value of the row.
    pub value: Value,
}

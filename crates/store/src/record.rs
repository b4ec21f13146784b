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

/// A site, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Site(pub u16);

/// A log entry's place in the log, from 1 on; 0 is before all of them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// Before all entries.
    pub const START: Self = Self(0);
    /// The first entry.
    pub const FIRST: Self = Self(1);
    /// Behind all entries that there can be.
    pub const MAX: Self = Self(u64::MAX);

    /// This position and all behind it.
    pub fn onward(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }

    /// Number of entries from this position up to `end`, exclusive; 0 if it is not before.
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

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Its author.
    pub by: Author,
    /// Its content.
    pub body: Body,
}

impl LogEntry {
    /// True if it may change the design: it is no commit.
    #[must_use]
    pub fn is_of_design(&self) -> bool {
        !matches!(self.body, Body::Commit(_))
    }

    /// No fewer bytes than it has in the log.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        // Numbers have from one to ten bytes, by their size.
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
    /// True if the site ever began.
    #[must_use]
    pub fn has_begun(self) -> bool {
        self.0 > 0
    }
}

/// The author of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The site.
    pub site: Site,
    /// The epoch of the site: entries of an epoch that was fenced are ignored.
    pub epoch: Epoch,
    /// Counts the log entries of this epoch, from 1 on.
    pub number: u64,
}

/// The content of a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A transaction: its writes, by partition.
    Commit(Vec<Write>),
    /// The master of a partition wants its design changed: it is, here, if it can be.
    Change(Change),
    /// The site begins this epoch: later entries of earlier epochs are void.
    Join,
    /// Another process ends the site here: nothing of this epoch counts from here on, and
    /// others master what they have copies of.
    Fence,
}

/// The writes of a transaction to a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The first key of the partition.
    pub start: Key,
    /// The partition's version from here on: one more than before.
    pub version: u64,
    /// The update of each row.
    pub rows: Vec<(Key, Update)>,
}

/// A change of the design (§3.1), by the master of the partition that begins at `start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The first key of the partition.
    pub start: Key,
    /// The change.
    pub operator: Operator,
}

/// The changes of a design: the five of the paper, and pins. New ones come last, so that older logs are
/// read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Two partitions instead of one; the second begins here.
    Split(Key),
    /// One partition instead of this one and the next.
    Merge,
    /// One more site has a copy, which it made in this epoch.
    AddReplica(Site, Epoch),
    /// One site less has one.
    RemoveReplica(Site),
    /// A replica becomes the master, and the master a replica.
    Remaster(Site),
    /// A site that has a copy is the master from here on, and stays it; the former master has a replica.
    Pin(Site),
    /// The master may change again.
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
    /// The version that its partition got when it was written (§4.2: v(d)).
    pub version: u64,
    /// The written value.
    pub value: Value,
}

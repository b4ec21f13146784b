//! Log entries: the commits of transactions, and changes of the design.
//!
//! All sites share one ordered log of *log entries*. The position of an entry is the commit timestamp of its changes,
//! so a snapshot of the database is a prefix of the log. An entry is in the log as a whole or not at all, which makes
//! a transaction over several partitions atomic.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::key::{Key, Value};

mod bytes;
mod update;

pub(crate) use bytes::Bytes as StoredValue;
pub(crate) use bytes::{pairs, value};
pub use update::{Part, Update};

/// The number that identifies a site: a thread or process of the store that has copies of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Site(pub u16);

/// The position of an entry in the log of all sites, counted from 1; 0 is the position before all entries. As a
/// prefix of the log, it stands for all entries up to and including it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// The position 0, before all log entries.
    pub const START: Self = Self(0);
    /// The position of the first log entry.
    pub const FIRST: Self = Self(1);
    /// A position after all log entries that there can be.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns an iterator of this position and all positions after it.
    pub fn onward(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }

    /// Returns the number of log entries from this position up to `end`, exclusive; 0 if `end` is not after this
    /// position.
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

/// An entry of the log: the commit of a transaction, a change of the design, or the beginning or end of a site's
/// epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The site and epoch that wrote the log entry, and the entry's number in that epoch.
    pub by: Author,
    /// The kind of the log entry, and its data.
    pub body: Body,
}

impl LogEntry {
    /// Returns true if the log entry may change the design: it is no commit.
    #[must_use]
    pub fn is_of_design(&self) -> bool {
        !matches!(self.body, Body::Commit(_) | Body::DistributedCommit(_))
    }

    /// Returns an upper bound of the log entry's encoded size in the log, in bytes.
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
            Body::DistributedCommit(DistributedCommit { participants, writes, .. }) => {
                participants.len() * AUTHOR + writes.iter().map(write).sum::<usize>()
            }
            Body::Change(Change { start, operator: Operator::Split(at) }) => {
                start.as_bytes().len() + at.as_bytes().len()
            }
            Body::Change(Change { start, .. }) => start.as_bytes().len(),
            Body::Join | Body::Fence => 0,
        };
        AUTHOR + NUMBERS + body
    }
}

/// The number of one incarnation of a site. A later incarnation has a greater number; 0 is the epoch of a site that
/// never began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns true if this is the epoch of a site that has begun, that is, not 0.
    #[must_use]
    pub fn has_begun(self) -> bool {
        self.0 > 0
    }
}

/// The author of a log entry, and the entry's number in the author's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The site that wrote the log entry; for a fence, the site that is declared dead.
    pub site: Site,
    /// The epoch of that site in which it wrote the log entry; for a fence, the epoch that ends.
    pub epoch: Epoch,
    /// The log entry's number among those of this site and epoch, counted from 1; 0 for a fence.
    pub number: u64,
}

/// The content of a log entry. New variants are added at the end, so that older logs can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// The commit of a transaction: its writes, one element per written partition.
    Commit(Vec<Write>),
    /// A change of the design that the master of the partition requests. It takes effect at the position of this log
    /// entry, if it is possible there.
    Change(Change),
    /// The author begins its epoch: log entries of its earlier epochs at later positions are void.
    Join,
    /// The site in [`Author`] is declared dead: later log entries of its epoch are void, and other sites become
    /// masters of the partitions of which they have copies.
    Fence,
    /// The commit of a transaction that was executed by two-phase commit.
    DistributedCommit(DistributedCommit),
}

/// The commit of a transaction that several sites executed by two-phase commit. The author of the log entry is the
/// transaction's coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DistributedCommit {
    /// The number of the transaction among those that the coordinator has begun in its epoch.
    pub number: u64,
    /// The sites that hold locks for the transaction, each with the epoch in which it granted them. If one of these
    /// epochs has ended at the position of the log entry, the transaction is aborted there.
    pub participants: Vec<(Site, Epoch)>,
    /// The transaction's writes, one element per written partition.
    pub writes: Vec<Write>,
}

/// The writes of a transaction to one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The first key of the partition, which identifies it.
    pub start: Key,
    /// The partition's version after the commit: the version before it plus 1.
    pub version: u64,
    /// The keys of the written rows, each with the update of its row.
    pub rows: Vec<(Key, Update)>,
}

/// A change of one partition's bounds, master, replicas or pin (§3.1), which that partition's master writes into the
/// log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The first key of the partition, which identifies it.
    pub start: Key,
    /// The kind of change, with its parameters.
    pub operator: Operator,
}

/// The kinds of changes of the design: the five of the paper, and pins. New variants are added at the end, so that
/// older logs can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Splits the partition in two; the second part begins at this key.
    Split(Key),
    /// Merges the partition with the next one in key order.
    Merge,
    /// Records that the site has a replica, which it installed in this epoch of its own.
    AddReplica(Site, Epoch),
    /// Removes the replica at this site.
    RemoveReplica(Site),
    /// Makes this site, which has a replica, the master; the former master keeps a replica.
    Remaster(Site),
    /// Pins the partition to this site, which has a copy and becomes the master if it is not; a former master keeps a
    /// replica.
    Pin(Site),
    /// Removes the partition's pin: any site may become the master again.
    Unpin,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "site {}", self.0)
    }
}

/// A row: the value of a key, with the version at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The version that the row's partition had after the commit that wrote the row (§4.2: v(d)).
    pub version: u64,
    /// The value of the row, without its key.
    pub value: Value,
}

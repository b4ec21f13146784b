//! Transactions: their declared keys, their procedures, and their outcomes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::key::{Key, KeyRange, Value};
use crate::output_buffer::OutputBuffer;
use crate::record::{Position, Site};
use crate::reply::Reply;

/// The most that a transaction writes, in bytes of keys and values.
pub const WRITTEN_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A transaction as it comes to a site.
pub struct Transaction {
    /// Its reads, besides its writes.
    pub reads: Vec<KeyRange>,
    /// The keys that it may write and read.
    pub writes: Vec<Key>,
    /// The prefix of the log that its session has seen: it sees no less.
    pub session: Position,
    /// The client: one that does not wait for an answer before it sends the next transaction to the
    /// same site has them done in the order in which they came there.
    pub client: Option<u64>,
    /// True if it came back from a site that was behind the position of its session for too long: it is to
    /// run where the rows that it reads are mastered, if one site masters all of them (MorphoSys, §4.3).
    pub at_masters: bool,
    /// The output buffer of its client, if that is a connection.
    pub output: Option<Arc<OutputBuffer>>,
    /// Its procedure.
    pub procedure: Box<dyn Procedure>,
}

impl Transaction {
    /// Sorts what it declares, and joins ranges that overlap or touch, so that each key is looked for
    /// in one place.
    pub(crate) fn put_in_order(&mut self) {
        if !self.writes.is_sorted_by(|one, next| one < next) {
            self.writes.sort_unstable();
            self.writes.dedup();
        }
        self.reads.retain(|range| !range.is_empty());
        if self.reads.len() > 1 {
            self.reads.sort_unstable_by(|one, other| one.start.cmp(&other.start));
            self.reads.dedup_by(|next, one| one.join(next));
        }
    }
}

/// The range among sorted ones, which do not touch each other, that has a key.
fn range_of<'a>(ranges: &'a [KeyRange], key: &Key) -> Option<&'a KeyRange> {
    let behind = ranges.partition_point(|range| range.start <= *key);
    ranges[..behind].last().filter(|range| range.contains(key))
}

/// A transaction's effect on rows.
pub trait Procedure: Send {
    /// Reads, writes and answers. It may be run again if it could not begin, never after it began.
    ///
    /// # Errors
    /// The reason why nothing of it shall happen.
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort>;

    /// The bytes of which another process makes the same ([`crate::resp::received`]); none of one that
    /// can be run in this process only.
    fn encode(&self) -> Option<Vec<u8>> {
        None
    }
}

impl<F> Procedure for F
where
    F: FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send,
{
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort> {
        self(view).map(Reply::from)
    }
}

/// The reason why a transaction did nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Abort {
    /// The procedure's own reason.
    #[error("{0}")]
    Refused(String),
    /// It touched what it had not declared.
    #[error("{0:?} is not among the declared keys")]
    Undeclared(Key),
    /// The site does not master the written rows, or has no copy of the rows that are read.
    #[error("this site has not all of it")]
    Elsewhere,
    /// A precondition did not come in time.
    #[error("what the session has seen, or a lock, did not come within the bound")]
    Late,
    /// Too many others wait.
    #[error("too many transactions wait at this site")]
    Busy,
    /// It writes more than a transaction may.
    #[error("{0} bytes are too many for one transaction: at most {WRITTEN_BYTES_MAX}")]
    TooLarge(usize),
    /// Partitions that it writes are to be mastered by two sites.
    #[error(
        "{0:?} is pinned to {1} and {2:?} to {3}: no transaction writes both until one is unpinned"
    )]
    PinnedApart(Key, Site, Key, Site),
    /// The log's disk is full, and the transaction writes, or reads rows that are not logged yet.
    #[error("the log's disk is full")]
    LogFull,
    /// It was written when the log's disk became full: it is logged once there is space, if the process
    /// lives until then.
    #[error("the log's disk became full before it was logged")]
    Unlogged,
    /// The site was given up for dead before the log had the transaction.
    #[error("the site was given up for dead")]
    Deposed,
}

/// The outcome of a transaction.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The reply of its procedure.
    pub answer: Reply,
    /// Its position in the log, if it wrote anything.
    pub committed: Option<Position>,
}

/// A row as a transaction reads it: its value, and the version at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The version of the row's partition then; 0 for what the transaction itself wrote.
    pub version: u64,
    /// The value.
    pub value: Value,
}

/// The rows as a transaction sees them: one state of the database, and what it wrote itself.
pub struct View<'a> {
    pub(crate) rows: &'a dyn ReadRows,
    pub(crate) reads: &'a [KeyRange],
    pub(crate) writes: &'a [Key],
    pub(crate) written: BTreeMap<Key, Option<Value>>,
    /// Rows that were read.
    pub(crate) rows_read: Cell<u32>,
    /// True if it did nothing, because a row that it had read before was changed meanwhile.
    pub(crate) is_stale: Cell<bool>,
}

/// The source of a view's rows.
pub(crate) trait ReadRows {
    fn get(&self, key: &Key) -> Option<Seen>;
    /// As [`Self::get`] of each.
    fn get_each(&self, keys: &[Key]) -> Vec<Option<Seen>> {
        keys.iter().map(|key| self.get(key)).collect()
    }
    /// The first rows of a range, at most so many.
    fn range(&self, range: &KeyRange, limit: usize) -> Vec<(Key, Seen)>;
}

impl<'a> View<'a> {
    /// Of rows that are declared, with nothing written.
    pub(crate) fn new(rows: &'a dyn ReadRows, reads: &'a [KeyRange], writes: &'a [Key]) -> Self {
        let (rows_read, is_stale) = (Cell::new(0), Cell::new(false));
        Self { rows, reads, writes, written: BTreeMap::new(), rows_read, is_stale }
    }

    fn count(&self, rows: usize) {
        self.rows_read.set(self.rows_read.get().saturating_add(rows as u32));
    }
}

impl View<'_> {
    /// Reads a row.
    ///
    /// # Errors
    /// Returns an error if the key was not declared.
    pub fn get(&self, key: &Key) -> Result<Option<Seen>, Abort> {
        if let Some(own) = self.written.get(key) {
            return Ok(own.clone().map(|value| Seen { version: 0, value }));
        }
        if !self.may_write(key) && range_of(self.reads, key).is_none() {
            return Err(Abort::Undeclared(key.clone()));
        }
        self.count(1);
        Ok(self.rows.get(key))
    }

    /// Reads rows, which together takes less than one after the other.
    ///
    /// # Errors
    /// Returns an error if a key was not declared.
    pub fn get_each(&self, keys: &[Key]) -> Result<Vec<Option<Seen>>, Abort> {
        if !self.written.is_empty() {
            return keys.iter().map(|key| self.get(key)).collect();
        }
        let is_declared = |key: &&Key| self.may_write(key) || range_of(self.reads, key).is_some();
        match keys.iter().find(|key| !is_declared(key)) {
            Some(key) => Err(Abort::Undeclared(key.clone())),
            None => {
                self.count(keys.len());
                Ok(self.rows.get_each(keys))
            }
        }
    }

    /// Reads the first rows of a range, at most so many, in the order of their keys.
    ///
    /// # Errors
    /// Returns an error if the range was not declared as a whole.
    pub fn range(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Seen)>, Abort> {
        let declared = range_of(self.reads, &range.start);
        if !range.is_empty() && !declared.is_some_and(|declared| declared.covers(range)) {
            return Err(Abort::Undeclared(range.start.clone()));
        }
        // Rows deleted here make room for as many more.
        let deleted = self.written.values().filter(|value| value.is_none()).count();
        let found = self.rows.range(range, limit.saturating_add(deleted));
        self.count(found.len());
        let mut rows: BTreeMap<Key, Seen> = found.into_iter().collect();
        for (key, value) in self.written.iter().filter(|(key, _)| range.contains(key)) {
            match value {
                Some(value) => {
                    rows.insert(key.clone(), Seen { version: 0, value: Arc::clone(value) });
                }
                None => _ = rows.remove(key),
            }
        }
        Ok(rows.into_iter().take(limit).collect())
    }

    /// Writes a row.
    ///
    /// # Errors
    /// Returns an error if the key was not declared as written.
    pub fn put(&mut self, key: &Key, value: Value) -> Result<(), Abort> {
        self.write(key, Some(value))
    }

    /// Deletes a row, whether or not it is there.
    ///
    /// # Errors
    /// Returns an error if the key was not declared as written.
    pub fn delete(&mut self, key: &Key) -> Result<(), Abort> {
        self.write(key, None)
    }

    fn may_write(&self, key: &Key) -> bool {
        self.writes.binary_search(key).is_ok()
    }

    /// Bytes of what it wrote.
    pub(crate) fn written_bytes(&self) -> usize {
        let bytes = |(key, value): (&Key, &Option<Value>)| {
            key.as_bytes().len() + value.as_ref().map_or(0, |value| value.len())
        };
        self.written.iter().map(bytes).sum()
    }

    fn write(&mut self, key: &Key, value: Option<Value>) -> Result<(), Abort> {
        if !self.may_write(key) {
            return Err(Abort::Undeclared(key.clone()));
        }
        self.written.insert(key.clone(), value);
        Ok(())
    }
}

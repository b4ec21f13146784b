//! Transactions: their declared keys, their procedures, and their outcomes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::key::{Key, KeyRange, Value};
use crate::output_buffer::OutputBuffer;
use crate::record::{Position, Site};
use crate::reply::Reply;

/// Maximum size of all writes of one transaction together, in bytes of their keys and values.
pub const WRITTEN_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A transaction as a site receives it: its declared keys, its procedure, and the state of its client's session.
pub struct Transaction {
    /// The ranges of keys that the transaction may read, in addition to `writes`.
    pub reads: Vec<KeyRange>,
    /// The keys that the transaction may write and read.
    pub writes: Vec<Key>,
    /// The last log position that the client's session has seen: the transaction must see all log entries up to
    /// there.
    pub session: Position,
    /// The number of the client, if order matters to it: if the client sends its next transaction to the same site
    /// before the reply, the site executes the two in order of arrival.
    pub client: Option<u64>,
    /// True if another site returned the transaction because that site did not reach the position `session` in time.
    /// The router then runs the transaction where the rows that it reads are mastered, if one site masters all of
    /// them (MorphoSys, §4.3).
    pub at_masters: bool,
    /// True if the transaction is executed by two-phase commit where its site cannot run it alone. Such a transaction
    /// has no `client`.
    pub is_distributed: bool,
    /// The output buffer to which the reply is charged; `None` if the client is not a connection with one.
    pub output: Option<Arc<OutputBuffer>>,
    /// The code of the transaction, which reads and writes the declared rows and returns the reply.
    pub procedure: Box<dyn Procedure>,
}

impl Transaction {
    /// Sorts the declared keys and ranges, removes duplicate keys, and joins ranges that overlap or touch, so that
    /// each key is in one range at most.
    pub(crate) fn normalize(&mut self) {
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

/// Returns the one of `ranges` that contains the key, or `None`. The ranges must be sorted and must not touch.
fn range_of<'a>(ranges: &'a [KeyRange], key: &Key) -> Option<&'a KeyRange> {
    let behind = ranges.partition_point(|range| range.start <= *key);
    ranges[..behind].last().filter(|range| range.contains(key))
}

/// The code of a transaction, which reads and writes rows.
pub trait Procedure: Send {
    /// Reads and writes rows through `view`, and returns the reply. A site may call the method again if the
    /// transaction could not begin, never after it began.
    ///
    /// # Errors
    /// Returns the reason why the transaction aborts: none of its writes takes effect.
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort>;

    /// Encodes the procedure for another process, which decodes it by [`crate::resp::decode()`]. Returns `None` if
    /// the procedure can run in this process only.
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

/// The reason why the partitions that a site masters cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// No process serves the site, and the log has the fence of the site's epoch.
    Down,
    /// The site's process is connected again, and still receives its rows.
    Receiving,
    /// No process has started as this site yet, or none has connected to this router.
    NotStarted,
    /// The site's process is not connected, and has not been declared dead yet.
    Disconnected,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "is down",
            Self::Receiving => "is back and still receives its rows",
            Self::NotStarted => "has not connected yet",
            Self::Disconnected => "is not connected",
        })
    }
}

/// The reason why a transaction, or a change of the design, had no effect, or why its outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Abort {
    /// The procedure aborted the transaction, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The transaction used this key without having declared it.
    #[error("{0:?} is not among the declared keys")]
    Undeclared(Key),
    /// The site does not master all written rows, or has no copy of some rows that are read.
    #[error("this site does not have all keys of the transaction")]
    Elsewhere,
    /// The request did not begin in time: the site waited for the log position of the session, or for a lock.
    #[error("timed out waiting for the log position of the session, or for a lock")]
    Late,
    /// Too many transactions wait at the site, or too many of the site's log entries are not in the log yet.
    #[error("too many transactions wait at this site")]
    Busy,
    /// The transaction writes this many bytes, more than [`WRITTEN_BYTES_MAX`].
    #[error("{0} bytes are too many for one transaction: at most {WRITTEN_BYTES_MAX}")]
    TooLarge(usize),
    /// The transaction writes two partitions that are pinned to different sites. The fields are a key of the first
    /// partition and its site, and a key of the second one and its site.
    #[error(
        "{0:?} is pinned to {1} and {2:?} to {3}: no transaction writes both until one is unpinned"
    )]
    PinnedApart(Key, Site, Key, Site),
    /// The log's disk is full, and the transaction writes, or reads rows whose last change is not in the log yet.
    #[error("the log's disk is full")]
    LogFull,
    /// The log's disk became full after the transaction had written its rows. The transaction is logged once there is
    /// space, if the process lives until then.
    #[error("the log's disk became full before it was logged")]
    Unlogged,
    /// The site was declared dead before it saw the transaction in the log: the outcome is unknown.
    #[error("the site was declared dead")]
    Deposed,
    /// The site that masters a needed partition is not available, and no other site has a copy. The fields are that
    /// site, the first key of the partition, and the reason.
    #[error("{0} {2}, and no other site has a copy of the keys from {start} on", start = from(.1))]
    Down(Site, Key, Absence),
    /// The transaction puts rows, and the rows in the site's process exceed the limit on memory.
    #[error("command not allowed when used memory > 'maxmemory'.")]
    OutOfMemory,
}

/// Formats the first key of a partition as `imago store design` does: `(first)` for the least key.
fn from(start: &Key) -> String {
    if *start == Key::least() { "(first)".to_owned() } else { start.to_string() }
}

/// The outcome of a transaction that was not aborted.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The reply that the procedure returned.
    pub answer: Reply,
    /// The position of the transaction's commit in the log; `None` if it wrote nothing.
    pub committed: Option<Position>,
}

/// A row as a transaction reads it: its value, and the version of its partition at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The version that the row's partition had after the commit that wrote the row; 0 if the transaction itself
    /// wrote it.
    pub version: u64,
    /// The row's value.
    pub value: Value,
}

/// The rows as a transaction sees them: one snapshot of the database, and the transaction's own writes.
pub struct View<'a> {
    /// The rows of the snapshot.
    pub(crate) rows: &'a dyn ReadRows,
    /// The ranges that the transaction declared as read: sorted, without overlaps.
    pub(crate) reads: &'a [KeyRange],
    /// The keys that the transaction declared as written, sorted.
    pub(crate) writes: &'a [Key],
    /// The rows that the transaction has written so far; `None` for a deleted row.
    pub(crate) written: BTreeMap<Key, Option<Value>>,
    /// Number of rows that the transaction has looked up or found in ranges so far; its own writes are not counted by
    /// [`View::get`].
    pub(crate) rows_read: Cell<u32>,
    /// True if the transaction did nothing because a row that its client watches had changed.
    pub(crate) is_stale: Cell<bool>,
}

/// The snapshot from which a [`View`] reads rows.
pub(crate) trait ReadRows {
    /// Returns the row of the key, or `None` if there is none.
    fn get(&self, key: &Key) -> Option<Seen>;
    /// Returns the row of each key, in the order of `keys`, as [`Self::get`] does.
    fn get_each(&self, keys: &[Key]) -> Vec<Option<Seen>> {
        keys.iter().map(|key| self.get(key)).collect()
    }
    /// Calls `visit` with the key, version and value of the first rows of the range, at most `limit`, in key order.
    fn visit(&self, range: &KeyRange, limit: usize, visit: &mut dyn FnMut(&Key, u64, &Value));
}

impl<'a> View<'a> {
    /// Returns a view of the snapshot `rows` for a transaction that declared these reads and writes, with nothing
    /// written.
    pub(crate) fn new(rows: &'a dyn ReadRows, reads: &'a [KeyRange], writes: &'a [Key]) -> Self {
        let (rows_read, is_stale) = (Cell::new(0), Cell::new(false));
        Self { rows, reads, writes, written: BTreeMap::new(), rows_read, is_stale }
    }

    /// Adds to the number of rows that were read.
    fn count(&self, rows: usize) {
        self.rows_read.set(self.rows_read.get().saturating_add(rows as u32));
    }
}

impl View<'_> {
    /// Reads the row of the key, or `None` if there is none. The transaction's own write is seen.
    ///
    /// # Errors
    /// Returns [`Abort::Undeclared`] if the transaction did not declare the key.
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

    /// Reads the rows of several keys, in the order of `keys`; this takes less time than reading them one by one.
    ///
    /// # Errors
    /// Returns [`Abort::Undeclared`] if the transaction did not declare one of the keys.
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

    /// Reads the first rows of the range, at most `limit`, in key order. The transaction's own writes are seen.
    ///
    /// # Errors
    /// Returns [`Abort::Undeclared`] if no single declared range contains the whole range.
    pub fn range(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Seen)>, Abort> {
        self.check_declared(range)?;
        let mut found = Vec::new();
        let mut add = |key: &Key, version, value: &Value| {
            found.push((key.clone(), Seen { version, value: Arc::clone(value) }));
        };
        if !self.has_written_in(range) {
            self.rows.visit(range, limit, &mut add);
            self.count(found.len());
            return Ok(found);
        }
        // As many more rows are read as the transaction has deleted.
        let deleted = self.written.values().filter(|value| value.is_none()).count();
        self.rows.visit(range, limit.saturating_add(deleted), &mut add);
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

    /// Calls `visit` with the key and the value of each row of the range, in key order. The transaction's own writes are
    /// seen. Unlike [`View::range`] it copies no keys, and writes to no reference counts, which the sites' threads share.
    ///
    /// # Errors
    /// As [`View::range`].
    pub fn visit(&self, range: &KeyRange, visit: &mut dyn FnMut(&Key, &[u8])) -> Result<(), Abort> {
        if self.has_written_in(range) {
            let rows = self.range(range, usize::MAX)?;
            rows.iter().for_each(|(key, seen)| visit(key, &seen.value));
            return Ok(());
        }
        self.check_declared(range)?;
        let mut rows = 0;
        self.rows.visit(range, usize::MAX, &mut |key, _, value| {
            rows += 1;
            visit(key, value);
        });
        self.count(rows);
        Ok(())
    }

    /// Returns [`Abort::Undeclared`] if no single declared range contains the whole range.
    fn check_declared(&self, range: &KeyRange) -> Result<(), Abort> {
        let declared = range_of(self.reads, &range.start);
        if range.is_empty() || declared.is_some_and(|declared| declared.covers(range)) {
            return Ok(());
        }
        Err(Abort::Undeclared(range.start.clone()))
    }

    fn has_written_in(&self, range: &KeyRange) -> bool {
        self.written.keys().any(|key| range.contains(key))
    }

    /// Sets the value of the key's row, whether or not the row exists.
    ///
    /// # Errors
    /// Returns [`Abort::Undeclared`] if the transaction did not declare the key as written.
    pub fn put(&mut self, key: &Key, value: Value) -> Result<(), Abort> {
        self.write(key, Some(value))
    }

    /// Deletes the key's row, whether or not the row exists.
    ///
    /// # Errors
    /// Returns [`Abort::Undeclared`] if the transaction did not declare the key as written.
    pub fn delete(&mut self, key: &Key) -> Result<(), Abort> {
        self.write(key, None)
    }

    /// Returns true if the key was declared as written.
    fn may_write(&self, key: &Key) -> bool {
        self.writes.binary_search(key).is_ok()
    }

    /// Returns the size of the keys and values that the transaction has written so far, in bytes; a deleted row
    /// counts its key.
    pub(crate) fn written_bytes(&self) -> usize {
        let bytes = |(key, value): (&Key, &Option<Value>)| {
            key.as_bytes().len() + value.as_ref().map_or(0, |value| value.len())
        };
        self.written.iter().map(bytes).sum()
    }

    /// Records the write of a row; `None` deletes the row.
    fn write(&mut self, key: &Key, value: Option<Value>) -> Result<(), Abort> {
        if !self.may_write(key) {
            return Err(Abort::Undeclared(key.clone()));
        }
        self.written.insert(key.clone(), value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::Table;

    /// A snapshot of rows whose values are equal to their versions.
    struct Snapshot(BTreeMap<Key, u64>);

    impl ReadRows for Snapshot {
        fn get(&self, key: &Key) -> Option<Seen> {
            self.0.get(key).map(|version| seen(*version))
        }

        fn visit(&self, range: &KeyRange, limit: usize, visit: &mut dyn FnMut(&Key, u64, &Value)) {
            let within = self.0.iter().filter(|(key, _)| range.contains(key)).take(limit);
            within.for_each(|(key, version)| visit(key, *version, &seen(*version).value));
        }
    }

    fn seen(version: u64) -> Seen {
        Seen { version, value: version.to_string().into_bytes().into() }
    }

    fn key(number: u16) -> Key {
        Key::new(Table(7), format!("order:{number:05}").as_bytes())
    }

    proptest! {
        #[test]
        fn a_scan_sees_the_snapshot_and_the_transactions_own_writes(
            rows in prop::collection::btree_map(0..60_u16, 1..1_000_u64, 0..40),
            written in prop::collection::btree_map(0..60_u16, prop::option::of(1..1_000_u64), 0..8),
            from in 0..60_u16, many in 0..60_u16, limit in 0..50_usize,
        ) {
            let snapshot = Snapshot(rows.iter().map(|(number, row)| (key(*number), *row)).collect());
            let writes: Vec<Key> = written.keys().map(|number| key(*number)).collect();
            let reads = [KeyRange { start: key(0), end: None }];
            let mut view = View::new(&snapshot, &reads, &writes);
            let mut expected: BTreeMap<Key, Value> =
                rows.iter().map(|(number, row)| (key(*number), seen(*row).value)).collect();
            for (number, value) in &written {
                match value.map(|value| seen(value).value) {
                    Some(value) => {
                        view.put(&key(*number), Arc::clone(&value)).unwrap();
                        expected.insert(key(*number), value);
                    }
                    None => {
                        view.delete(&key(*number)).unwrap();
                        expected.remove(&key(*number));
                    }
                }
            }
            let range = KeyRange { start: key(from), end: Some(key(from + many)) };
            expected.retain(|key, _| range.contains(key));
            let mut visited = Vec::new();
            view.visit(&range, &mut |key, value| visited.push((key.clone(), Value::from(value))))
                .unwrap();
            let all: Vec<(Key, Value)> = expected.clone().into_iter().collect();
            prop_assert_eq!(visited, all);
            let found = view.range(&range, limit).unwrap();
            let found: Vec<(Key, Value)> = found.into_iter().map(|(key, seen)| (key, seen.value)).collect();
            prop_assert_eq!(found, expected.into_iter().take(limit).collect::<Vec<_>>());
        }
    }
}

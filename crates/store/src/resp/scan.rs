//! SCAN lists the keys of a database in order, some at a time. IMAGO.RANGE lists the rows between two keys in the
//! same way, and returns the key at which to continue.
//!
//! Clients of SCAN treat a cursor as a number and send it back, but it stands for the key at which to continue. So
//! each number refers to a key in a table that all connections share and that evicts the oldest entries: an abandoned
//! scan does not use memory forever. A client that did not receive a reply may send the same number again.
//!
//! A key that exists throughout a scan is listed once; one that is created or deleted meanwhile is listed at
//! most once. Each step is a snapshot of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::answer::{Answer, NOT_AN_INTEGER, Protocol, SYNTAX};
use super::codec::{self, Kind};
use super::keys::key;
use super::parse::Arguments;
use super::{Request, Settings, glob, number};
use crate::key::{Key, KeyRange, Table};
use crate::record::StoredValue;
use crate::reply::Reply;
use crate::transaction::{Abort, Procedure, View};

/// Maximum number of cursors in the table, and maximum total size of their keys in bytes; beyond them the oldest are
/// evicted.
const CURSORS_MAX: usize = 100_000;
const CURSORS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum and default of the number of rows that one step of an iteration reads.
const COUNT_MAX: i64 = 10_000;
const COUNT: usize = 10;
/// Approximate maximum size of the keys and values that one step of an iteration lists, in bytes.
const LISTED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The cursors of SCAN: for each cursor number the key at which the iteration continues. All connections share the
/// table.
pub struct Cursors(Mutex<Known>);

struct Known {
    /// The number of the next cursor.
    next: u64,
    /// Total size of the keys, in bytes.
    bytes: usize,
    /// The key at which each iteration continues, by cursor number; the first is the oldest.
    keys: BTreeMap<u64, Key>,
}

impl Cursors {
    /// Returns an empty table whose cursor numbers differ from those of earlier processes, if `started_ms`, the
    /// present time in ms since 1970, is later than theirs.
    #[must_use]
    pub fn new(started_ms: u64) -> Self {
        // 1024 numbers per ms; they remain exact in a client that stores a number as a float.
        let next = started_ms.saturating_mul(1_024).max(1);
        Self(Mutex::new(Known { next, bytes: 0, keys: BTreeMap::new() }))
    }

    /// Adds a key to the table, and returns the number of its cursor.
    fn name(&self, key: Key) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = known.next;
        known.next += 1;
        known.bytes += key.as_bytes().len();
        known.keys.insert(number, key);
        while known.keys.len() > CURSORS_MAX || known.bytes > CURSORS_BYTES_MAX {
            let Some((_, oldest)) = known.keys.pop_first() else { break };
            known.bytes -= oldest.as_bytes().len();
        }
        number
    }

    /// Returns the key of a cursor; `None` if there is no such cursor, or it was evicted.
    fn key(&self, number: u64) -> Option<Key> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.keys.get(&number).cloned()
    }
}

/// One step of an iteration by SCAN or IMAGO.RANGE. The step runs as a transaction over one partition, or over a part
/// of it: the driver determines the end of the partition.
#[derive(Clone)]
pub struct Scan {
    /// The range of keys that the iteration has not passed yet.
    range: KeyRange,
    /// The content of the reply.
    replies: ScanReply,
    /// Maximum number of rows that the step reads.
    count: usize,
    /// The pattern that listed keys match; `None` for all keys.
    pattern: Option<Vec<u8>>,
    /// False if the client requested another type than strings, so that nothing is listed: all values are strings.
    lists_strings: bool,
    protocol: Protocol,
    settings: Arc<Settings>,
}

/// The content of the reply to a step of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum ScanReply {
    /// The reply contains the names of keys, and the number of a cursor.
    Names,
    /// The reply contains names and values of keys, and the name of the key at which to continue.
    Rows,
}

/// The type of a function that parses a request to list keys or rows of a database.
pub(super) type Understand =
    fn(&Arguments<'_>, Table, Protocol, &Arc<Settings>) -> Result<Scan, Answer>;

/// Parses a request of the command SCAN.
pub(super) fn scan(
    arguments: &Arguments<'_>,
    table: Table,
    protocol: Protocol,
    settings: &Arc<Settings>,
) -> Result<Scan, Answer> {
    Scan::understood(arguments, table, protocol, settings)
}

/// Parses a request of the command IMAGO.RANGE, whose arguments are the first key, the key before which the range
/// ends or an empty string, and COUNT.
pub(super) fn range(
    arguments: &Arguments<'_>,
    table: Table,
    protocol: Protocol,
    settings: &Arc<Settings>,
) -> Result<Scan, Answer> {
    let mut range = KeyRange::of_table(table);
    range.start = key(table, arguments.at(1))?;
    if !arguments.at(2).is_empty() {
        range.end = Some(key(table, arguments.at(2))?);
    }
    let count = match arguments.len() {
        3 => COUNT,
        5 if arguments.is(3, "COUNT") => count(arguments.at(4))?,
        _ => return Err(Answer::error(SYNTAX)),
    };
    let scan = Scan::new(range, ScanReply::Rows, protocol, settings);
    Ok(Scan { count, ..scan })
}

/// Parses the option COUNT, the number of rows that a step reads.
fn count(digits: &[u8]) -> Result<usize, Answer> {
    match number::integer(digits) {
        None => Err(Answer::error(NOT_AN_INTEGER)),
        Some(..1) => Err(Answer::error(SYNTAX)),
        Some(count) => Ok(count.min(COUNT_MAX) as usize),
    }
}

impl Scan {
    fn new(
        range: KeyRange,
        replies: ScanReply,
        protocol: Protocol,
        settings: &Arc<Settings>,
    ) -> Self {
        let (pattern, settings) = (None, Arc::clone(settings));
        Self { range, replies, count: COUNT, pattern, lists_strings: true, protocol, settings }
    }

    fn understood(
        arguments: &Arguments<'_>,
        table: Table,
        protocol: Protocol,
        settings: &Arc<Settings>,
    ) -> Result<Self, Answer> {
        let cursor = std::str::from_utf8(arguments.at(1)).ok().and_then(|text| text.parse().ok());
        let cursor: u64 = cursor.ok_or_else(|| Answer::error("ERR invalid cursor"))?;
        let mut scan = Self::new(KeyRange::of_table(table), ScanReply::Names, protocol, settings);
        let mut at = 2;
        while at < arguments.len() {
            let Some(value) = arguments.get(at + 1) else { return Err(Answer::error(SYNTAX)) };
            if arguments.is(at, "COUNT") {
                scan.count = count(value)?;
            } else if arguments.is(at, "MATCH") {
                scan.pattern = Some(value.to_vec()).filter(|pattern| pattern != b"*");
            } else if arguments.is(at, "TYPE") {
                scan.lists_strings = value.eq_ignore_ascii_case(b"string");
            } else {
                return Err(Answer::error(SYNTAX));
            }
            at += 2;
        }
        if cursor != 0 {
            let start = settings.cursors.key(cursor);
            let is_here = |start: &Key| start.row().is_some_and(|(of, _)| of == table);
            scan.range.start = start.filter(is_here).ok_or_else(|| {
                Answer::error(
                    "ERR unknown cursor: it is of another database, or too old; begin at 0",
                )
            })?;
        }
        Ok(scan)
    }

    /// Returns the key at which the iteration continues; the driver runs the step in the partition that contains this
    /// key.
    #[must_use]
    pub fn start(&self) -> &Key {
        &self.range.start
    }

    /// Returns the transaction of the step, up to the key `end` at which the partition ends; `None` for the last
    /// partition. The method may be called again if the partition changed.
    #[must_use]
    pub fn within(&self, end: Option<&Key>) -> Request {
        let to_end = KeyRange { start: self.range.start.clone(), end: end.cloned() };
        let range = to_end.intersection(&self.range);
        let procedure = Box::new(Step {
            range: range.clone(),
            last: self.range.end.clone(),
            replies: self.replies,
            count: self.count,
            pattern: self.pattern.clone(),
            lists_strings: self.lists_strings,
        });
        Request { reads: vec![range], writes: Vec::new(), procedure, alone: false }
    }

    /// Returns the reply to the client for the encoded rows that the step's procedure returned.
    pub(super) fn told(&self, found: &[u8]) -> Reply {
        let found: Found = postcard::from_bytes(found).expect("a step wrote it");
        let mut values = found.values.into_iter();
        let row = |name: Vec<u8>| {
            [Some(Answer::bulk(name)), values.next().map(|value| Answer::Bulk(value.0))]
        };
        let rows = found.names.into_iter().flat_map(row).flatten().collect();
        let next = match self.replies {
            ScanReply::Names => {
                let cursor = found.next.map_or(0, |key| self.settings.cursors.name(key));
                Answer::bulk(cursor.to_string())
            }
            ScanReply::Rows => {
                let next = found.next.as_ref().and_then(Key::row);
                next.map_or(Answer::Nil, |(_, name)| Answer::bulk(name))
            }
        };
        Answer::Array(vec![next, Answer::Array(rows)]).encoded(self.protocol)
    }
}

/// The procedure of a step of an iteration, which runs at a site and does not know cursors.
#[derive(Serialize, Deserialize)]
pub(super) struct Step {
    range: KeyRange,
    /// The end of the whole iteration's range; `None` if it reaches to the end of the key space.
    last: Option<Key>,
    replies: ScanReply,
    count: usize,
    pattern: Option<Vec<u8>>,
    lists_strings: bool,
}

/// The rows that a step of an iteration found.
#[derive(Serialize, Deserialize)]
struct Found {
    /// The key at which the iteration continues; `None` at the end of the iteration.
    next: Option<Key>,
    /// The names of the keys that are listed.
    names: Vec<Vec<u8>>,
    /// The values of these keys, in order; empty if only names are listed.
    values: Vec<StoredValue>,
}

impl Step {
    fn lists(&self, name: &[u8]) -> bool {
        self.lists_strings && self.pattern.as_ref().is_none_or(|pattern| glob::fits(pattern, name))
    }
}

impl Procedure for Step {
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort> {
        let rows = view.range(&self.range, self.count)?;
        // The position after the last row if there may be more rows in the range; otherwise the end of the
        // range, or `None` if that is the end of the iteration.
        let mut next = match rows.last() {
            Some((last, _)) if rows.len() == self.count => Some(last.successor()),
            _ => {
                let end = self.range.end.clone();
                end.filter(|end| self.last.as_ref().is_none_or(|last| end < last))
            }
        };
        let (mut names, mut values, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (key, seen) in rows {
            let Some((_, name)) = key.row() else { continue };
            if self.lists(name) {
                bytes += name.len();
                names.push(name.to_vec());
                if self.replies == ScanReply::Rows {
                    bytes += seen.value.len();
                    values.push(StoredValue(seen.value));
                }
            }
            if bytes > LISTED_BYTES_MAX {
                next = Some(key.successor());
                break;
            }
        }
        Ok(postcard::to_stdvec(&Found { next, names, values })
            .expect("it has a form in bytes")
            .into())
    }

    fn encode(&self) -> Option<Vec<u8>> {
        codec::encode(Kind::Step, self)
    }
}

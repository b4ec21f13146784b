//! The connection of a session: rows by the Redis protocol, and calls of the registered procedure.

use std::thread;
use std::time::{Duration, Instant};

use imago_workload::lists::Outcome;
use imago_workload::procedures::{Answer, Declared, Procedure, Value};
use redis::{RedisError, Value as Reply};

use super::Options;
use super::registered::NAME;
use crate::store::client::{connect_with, outcome};

/// Number of rows that one command of a scan reads.
const READ_AT_ONCE: usize = 1_000;
/// Maximum time for which reading a part of the rows is retried, while the store recovers.
const READ_WAIT: Duration = Duration::from_secs(60);
/// Delay before a failed attempt to read a part of the rows is repeated.
const AGAIN_WAIT: Duration = Duration::from_millis(200);

/// A failed request, by what is known of its outcome.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nothing happened: the request may be sent again.
    NotDone,
    /// It may have happened; the connection is not used further. The error is the store's, or that of the connection.
    Unknown(RedisError),
}

/// A connection to the store.
pub(super) struct Connection(redis::Connection);

impl Connection {
    pub fn open(options: &Options) -> Result<Self, RedisError> {
        connect_with(options.address, options.password.as_deref()).map(Self)
    }

    /// Reads the rows of keys, in one snapshot.
    pub fn get_many(&mut self, keys: &[String]) -> Result<Vec<Value>, Failed> {
        redis::cmd("MGET").arg(keys).query(&mut self.0).map_err(failed)
    }

    /// Runs a transaction with its declared keys.
    pub fn call(&mut self, procedure: &Procedure, declared: &Declared) -> Result<Answer, Failed> {
        let reads = declared.ranges.iter().flat_map(|range| &range.keys).chain(&declared.reads);
        let reads: Vec<&String> = reads.collect();
        let mut command = redis::cmd("IMAGO.CALL_RW");
        command.arg(NAME).arg(declared.writes.len()).arg(&declared.writes);
        command.arg(reads.len()).arg(&reads).arg(procedure.to_bytes());
        let answer: Vec<u8> = command.query(&mut self.0).map_err(failed)?;
        Answer::from_bytes(&answer).ok_or_else(|| {
            let kind = redis::ErrorKind::UnexpectedReturnType;
            Failed::Unknown((kind, "the procedure returned no answer").into())
        })
    }

    pub fn is_empty(&mut self) -> Result<bool, RedisError> {
        let (next, rows) = self.step(b"", 1)?;
        Ok(next.is_none() && rows.is_empty())
    }

    pub fn put_all(&mut self, rows: &[(String, Vec<u8>)]) -> Result<(), RedisError> {
        redis::cmd("MSET").arg(rows).query(&mut self.0)
    }

    fn step(&mut self, from: &[u8], count: usize) -> Result<Step, RedisError> {
        let mut command = redis::cmd("IMAGO.RANGE");
        let reply: Reply = command.arg(from).arg("").arg("COUNT").arg(count).query(&mut self.0)?;
        redis::from_redis_value(reply).map_err(RedisError::from)
    }
}

/// A part of a scan: the key at which it continues, if any, and rows as key and value.
type Step = (Option<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

/// Reads all rows of the store, a part at a time, and returns their number. A part that fails is read again, by a new
/// connection; `row` gets each row once.
pub(super) fn read_all(
    options: &Options,
    mut row: impl FnMut(&str, &[u8]),
) -> Result<u64, RedisError> {
    let (mut from, mut all) = (Vec::new(), 0);
    let mut connection = None;
    let mut until = Instant::now() + READ_WAIT;
    loop {
        let read = match connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(options),
        };
        let read = read.and_then(|mut open| Ok((open.step(&from, READ_AT_ONCE)?, open)));
        let ((next, rows), open) = match read {
            Ok(read) => read,
            Err(_) if Instant::now() < until => {
                thread::sleep(AGAIN_WAIT);
                continue;
            }
            Err(error) => return Err(error),
        };
        for (key, value) in &rows {
            row(&String::from_utf8_lossy(key), value);
        }
        all += rows.len() as u64;
        match next {
            Some(next) => from = next,
            None => return Ok(all),
        }
        connection = Some(open);
        until = Instant::now() + READ_WAIT;
    }
}

fn failed(error: RedisError) -> Failed {
    match outcome(&error) {
        Outcome::NotDone => Failed::NotDone,
        Outcome::Done | Outcome::Unknown => Failed::Unknown(error),
    }
}

//! A connection of a client to the store, and the interpretation of the store's replies.
//!
//! Invariants:
//! 1. A fault says that nothing happened only if the store reported so, or if the request writes nothing.
//! 2. A broken connection is not used again, so the reply to one request is never taken for that to another.

use std::time::Duration;

use redis::{Cmd, ConnectionInfo, RedisError, Value};

use super::ClientError;

/// The reason why a request to the store failed, which decides whether the client repeats the request.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another transaction changed rows that the transaction had read; nothing was written.
    Conflict,
    /// The request had no effect, for this reason; a retry may succeed.
    Nothing(String),
    /// The request may have taken effect; the text says why that is unknown.
    Unknown(String),
    /// The request failed with this error, and a retry cannot succeed.
    Failed(ClientError),
}

impl Fault {
    /// Returns the fault for a request that writes nothing: an unknown outcome becomes [`Fault::Nothing`].
    pub fn without_effect(self) -> Self {
        match self {
            Self::Unknown(why) => Self::Nothing(why),
            other => other,
        }
    }
}

/// Time limits of a client's connection: `connect` for one attempt to connect, `answer` for a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub connect: Duration,
    pub answer: Duration,
}

/// A connection to the store, with the numbered table that it has selected: see the module's documentation.
pub(super) struct Connection {
    redis: redis::Connection,
    /// The number of the numbered table (Redis: database) that the connection has selected.
    table: u32,
    /// True if the store may still watch keys of an earlier transaction.
    watches: bool,
    is_broken: bool,
}

/// Encoded requests that are sent together, and the number of replies to receive. The result is the last reply, or
/// the first that is an error.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    answers: usize,
}

impl Sent {
    fn add(&mut self, command: &Cmd) {
        command.write_packed_command(&mut self.bytes);
        self.answers += 1;
    }

    fn word(&mut self, word: &str) {
        self.add(&redis::cmd(word));
    }
}

/// The writes of EXEC in one numbered table. No key is in two of the lists.
#[derive(Default)]
pub(super) struct Batch<'t> {
    pub put: Vec<(&'t [u8], &'t [u8])>,
    pub deleted: Vec<&'t [u8]>,
    /// Keys of rows that exist, were read and stay unchanged, but are to be locked as if they were written; `absent`
    /// has the keys that were read and have no row.
    pub there: Vec<&'t [u8]>,
    pub absent: Vec<&'t [u8]>,
}

impl Batch<'_> {
    /// Appends the commands of the batch to `sent`. Those for unchanged rows do nothing, since EXEC first checks that
    /// the rows are unchanged.
    fn add_to(&self, sent: &mut Sent) {
        if !self.put.is_empty() {
            sent.add(redis::cmd("MSET").arg(&self.put));
        }
        if !self.deleted.is_empty() || !self.absent.is_empty() {
            sent.add(redis::cmd("DEL").arg(&self.deleted).arg(&self.absent));
        }
        if !self.there.is_empty() {
            let there: Vec<_> = self.there.iter().map(|key| (*key, b"".as_slice())).collect();
            sent.add(redis::cmd("MSETNX").arg(there));
        }
    }
}

/// The result of one step of a scan: the key at which the scan continues, `None` at the end; and rows as key and
/// value.
pub(super) type Found = (Option<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

impl Connection {
    pub fn open(info: &ConnectionInfo, waits: Waits) -> Result<Self, RedisError> {
        let client = redis::Client::open(info.clone())?;
        let redis = client.get_connection_with_timeout(waits.connect)?;
        redis.set_write_timeout(Some(waits.answer))?;
        redis.set_read_timeout(Some(waits.answer))?;
        Ok(Self { redis, table: 0, watches: false, is_broken: false })
    }

    /// Makes the store close the connection, as a test fault.
    #[cfg(test)]
    pub fn hang_up(&mut self) {
        _ = redis::cmd("QUIT").query::<Value>(&mut self.redis);
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Makes the store forget the keys that it still watches for an earlier transaction.
    pub fn begin(&mut self) -> Result<(), Fault> {
        if self.watches {
            let mut sent = Sent::default();
            sent.word("UNWATCH");
            self.ask(&sent).map_err(Fault::without_effect)?;
            self.watches = false;
        }
        Ok(())
    }

    /// Reads the rows of these keys of a numbered table in one snapshot, and makes EXEC check that they are unchanged
    /// since. The result is in the order of `keys`; `None` for a key without a row.
    pub fn watch(&mut self, table: u32, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        self.watches = true;
        self.read_all("IMAGO.WATCH", table, keys)
    }

    /// Reads the rows of these keys of a numbered table in one snapshot, in the order of `keys`; `None` for a key
    /// without a row.
    pub fn read(&mut self, table: u32, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        self.read_all("MGET", table, keys)
    }

    fn read_all(
        &mut self,
        word: &str,
        table: u32,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let answer =
            self.send_to_table(table, redis::cmd(word).arg(keys)).map_err(Fault::without_effect)?;
        let rows = match answer {
            Value::Array(rows) if rows.len() == keys.len() => rows,
            other => return Err(nonsense(&other)),
        };
        let row = |row| match row {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            other => Err(nonsense(&other)),
        };
        rows.into_iter().map(row).collect()
    }

    /// Reads at most `count` of the first rows with keys from `from` up to and without `to` (empty: the table's end),
    /// at most as far as the end of the partition of `from`.
    pub fn step(
        &mut self,
        table: u32,
        from: &[u8],
        to: &[u8],
        count: usize,
    ) -> Result<Found, Fault> {
        let mut command = redis::cmd("IMAGO.RANGE");
        command.arg(from).arg(to).arg("COUNT").arg(count);
        let answer = self.send_to_table(table, &command).map_err(Fault::without_effect)?;
        redis::from_redis_value(answer).map_err(|error| nonsense(&error))
    }

    /// Writes a batch to a numbered table in one transaction.
    pub fn write(&mut self, table: u32, batch: &Batch<'_>) -> Result<(), Fault> {
        let mut sent = self.sent_in(table);
        batch.add_to(&mut sent);
        self.ask(&sent).map(|_| ())
    }

    /// Runs the store's procedure `name` over keys of one numbered table, and returns the procedure's reply.
    pub fn call(
        &mut self,
        table: u32,
        name: &str,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<Vec<u8>, Fault> {
        let mut command = redis::cmd("IMAGO.CALL");
        command.arg(name).arg(keys.len()).arg(keys).arg(arguments);
        match self.send_to_table(table, &command)? {
            Value::BulkString(answer) => Ok(answer),
            other => Err(nonsense(&other)),
        }
    }

    /// Applies the batches, each to the table with its number, in one transaction, if the watched rows are unchanged.
    pub fn exec<'t>(
        &mut self,
        batches: impl IntoIterator<Item = (u32, Batch<'t>)>,
    ) -> Result<(), Fault> {
        let mut sent = Sent::default();
        sent.word("MULTI");
        let (mut table, mut writes) = (self.table, false);
        for (number, batch) in batches {
            writes = true;
            if number != table {
                sent.add(redis::cmd("SELECT").arg(number));
                table = number;
            }
            batch.add_to(&mut sent);
        }
        sent.word("EXEC");
        let done = self.ask(&sent);
        let done = if writes { done } else { done.map_err(Fault::without_effect) };
        // After any reply nothing is watched.
        self.watches = false;
        match done? {
            Value::Nil => Err(Fault::Conflict),
            Value::Array(answers) => {
                self.table = table;
                let wrong = answers.iter().find(|answer| matches!(answer, Value::ServerError(_)));
                // The requests from here are never wrong by themselves, and the other commands of the
                // transaction took effect.
                wrong.map_or(Ok(()), |wrong| Err(Fault::Unknown(format!("{wrong:?}"))))
            }
            other if writes => Err(Fault::Unknown(format!("{other:?}"))),
            other => Err(nonsense(&other)),
        }
    }

    /// Begins requests that apply to a numbered table: selects the table if another one is selected.
    fn sent_in(&mut self, table: u32) -> Sent {
        let mut sent = Sent::default();
        if table != self.table {
            sent.add(redis::cmd("SELECT").arg(table));
            self.table = table;
        }
        sent
    }

    fn send_to_table(&mut self, table: u32, command: &Cmd) -> Result<Value, Fault> {
        let mut sent = self.sent_in(table);
        sent.add(command);
        self.ask(&sent)
    }

    fn ask(&mut self, sent: &Sent) -> Result<Value, Fault> {
        // If sending failed midway, the store may have received a part.
        let mut answered = self.redis.send_packed_command(&sent.bytes).map(|()| Value::Nil);
        let mut refused = None;
        for _ in 0..sent.answers {
            answered = answered.and_then(|_| self.redis.recv_response());
            if let Ok(Value::ServerError(error)) = &answered {
                refused.get_or_insert_with(|| error.clone());
            }
        }
        match (answered, refused) {
            (Err(error), _) => {
                self.is_broken = true;
                Err(Fault::Unknown(format!("the connection broke: {error}")))
            }
            (Ok(_), Some(error)) => {
                // The selected table, and the watched keys, depend on which of the requests was refused.
                self.is_broken |= sent.answers > 1 && !NOT_DONE.contains(&error.code());
                Err(meaning(error.code(), error.details().unwrap_or_default()))
            }
            (Ok(answer), None) => Ok(answer),
        }
    }
}

/// The codes of the store's errors that leave the selected table and the watched keys of a connection unchanged.
const NOT_DONE: [&str; 2] = ["TRYAGAIN", "CLUSTERDOWN"];

/// Converts an error reply of the store, given as its code and text, to a fault.
fn meaning(code: &str, detail: &str) -> Fault {
    let text = format!("{code} {detail}");
    match code {
        "TRYAGAIN" | "CLUSTERDOWN" if detail.starts_with("nothing happened") => {
            Fault::Nothing(text)
        }
        "TRYAGAIN" => Fault::Unknown(text),
        _ => Fault::Failed(ClientError::Refused(text)),
    }
}

fn nonsense(answer: &impl std::fmt::Debug) -> Fault {
    Fault::Failed(ClientError::Nonsense(format!("{answer:?}")))
}

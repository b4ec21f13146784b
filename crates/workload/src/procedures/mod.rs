//! Transactional benchmarks as stored procedures: SmallBank, TPC-C, Twitter and YCSB, over any store of rows.
//!
//! A benchmark draws [`Procedure`]s. A procedure first names the rows that it needs, by [`Procedure::next`]: rows to
//! read outside the transaction (a counter, an index), until it can declare the keys of the transaction itself. Then
//! [`Procedure::run`] runs as one transaction. If a row that determined the declared keys has changed meanwhile, `run`
//! writes nothing and returns [`Answer::Moved`], and the client declares the keys anew.
//!
//! The same code runs inside a site of the store, at a client over the network, and over a map in tests: a store is a
//! [`Rows`].
//!
//! Invariants:
//! - A procedure that returns anything but [`Answer::Done`] has written nothing.
//! - All randomness and every unique number is in the procedure when it is drawn: running it again has the same effect.

pub mod smallbank;
pub mod tpcc;
pub mod twitter;
pub mod ycsb;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The encoded value of a row; `None` if there is no row.
pub type Value = Option<Vec<u8>>;

/// The rows of a store as a transaction reads and writes them.
pub trait Rows {
    /// A failure of the store, which ends the transaction.
    type Error;

    /// Reads the rows of these keys, in their order. The transaction's own writes are seen.
    ///
    /// # Errors
    /// Returns the failure of the store.
    fn get_many(&mut self, keys: &[String]) -> Result<Vec<Value>, Self::Error>;

    /// Calls `visit` with the key and the value of each row from the key `start` up to the key `end`, which is excluded,
    /// in the order of keys. The transaction's own writes are seen. `keys` returns all keys that can be there, for a store
    /// whose client declared them one by one.
    ///
    /// # Errors
    /// Returns the failure of the store.
    fn visit(
        &mut self,
        start: &str,
        end: &str,
        keys: &dyn Fn() -> Vec<String>,
        visit: &mut dyn FnMut(&str, &[u8]),
    ) -> Result<(), Self::Error>;

    /// Sets the row of a key.
    ///
    /// # Errors
    /// Returns the failure of the store.
    fn put(&mut self, key: &str, value: Vec<u8>) -> Result<(), Self::Error>;

    /// Deletes the row of a key.
    ///
    /// # Errors
    /// Returns the failure of the store.
    fn delete(&mut self, key: &str) -> Result<(), Self::Error>;
}

/// The keys that a transaction may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Keys that are read.
    pub reads: Vec<String>,
    /// Ranges of adjacent keys that are read.
    pub ranges: Vec<Adjacent>,
    /// Keys that may be written, and read.
    pub writes: Vec<String>,
}

/// Adjacent keys that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjacent {
    /// The start of the range that has the keys, and nothing else.
    pub start: String,
    /// The first key after the range.
    pub end: String,
    /// The keys, some of which may have no row.
    pub keys: Vec<String>,
}

impl Declared {
    /// Declares that the row of this key is read.
    fn read(&mut self, key: String) {
        self.reads.push(key);
    }

    /// Declares that the rows of these keys are read, which are all that can be from `start` up to and without `end`.
    fn read_adjacent(&mut self, start: String, end: String, keys: impl Iterator<Item = String>) {
        self.ranges.push(Adjacent { start, end, keys: keys.collect() });
    }
}

/// The next step of a client that prepares a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read these rows outside the transaction, and ask again with their values.
    Read(Vec<String>),
    /// Run the transaction with these keys.
    Run(Declared),
    /// There is nothing to do: the rows that were read say so.
    Nothing,
}

/// Maximum number of times that a procedure asks for rows before it declares its keys.
pub const READS_MAX: usize = 3;

/// The outcome of a procedure whose transaction committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The procedure did its work. The number is defined by the procedure: a sum, a count or an identifier.
    Done(i64),
    /// The procedure rolled its work back, as the benchmark demands for some inputs.
    RolledBack,
    /// Rows that determine the keys have changed since they were read: the keys are to be declared anew.
    Moved,
    /// The rows contradict the benchmark's rules: this row is missing or cannot be decoded.
    Contradiction(String),
}

impl Answer {
    /// Encodes the answer for the client.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes an answer; returns `None` if the bytes are not exactly one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        decode(bytes)
    }
}

/// The type of a transaction, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names of the benchmarks' own transactions")]
pub enum Kind {
    Balance,
    DepositChecking,
    TransactSavings,
    WriteCheck,
    SendPayment,
    Amalgamate,
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
    GetTweet,
    GetUserTweets,
    GetFollowers,
    GetTweetsFromFollowing,
    InsertTweet,
    ReadModifyWrite,
    Scan,
}

/// A drawn transaction of one of the benchmarks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names of the benchmarks")]
pub enum Procedure {
    SmallBank(smallbank::Transaction),
    TpcC(tpcc::Transaction),
    Twitter(twitter::Transaction),
    Ycsb(ycsb::Transaction),
}

impl Procedure {
    /// Returns the type of the transaction.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::SmallBank(transaction) => transaction.kind(),
            Self::TpcC(transaction) => transaction.kind(),
            Self::Twitter(transaction) => transaction.kind(),
            Self::Ycsb(transaction) => transaction.kind(),
        }
    }

    /// Returns the client's next step. `found` has the rows that all earlier steps asked for, one list for each step.
    #[must_use]
    pub fn next(&mut self, found: &[Vec<Value>]) -> Next {
        match self {
            Self::SmallBank(transaction) => transaction.next(),
            Self::TpcC(transaction) => transaction.next(found),
            Self::Twitter(transaction) => transaction.next(found),
            Self::Ycsb(transaction) => transaction.next(),
        }
    }

    /// Encodes the transaction for the site that runs it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a transaction; returns `None` if the bytes are not exactly one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        decode(bytes)
    }

    /// Runs the transaction over `rows`, with the keys that [`Procedure::next`] declared.
    ///
    /// # Errors
    /// Returns the failure of the store, after which the transaction must be rolled back.
    pub fn run<R: Rows>(&self, rows: &mut R) -> Result<Answer, R::Error> {
        let mut access = Access(rows);
        let ended = match self {
            Self::SmallBank(transaction) => transaction.run(&mut access),
            Self::TpcC(transaction) => transaction.run(&mut access),
            Self::Twitter(transaction) => transaction.run(&mut access),
            Self::Ycsb(transaction) => transaction.run(&mut access),
        };
        match ended {
            Ok(done) => Ok(Answer::Done(done)),
            Err(Ended::With(answer)) => Ok(answer),
            Err(Ended::Failed(error)) => Err(error),
        }
    }
}

/// The reason why a procedure ends before its writes.
pub(crate) enum Ended<E> {
    With(Answer),
    Failed(E),
}

/// The result of a part of a procedure.
pub(crate) type Part<T, R> = Result<T, Ended<<R as Rows>::Error>>;

/// The typed rows of a transaction.
pub(crate) struct Access<'a, R>(&'a mut R);

impl<R: Rows> Access<'_, R> {
    /// Reads rows that may be absent.
    fn find<T: DeserializeOwned>(&mut self, keys: &[String]) -> Part<Vec<Option<T>>, R> {
        let found = self.0.get_many(keys).map_err(Ended::Failed)?;
        let typed = |(key, value): (&String, Value)| match value {
            None => Ok(None),
            Some(value) => match decode(&value) {
                Some(row) => Ok(Some(row)),
                None => Err(contradiction(key)),
            },
        };
        keys.iter().zip(found).map(typed).collect()
    }

    fn visit(
        &mut self,
        start: &str,
        end: &str,
        keys: &dyn Fn() -> Vec<String>,
        visit: &mut dyn FnMut(&str, &[u8]),
    ) -> Part<(), R> {
        self.0.visit(start, end, keys, visit).map_err(Ended::Failed)
    }

    /// Reads a row that must exist.
    fn get<T: DeserializeOwned>(&mut self, key: &str) -> Part<T, R> {
        let found = self.find(&[key.to_owned()])?.pop().flatten();
        found.ok_or_else(|| contradiction(key))
    }

    fn put(&mut self, key: &str, row: &impl Serialize) -> Part<(), R> {
        self.0.put(key, encode(row)).map_err(Ended::Failed)
    }

    fn delete(&mut self, key: &str) -> Part<(), R> {
        self.0.delete(key).map_err(Ended::Failed)
    }
}

fn contradiction<E>(key: &str) -> Ended<E> {
    Ended::With(Answer::Contradiction(key.to_owned()))
}

/// Encodes a row's value, in postcard's format.
///
/// # Panics
/// Panics if the type has no encoding, which no row's type is.
pub(crate) fn encode(row: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(row).expect("rows are numbers, texts and lists")
}

/// Decodes a row's value; returns `None` if the bytes are not exactly one value of the type.
pub(crate) fn decode<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    let (row, rest) = postcard::take_from_bytes(value).ok()?;
    rest.is_empty().then_some(row)
}

/// Decodes a row that was read outside the transaction; `None` if it is absent or not of the type.
pub(crate) fn read_row<T: DeserializeOwned>(
    found: &[Vec<Value>],
    step: usize,
    at: usize,
) -> Option<T> {
    decode(found.get(step)?.get(at)?.as_ref()?)
}

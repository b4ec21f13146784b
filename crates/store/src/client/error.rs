//! Errors of the client, which tell whether anything happened.

use std::time::Duration;

use redis::RedisError;

use crate::key::KEY_BYTES_MAX;

/// The reason why a client's request failed. Only after [`ClientError::Unknown`] may any part of it have
/// happened.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No store answers there.
    #[error(
        "cannot reach a store at {address} for {waited:?}: is it running, and is that its address?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// Time for which it was tried.
        waited: Duration,
        /// The last attempt's end.
        source: RedisError,
    },
    /// The store does not let the client in.
    #[error("the store at {address} does not take the password, or wants one")]
    NoEntry {
        /// The address.
        address: String,
        /// The store's error.
        source: RedisError,
    },
    /// The store says that it cannot be done.
    #[error("the store refused it, and nothing happened: {0}")]
    Refused(String),
    /// It was tried as often as may be. Others change the same rows all the time, or the store is not
    /// well, which `last` says.
    #[error(
        "nothing happened, tried {attempts} times: {conflicts} times others had changed what was read; the last time: {last}"
    )]
    Exhausted {
        /// Attempts made.
        attempts: u32,
        /// Attempts that failed because others changed the same rows.
        conflicts: u32,
        /// The last obstacle.
        last: String,
    },
    /// It was sent, and it is unknown whether it happened, or still will. It is not tried again. A transaction
    /// that writes a row under a number of its own, and looks first whether that is there, may be: of the
    /// two only one happens.
    #[error("it may or may not have happened, do it again only if that does no harm: {0}")]
    Unknown(String),
    /// The read comes too late to count. The transaction begins again once its closure has
    /// returned.
    #[error("the transaction has to begin again")]
    Again,
    /// A key that is too long.
    #[error("a key of {0} bytes is too long: at most {KEY_BYTES_MAX}")]
    KeyTooLong(usize),
    /// A value that has no form in bytes.
    #[error("the value cannot be written")]
    Unwritable(#[source] postcard::Error),
    /// A row that was written with other types.
    #[error("row {key} of table {table} is no {expected}: it was written with another type")]
    OtherType {
        /// The table's number.
        table: u32,
        /// The row's key as bytes, those that cannot be printed as `\xNN`.
        key: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The server is no store.
    #[error("what is no answer to what was asked came from the store: {0}")]
    Nonsense(String),
}

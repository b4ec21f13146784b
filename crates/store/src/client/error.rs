//! Errors of the client, which tell whether the request may have taken effect.

use std::time::Duration;

use redis::RedisError;

use crate::key::KEY_BYTES_MAX;

/// The reason why a client's request failed. Only after [`ClientError::Unknown`] may the request have taken
/// effect.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No store answered at the address in time.
    #[error(
        "cannot reach a store at {address} for {waited:?}: is it running, and is that its address?"
    )]
    Unreachable {
        /// The address of the store, `HOST:PORT`.
        address: String,
        /// Time during which the client attempted to connect.
        waited: Duration,
        /// The error of the last attempt to connect.
        source: RedisError,
    },
    /// The store did not accept the password, or requires one.
    #[error("the store at {address} refused the password, or requires one")]
    NoEntry {
        /// The address of the store, `HOST:PORT`.
        address: String,
        /// The error with which the store refused the client.
        source: RedisError,
    },
    /// The store refused the request, with this error; nothing happened.
    #[error("the store refused the request, which had no effect: {0}")]
    Refused(String),
    /// The maximum number of attempts failed. Other transactions keep changing the same rows, or the store
    /// has the problem that `last` describes.
    #[error(
        "the transaction had no effect after {attempts} attempts, {conflicts} of which conflicted \
         with other transactions; the last error: {last}"
    )]
    Exhausted {
        /// Number of attempts that were made.
        attempts: u32,
        /// Number of attempts that failed because another transaction had changed rows that they had read.
        conflicts: u32,
        /// The reason why the last attempt failed, as text.
        last: String,
    },
    /// The request was sent, and may have taken effect or may still do so. The client does not retry it. The
    /// caller may retry a transaction that writes a row under an id of its own and first checks whether that
    /// row exists: at most one of the attempts takes effect.
    #[error("the outcome of the request is unknown; repeat it only if that is harmless: {0}")]
    Unknown(String),
    /// The transaction has failed already, so this read has no result. The transaction begins again after its closure
    /// has returned.
    #[error("the transaction has to begin again")]
    Again,
    /// The encoded key has this many bytes, more than the limit.
    #[error("a key of {0} bytes is too long: at most {KEY_BYTES_MAX}")]
    KeyTooLong(usize),
    /// The value of a row could not be serialized, because of this error.
    #[error("the value cannot be written")]
    Unwritable(#[source] postcard::Error),
    /// A row's key or value cannot be decoded, because the row was written with other types.
    #[error("row {key} of table {table} is no {expected}: it was written with another type")]
    OtherType {
        /// The number of the numbered table (Redis: database) of the row.
        table: u32,
        /// The row's key, with bytes that are not printable as `\xNN`.
        key: String,
        /// The name of the Rust type that the row's key or value was to have.
        expected: &'static str,
    },
    /// The reply, which the text contains, does not fit the request: the server is not a store.
    #[error("unexpected reply from the store: {0}")]
    Nonsense(String),
}

//! The messages between the process of a router and those of its sites.
//!
//! Each site has one TCP connection. A message is its length in four bytes, little-endian, and its content. Neither
//! side waits for a reply before its next message: replies carry the number of their request.
//!
//! Both sides send a message at least every [`ALIVE_EVERY`]. A side that receives nothing for the configured time
//! considers the site's epoch ended: the router fences the site, and later entries of the site are ignored, because
//! the log is the router's.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::design::Design;
use crate::engine::site::mailbox::Outcome;
use crate::key::{Key, KeyRange, Value};
use crate::record::{Epoch, LogEntry, Position, Site, StoredValue};
use crate::router::Step;
use crate::rows::{Row, Rows};
use crate::sampler::report::SampleReport;
use crate::site::Usage;
use crate::subscription::{Delivery, Request};
use crate::transaction::{Abort, Done};

/// Version of the protocol between a router and its sites: both sides must have the same.
pub(in crate::engine) const PROTOCOL: u32 = 7;
/// Interval of heartbeats on a connection without other messages.
pub(in crate::engine) const ALIVE_EVERY: Duration = Duration::from_millis(300);
/// Time in which a site receives nothing of a transfer, after which the transfer fails.
pub(super) const PROGRESS_WAIT: Duration = Duration::from_secs(60);
/// Maximum size of a message's content, in bytes. Larger row sets are sent in several messages, except the replica of
/// one partition.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Maximum size of the content of a message from a process that has not identified itself yet, in bytes.
const HELLO_BYTES_MAX: usize = 64 * 1024;
/// Approximate size of the keys and values of the rows in one message, in bytes.
const ROWS_BYTES: usize = 1024 * 1024;
/// Maximum memory that is allocated for a message before its content arrives, in bytes.
const TRUSTED_BYTES: usize = 1024 * 1024;

/// A message from a router's process to a site's process. `F` is the type of the log's deliveries.
#[derive(Serialize, Deserialize)]
pub(in crate::engine) enum ToSite<F = Vec<Delivery<'static>>> {
    /// The site has this epoch, and begins from the database as of position `known`; its rows and the log entries
    /// after them follow.
    Welcome {
        /// The epoch of the site that begins.
        epoch: Epoch,
        /// Number of sites of the store.
        sites: u16,
        /// Time without a message after which the router or the site's process ends the epoch, in ms.
        silence_ms: u64,
        /// Position of the log as of which the rows that follow are.
        known: Position,
        /// Design at the position `known`.
        design: Design,
        /// The random number of the run of the router's log: the period in which that router writes it.
        run: u64,
    },
    /// The rows that follow are of the partition with this first key; its version counts commits and design changes.
    Partition(Key, u64),
    /// Further rows of the partition that began last: key, version of the partition at the row's last write, and
    /// value.
    Rows(Vec<(Key, u64, StoredValue)>),
    /// The initial state is complete: the site's epoch begins.
    Begin,
    /// The next deliveries of the log to the site, and the log position of the first.
    Logged(Position, F),
    /// Transactions to run, and the size in bytes of the replies to all of them, above which the remaining ones are
    /// returned.
    Transact(Vec<Asked>, u64),
    /// A step of a change of the design to execute: the number of the request, the step, the prefix of the log that
    /// the step needs, and the time left for the step to begin, in ms.
    Step(u64, Step, Position, u64),
    /// A message from this other site, encoded. It may contain a replica's rows, so it is sent as a byte string.
    Said(Site, #[serde(with = "bytes")] Vec<u8>),
    /// Requests the sizes and access counts of the site's copies; contains the number of the request.
    Count(u64),
    /// Requests the site's part of a checkpoint as of the last delivered entry.
    Mark,
    /// True if the log accepts no entries for now, because its disk is full; false if it accepts entries again.
    Stalled(bool),
    /// The site is to sample and report one transaction in this many; 0 for none. Nothing is sampled before the first
    /// of these messages on a connection.
    Sample(u32),
    /// A heartbeat, which only shows that the router is alive.
    Alive,
    /// The router ends the connection: the reason, and whether the process should try again.
    Bye(String, bool),
    /// The site has this epoch, and begins from the rows that its process kept; the log after them follows.
    Resume {
        /// The epoch of the site that begins.
        epoch: Epoch,
        /// Number of sites of the store.
        sites: u16,
        /// Time without a message after which the router or the site's process ends the epoch, in ms.
        silence_ms: u64,
        /// The random number of the run of the router's log: the period in which that router writes it.
        run: u64,
    },
}

/// A transaction that is sent to a site's process, or that the process returns.
#[derive(Serialize, Deserialize)]
pub(in crate::engine) struct Asked {
    /// The number of the request that the outcome names.
    pub number: u64,
    /// The ranges of keys that the transaction may read.
    pub reads: Vec<KeyRange>,
    /// The keys that the transaction may write.
    pub writes: Vec<Key>,
    /// The prefix of the log that the transaction has to see.
    pub session: Position,
    /// The number of the client's connection, whose transactions at the site run in order; `None` for a session.
    pub client: Option<u64>,
    /// True if the transaction is to run where its rows are mastered, because a site with replicas lagged too far.
    pub at_masters: bool,
    /// The encoded procedure of the transaction.
    #[serde(with = "bytes")]
    pub procedure: Vec<u8>,
    /// Time left for the transaction to begin, in µs; 0 in a returned transaction.
    pub left_us: u64,
}

/// A message from a site's process to a router's process.
#[derive(Serialize, Deserialize)]
pub(in crate::engine) enum ToRouter {
    /// The first message of a connection, by which the process identifies itself.
    Hello {
        /// Version of the protocol that the process uses.
        protocol: u32,
        /// Version of the program that the process runs.
        version: String,
        /// The number of the site that the process serves.
        site: Site,
        /// The secret that the router requires.
        secret: String,
    },
    /// The site's next entries to append to the log.
    Write(Vec<LogEntry>),
    /// The outcome of a request: its number, the position up to which the site has the log, and the reply.
    Ended(u64, Position, Result<Done, Abort>),
    /// A transaction that cannot run at the site, and did not: it is to be routed again.
    Back(Asked),
    /// A message to this other site, encoded.
    Say(Site, #[serde(with = "bytes")] Vec<u8>),
    /// The sizes and access counts of the site's copies, with the number of the request.
    Counted(u64, Vec<Usage>),
    /// A request of the site to its log subscription.
    Subscribe(Request),
    /// A part of a checkpoint begins, as of this position of the log; its partitions and rows follow. The router
    /// knows the design at that position.
    Part(Position),
    /// A partition of the part of a checkpoint begins: its first key, and its version, which counts commits and
    /// design changes.
    Partition(Key, u64),
    /// Further rows of the partition that began last: key, version of the partition at the row's last write, and
    /// value.
    Rows(Vec<(Key, u64, StoredValue)>),
    /// The part of a checkpoint that began last is complete.
    PartEnd,
    /// The samples and the CPU time of the site since the last of these messages. Sent a few times a second.
    Sampled(SampleReport),
    /// A heartbeat, which only shows that the process is alive.
    Alive,
    /// The process's state, sent after its hello: the rack in which it runs; and, if it kept rows, the random number
    /// of the run of the log in which it received them, and their position.
    Comes { rack: Option<String>, kept: Option<(u64, Position)> },
}

impl ToRouter {
    /// Returns the message with the outcome of the router's request with this number.
    pub fn outcome(number: u64, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Answer(known, answer) => Self::Ended(number, known, answer),
            Outcome::Rerouted(transaction) => Self::Back(Asked {
                number,
                reads: transaction.reads,
                writes: transaction.writes,
                session: transaction.session,
                client: transaction.client,
                at_masters: transaction.at_masters,
                procedure: transaction.procedure.encode().expect("it was sent here"),
                left_us: 0,
            }),
        }
    }
}

/// Writes a message with its length to a connection, and returns its size in bytes.
///
/// # Errors
/// Returns an error if the other side does not receive the message, or the message is too long.
pub(in crate::engine) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<usize> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > MESSAGE_BYTES_MAX {
        let text = format!("a message of {length} bytes is too long: at most {MESSAGE_BYTES_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let length = u32::try_from(length).expect("it is less than 4 GB");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)?;
    Ok(bytes.len())
}

/// Returns the size in bytes that a message would have on the connection, its length field included.
pub(in crate::engine) fn size(message: &impl Serialize) -> usize {
    let size = postcard::serialize_with_flavor(message, postcard::ser_flavors::Size::default());
    4 + size.unwrap_or_default()
}

/// Reads the next message from a connection.
///
/// # Errors
/// Returns an error if no message arrives in time, or the message cannot be decoded.
pub(in crate::engine) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    read_within(from, MESSAGE_BYTES_MAX)
}

/// Reads a message of a process that is not admitted yet, which is limited to [`HELLO_BYTES_MAX`].
///
/// # Errors
/// Returns the errors of [`read`].
pub(in crate::engine) fn read_hello(from: &mut impl Read) -> io::Result<ToRouter> {
    read_within(from, HELLO_BYTES_MAX)
}

/// Reads a message whose content has at most `bytes_max` bytes.
fn read_within<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<T> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Err(invalid(format!("a message of {length} bytes: at most {bytes_max}")));
    }
    // Memory grows with the content that arrives, not with the length that is announced.
    let mut bytes = Vec::with_capacity(length.min(TRUSTED_BYTES));
    let come = from.take(length as u64).read_to_end(&mut bytes)?;
    if come < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match postcard::take_from_bytes(&bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(invalid("more than a message".into())),
        Err(error) => Err(invalid(format!("no message: {error}"))),
    }
}

/// Splits rows into pieces of about [`ROWS_BYTES`] in the form of messages: key, version and value.
pub(in crate::engine) fn pieces(rows: &Rows) -> impl Iterator<Item = Vec<(Key, u64, StoredValue)>> {
    let mut rows = rows.iter().peekable();
    std::iter::from_fn(move || {
        rows.peek()?;
        let (mut piece, mut bytes) = (Vec::new(), 0);
        while bytes < ROWS_BYTES
            && let Some((key, row)) = rows.next()
        {
            bytes += key.as_bytes().len() + row.value.len();
            piece.push((key.clone(), row.version, StoredValue(Value::clone(&row.value))));
        }
        Some(piece)
    })
}

/// Converts a row from its form in messages (key, version and value).
pub(in crate::engine) fn row((key, version, value): (Key, u64, StoredValue)) -> (Key, Row) {
    (key, Row { version, value: value.0 })
}

/// Returns the reason for a lost connection as text for users.
pub(in crate::engine) fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "nothing was heard of it for too long".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Encodes a byte string as one unit, not as a sequence of numbers.
mod bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::record::StoredValue;

    pub(in crate::engine) fn serialize<S: Serializer>(
        bytes: &[u8],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<u8>, D::Error> {
        StoredValue::deserialize(from).map(|bytes| bytes.0.to_vec())
    }
}

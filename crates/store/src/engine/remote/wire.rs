//! The messages between the process of a router and those of its sites.
//!
//! One TCP connection for each site. A message is its length in four bytes, little-endian, and its content.
//! Neither side waits for a reply before its next message: replies carry the number of their request.
//!
//! Both sides send a message at least every [`ALIVE_EVERY`]. A side that receives nothing for the configured
//! time takes that for the end of the site's epoch: the router fences the site, and later entries of the site
//! are ignored, because the log is the router's.

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

/// Version of the messages: both sides must have the same.
pub(in crate::engine) const PROTOCOL: u32 = 5;
/// How often each side says that it is there, if it has nothing else to say.
pub(in crate::engine) const ALIVE_EVERY: Duration = Duration::from_millis(300);
/// The longest message, in bytes: what has more rows comes in several, but for one partition's replica.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// The longest message of a process that has not identified itself yet.
const HELLO_BYTES_MAX: usize = 64 * 1024;
/// About how many bytes of rows are sent at once.
const ROWS_BYTES: usize = 1024 * 1024;
/// How much memory a message is given before it comes.
const TRUSTED_BYTES: usize = 1024 * 1024;

/// A message from a router's process to a site's.
#[derive(Serialize, Deserialize)]
pub(in crate::engine) enum ToSite<F = Vec<Delivery<'static>>> {
    /// The site has this epoch. It begins from a prefix of the log, of which comes the rest.
    Welcome {
        epoch: Epoch,
        sites: u16,
        silence_ms: u64,
        known: Position,
        design: Design,
    },
    /// A partition of that prefix begins, of a version.
    Partition(Key, u64),
    /// Its next rows.
    Rows(Vec<(Key, u64, StoredValue)>),
    /// That was all of it: the epoch begins.
    Begin,
    /// What the site receives of the log next, and the place where that begins.
    Logged(Position, F),
    /// How many bytes the replies may take before no more of them is run.
    Transact(Vec<Asked>, u64),
    /// The number of the question, the prefix of the log that it needs, and for how long, in ms.
    Step(u64, Step, Position, u64),
    /// A message of another site.
    Said(Site, Vec<u8>),
    Count(u64),
    Mark,
    /// Whether the log takes nothing for now.
    Stalled(bool),
    /// One transaction of so many is to be sampled, and reported; 0: none. Nothing is sampled before the first of these
    /// messages of a connection.
    Sample(u32),
    Alive,
    /// The connection ends, and why; whether it is any use to come again.
    Bye(String, bool),
}

/// A transaction, the number of the question, and the time that is left for it to begin, in µs.
#[derive(Serialize, Deserialize)]
pub(in crate::engine) struct Asked {
    pub number: u64,
    pub reads: Vec<KeyRange>,
    pub writes: Vec<Key>,
    pub session: Position,
    pub client: Option<u64>,
    pub at_masters: bool,
    #[serde(with = "bytes")]
    pub procedure: Vec<u8>,
    pub left_us: u64,
}

/// A message from a site's process to a router's.
#[derive(Serialize, Deserialize)]
pub(in crate::engine) enum ToRouter {
    Hello {
        protocol: u32,
        version: String,
        site: Site,
        secret: String,
    },
    Write(Vec<LogEntry>),
    /// The outcome of a request.
    Ended(u64, Position, Result<Done, Abort>),
    /// It cannot be done there.
    Back(Asked),
    /// To another site.
    Say(Site, #[serde(with = "bytes")] Vec<u8>),
    Counted(u64, Vec<Usage>),
    /// A request to the site's subscription.
    Subscribe(Request),
    /// A part of a checkpoint begins, then its partitions with their rows, and it ends. The router knows the design
    /// at that position.
    Part(Position),
    Partition(Key, u64),
    Rows(Vec<(Key, u64, StoredValue)>),
    PartEnd,
    /// What the site has sampled and used since the last of these messages, a few times a second.
    Sampled(SampleReport),
    Alive,
}

impl ToRouter {
    /// The outcome of a numbered request.
    pub fn outcome(number: u64, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Answer(known, answer) => Self::Ended(number, known, answer),
            Outcome::Back(transaction) => Self::Back(Asked {
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

/// Writes a message, and returns how many bytes it has.
///
/// # Errors
/// When the other side does not take it, or it is too long.
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

/// How many bytes a message would have.
pub(in crate::engine) fn size(message: &impl Serialize) -> usize {
    let size = postcard::serialize_with_flavor(message, postcard::ser_flavors::Size::default());
    4 + size.unwrap_or_default()
}

/// Reads a message.
///
/// # Errors
/// When none comes in time, or what comes is none.
pub(in crate::engine) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    read_within(from, MESSAGE_BYTES_MAX)
}

/// Reads the first message of a connection.
///
/// # Errors
/// As [`read`].
pub(in crate::engine) fn read_hello(from: &mut impl Read) -> io::Result<ToRouter> {
    read_within(from, HELLO_BYTES_MAX)
}

fn read_within<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<T> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Err(invalid(format!("a message of {length} bytes: at most {bytes_max}")));
    }
    // A length costs nothing; what comes does.
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

/// Rows, about [`ROWS_BYTES`] at a time.
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

/// A row that came.
pub(in crate::engine) fn row((key, version, value): (Key, u64, StoredValue)) -> (Key, Row) {
    (key, Row { version, value: value.0 })
}

/// Why the other side is not heard any more, for people.
pub(in crate::engine) fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "nothing was heard of it for too long".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Byte strings as such.
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

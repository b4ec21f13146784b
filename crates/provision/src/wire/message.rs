//! One message of MongoDB's wire protocol: its header, and its bytes as they were received.
//!
//! Invariant: the length in the header is the number of bytes, and at most [`MESSAGE_BYTES_MAX`].

use std::io;

use bson::RawDocument;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a message with its header, in bytes: the server's own limit, plus room for the header and a
/// command's fields.
pub const MESSAGE_BYTES_MAX: usize = 48_000_000 + 64 * 1024;

/// Size of a message's header, in bytes.
pub(super) const HEADER_BYTES: usize = 16;
/// Flag of `OP_MSG`: the message ends with a CRC-32C.
pub(super) const FLAG_CHECKSUM: u32 = 1;
/// Flag of `OP_MSG`: on a request, that it has no reply; on a reply, that another one follows.
const FLAG_MORE_TO_COME: u32 = 1 << 1;
/// Flag of `OP_MSG`: the request may have more than one reply.
const FLAG_EXHAUST_ALLOWED: u32 = 1 << 16;
/// Size of one read of a message's content, in bytes. A large message is read in steps, so that a length alone does not
/// reserve memory.
const READ_BYTES: usize = 1 << 20;

/// The kind of a message, by the protocol's opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// `OP_MSG`: a command, or its reply.
    Msg,
    /// `OP_QUERY`: a command of an old driver's handshake.
    Query,
    /// `OP_REPLY`: the reply to an `OP_QUERY`.
    Reply,
    /// `OP_COMPRESSED`: a compressed message.
    Compressed,
    /// Another kind of message, which the proxy does not know; the field is its opcode.
    Other(i32),
}

impl Opcode {
    /// Returns the kind of message with this opcode.
    fn of(number: i32) -> Self {
        match number {
            2013 => Self::Msg,
            2004 => Self::Query,
            1 => Self::Reply,
            2012 => Self::Compressed,
            other => Self::Other(other),
        }
    }

    /// Returns the opcode of the kind of message.
    fn number(self) -> i32 {
        match self {
            Self::Msg => 2013,
            Self::Query => 2004,
            Self::Reply => 1,
            Self::Compressed => 2012,
            Self::Other(other) => other,
        }
    }
}

/// A complete message of the wire protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Reads one message from `stream`; `None` if the peer has closed the connection between messages.
    ///
    /// # Errors
    /// The connection's error, or `InvalidData` for an invalid length.
    pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_BYTES];
        if stream.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut header[1..]).await?;
        let length = i32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let length = usize::try_from(length).unwrap_or(0);
        if !(HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&length) {
            let max = MESSAGE_BYTES_MAX;
            return Err(invalid(format!("a message of {length} bytes: at most {max} pass")));
        }
        let mut bytes = Vec::with_capacity(length.min(READ_BYTES));
        bytes.extend_from_slice(&header);
        while bytes.len() < length {
            let start = bytes.len();
            bytes.resize(length.min(start + READ_BYTES), 0);
            stream.read_exact(&mut bytes[start..]).await?;
        }
        Ok(Some(Self { bytes }))
    }

    /// Writes the message unchanged to `stream`, and flushes the stream.
    ///
    /// # Errors
    /// The connection's error.
    pub async fn write<S: AsyncWrite + Unpin>(&self, stream: &mut S) -> io::Result<()> {
        stream.write_all(&self.bytes).await?;
        stream.flush().await
    }

    /// Makes an `OP_MSG` with the id `id` and one document, in reply to the message of id `response_to` (0: it is not
    /// a reply).
    ///
    /// # Errors
    /// `InvalidData` if the message is larger than [`MESSAGE_BYTES_MAX`].
    pub fn of_body(id: i32, response_to: i32, body: &RawDocument) -> io::Result<Self> {
        Self::of_parts(id, response_to, Opcode::Msg, &[&[0; 5], body.as_bytes()])
    }

    /// Makes a message of a header with these values, and the concatenation of `parts`.
    pub(super) fn of_parts(
        id: i32,
        response_to: i32,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> io::Result<Self> {
        let length = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let field = i32::try_from(length).ok().filter(|_| length <= MESSAGE_BYTES_MAX);
        let field = field.ok_or_else(|| invalid(format!("a message of {length} bytes")))?;
        let mut bytes = Vec::with_capacity(length);
        for field in [field, id, response_to, opcode.number()] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for part in parts {
            bytes.extend_from_slice(part);
        }
        Ok(Self { bytes })
    }

    /// Returns the integer of four bytes in the message's header at the offset `at`, in bytes.
    fn field(&self, at: usize) -> i32 {
        let bytes = self.bytes[at..at + 4].try_into().expect("a message has its header");
        i32::from_le_bytes(bytes)
    }

    /// Returns the message's id, to which its reply refers.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.field(4)
    }

    /// Returns the id of the message that this one replies to; 0 if it is not a reply.
    #[must_use]
    pub fn response_to(&self) -> i32 {
        self.field(8)
    }

    /// Returns the message's kind.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode::of(self.field(12))
    }

    /// Returns all bytes of the message, the header included.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of the message after its header.
    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// Returns the flag bits of an `OP_MSG`; 0 for another kind of message.
    fn flags(&self) -> u32 {
        match (self.opcode(), self.payload().first_chunk::<4>()) {
            (Opcode::Msg, Some(flags)) => u32::from_le_bytes(*flags),
            _ => 0,
        }
    }

    /// Returns true for a request that has no reply, and for a reply that another one follows.
    #[must_use]
    pub fn is_more_to_come(&self) -> bool {
        self.flags() & FLAG_MORE_TO_COME != 0
    }

    /// Returns true for a request that may have more than one reply.
    #[must_use]
    pub fn is_exhaust_allowed(&self) -> bool {
        self.flags() & FLAG_EXHAUST_ALLOWED != 0
    }
}

/// Makes an error of the kind `InvalidData` with this description.
pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

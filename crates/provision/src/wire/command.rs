//! A view of the command or the reply in a message.
//!
//! Invariant: nothing is copied, and every length is checked before it is used.

use std::io;

use bson::{RawDocument, RawDocumentBuf};

use super::message::{FLAG_CHECKSUM, Message, Opcode, invalid};

/// Flag of `OP_MSG`: on a request, that it has no reply; on a reply, that another one follows.
const FLAG_MORE_TO_COME: u32 = 1 << 1;
/// Mask of the flags of `OP_MSG` that a receiver must reject if it does not know them, by the protocol.
const FLAGS_REQUIRED: u32 = 0xffff;

/// A view of the command, or of the reply to a command, in a message.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// The document of the command or the reply; the first key of a command is its name.
    pub body: &'a RawDocument,
    /// Arrays of documents that are sent outside the body (sections of kind 1 of `OP_MSG`).
    pub sequences: Vec<Sequence<'a>>,
    /// Database of a command in a legacy `OP_QUERY`; `None` for `OP_MSG`, whose commands name it in `$db`.
    pub legacy_database: Option<&'a str>,
}

/// An array of documents that belongs to a field of a command, and is sent outside the command's body.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Name of the command's field that the documents belong to.
    pub field: &'a str,
    /// The documents, as consecutive BSON documents.
    bytes: &'a [u8],
}

impl<'a> Sequence<'a> {
    /// Iterates over the documents of the sequence.
    ///
    /// # Errors
    /// `InvalidData` at the first bytes that are not a document; the iteration ends there.
    pub fn documents(self) -> impl Iterator<Item = io::Result<&'a RawDocument>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let document = take_document(&mut rest);
            if document.is_err() {
                rest = &[];
            }
            Some(document)
        })
    }
}

impl<'a> Command<'a> {
    /// Parses the command or reply in a message; `None` for a kind of message that has none.
    fn of(message: &'a Message) -> io::Result<Option<Self>> {
        match message.opcode() {
            Opcode::Msg => Self::of_msg(message).map(Some),
            Opcode::Query => Self::of_query(message.payload()),
            Opcode::Compressed => {
                Err(invalid("a compressed message, although no compression was negotiated"))
            }
            Opcode::Reply | Opcode::Other(_) => Ok(None),
        }
    }

    /// Parses the command or reply in an `OP_MSG`, and verifies the message's checksum if it has one.
    fn of_msg(message: &'a Message) -> io::Result<Self> {
        let mut rest = message.payload();
        let flags = take_u32(&mut rest)?;
        if flags & FLAGS_REQUIRED & !(FLAG_CHECKSUM | FLAG_MORE_TO_COME) != 0 {
            return Err(invalid(format!("a message with the unknown required flags {flags:#x}")));
        }
        if flags & FLAG_CHECKSUM != 0 {
            let (covered, sum) = rest
                .split_last_chunk::<4>()
                .ok_or_else(|| invalid("a message that is too short for its checksum"))?;
            let bytes = message.bytes();
            if crc32c::crc32c(&bytes[..bytes.len() - 4]) != u32::from_le_bytes(*sum) {
                return Err(invalid("a message whose checksum does not match"));
            }
            rest = covered;
        }
        let (mut body, mut sequences) = (None, Vec::new());
        while let Some((kind, after)) = rest.split_first() {
            rest = after;
            match kind {
                0 if body.is_none() => body = Some(take_document(&mut rest)?),
                0 => return Err(invalid("a message with two bodies")),
                1 => sequences.push(take_sequence(&mut rest)?),
                other => return Err(invalid(format!("a message section of kind {other}"))),
            }
        }
        let body = body.ok_or_else(|| invalid("a message without a body"))?;
        Ok(Self { body, sequences, legacy_database: None })
    }

    /// Parses the command in the payload of an `OP_QUERY`; `None` if the message is a query of a collection.
    fn of_query(payload: &'a [u8]) -> io::Result<Option<Self>> {
        let mut rest = payload;
        take_u32(&mut rest)?;
        let namespace = take_name(&mut rest)?;
        let Some(database) = namespace.strip_suffix(".$cmd") else { return Ok(None) };
        take(&mut rest, 8)?;
        let body = take_document(&mut rest)?;
        Ok(Some(Self { body, sequences: Vec::new(), legacy_database: Some(database) }))
    }

    /// Returns the command's name; empty if the body has no field.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.body.iter().next().and_then(Result::ok).map_or("", |(name, _)| name.as_str())
    }

    /// Returns the name of the database that the command is for; empty if the command names none.
    #[must_use]
    pub fn database(&self) -> &'a str {
        self.legacy_database.unwrap_or_else(|| self.body.get_str("$db").unwrap_or(""))
    }

    /// Returns the same command without the field `field` of its body.
    pub(super) fn without(&self, field: &str) -> Changed<'a> {
        let mut body = RawDocumentBuf::new();
        for (name, value) in self.body.iter().flatten() {
            if name.as_str() != field {
                body.append(name, value);
            }
        }
        Changed { body, command: self.clone() }
    }
}

/// A command whose body is replaced by another one.
pub(super) struct Changed<'a> {
    /// The new body.
    body: RawDocumentBuf,
    /// The original command.
    command: Command<'a>,
}

impl Changed<'_> {
    /// Encodes the changed command as a message; `original` is the message that carried the command. The result has
    /// no checksum.
    fn encode(&self, original: &Message) -> io::Result<Message> {
        let (id, to, old) = (original.id(), original.response_to(), original.payload());
        if self.command.legacy_database.is_some() {
            // The flags, the name with its terminator, and the two numbers stay.
            let name = old[4..].iter().position(|byte| *byte == 0).map_or(0, |end| end + 1);
            let start = 4 + name + 8;
            let rest = &old[start + self.command.body.as_bytes().len()..];
            let parts = [&old[..start], self.body.as_bytes(), rest];
            return Message::of_parts(id, to, Opcode::Query, &parts);
        }
        if !self.command.sequences.is_empty() {
            return Err(invalid("a hello with a sequence of documents"));
        }
        let flags = u32::from_le_bytes([old[0], old[1], old[2], old[3]]) & !FLAG_CHECKSUM;
        let parts = [&flags.to_le_bytes()[..], &[0], self.body.as_bytes()];
        Message::of_parts(id, to, Opcode::Msg, &parts)
    }
}

impl Message {
    /// Parses the command or reply in the message; `None` for a kind of message that has none.
    ///
    /// # Errors
    /// `InvalidData` for a message that violates the protocol, and for a checksum that does not match.
    pub fn command(&self) -> io::Result<Option<Command<'_>>> {
        Command::of(self)
    }

    /// Returns a copy of the message without the compression that a client's hello offers; `None` if the message is
    /// not a hello, or offers none. A server that was offered none never compresses.
    ///
    /// # Errors
    /// As [`Message::command`].
    pub fn without_compression(&self) -> io::Result<Option<Self>> {
        // Search for the bytes first: a hello comes once per connection, other messages all the time.
        if !contains(self.bytes(), b"compression\0") {
            return Ok(None);
        }
        let Some(command) = self.command()? else { return Ok(None) };
        if !is_hello(command.name()) {
            return Ok(None);
        }
        command.without("compression").encode(self).map(Some)
    }
}

/// Returns true if `bytes` contain the bytes `part`; always false for messages that are too large for a hello.
fn contains(bytes: &[u8], part: &[u8]) -> bool {
    const HELLO_BYTES_MAX: usize = 16 * 1024;
    bytes.len() <= HELLO_BYTES_MAX && bytes.windows(part.len()).any(|window| window == part)
}

/// Returns true if `name` is a command by which a client opens a connection: `hello` or `isMaster`.
fn is_hello(name: &str) -> bool {
    name.eq_ignore_ascii_case("hello") || name.eq_ignore_ascii_case("ismaster")
}

/// Consumes a section of kind 1 (a sequence of documents) from the start of `rest`.
fn take_sequence<'a>(rest: &mut &'a [u8]) -> io::Result<Sequence<'a>> {
    let mut section = take(rest, peek_length(rest)?)?;
    take_u32(&mut section)?;
    let field = take_name(&mut section)?;
    Ok(Sequence { field, bytes: section })
}

/// Consumes a BSON document from the start of `rest`.
fn take_document<'a>(rest: &mut &'a [u8]) -> io::Result<&'a RawDocument> {
    let bytes = take(rest, peek_length(rest)?)?;
    RawDocument::from_bytes(bytes).map_err(|error| invalid(error.to_string()))
}

/// Returns the length, a little-endian integer of four bytes, at the start of `bytes`, without consuming it.
fn peek_length(bytes: &[u8]) -> io::Result<usize> {
    let length =
        bytes.first_chunk::<4>().ok_or_else(|| invalid("a message that ends inside a length"))?;
    usize::try_from(i32::from_le_bytes(*length))
        .map_err(|_| invalid("a message with a negative length"))
}

/// Consumes `count` bytes from the start of `rest` and returns them.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (taken, after) = rest
        .split_at_checked(count)
        .ok_or_else(|| invalid("a message that ends inside a section"))?;
    *rest = after;
    Ok(taken)
}

/// Consumes a little-endian integer of four bytes from the start of `rest` and returns it.
fn take_u32(rest: &mut &[u8]) -> io::Result<u32> {
    let bytes = take(rest, 4)?;
    Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
}

/// Consumes a name that ends with a zero byte from the start of `rest`, and returns it without that byte.
fn take_name<'a>(rest: &mut &'a [u8]) -> io::Result<&'a str> {
    let end = rest.iter().position(|byte| *byte == 0);
    let end = end.ok_or_else(|| invalid("a message with an unterminated name"))?;
    let name = &take(rest, end + 1)?[..end];
    std::str::from_utf8(name).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::super::message::HEADER_BYTES;
    use super::*;
    use bson::rawdoc;

    async fn read(bytes: &[u8]) -> io::Result<Option<Message>> {
        Message::read(&mut &*bytes).await
    }

    fn msg(flags: u32, sections: &[u8]) -> Message {
        Message::of_parts(7, 0, Opcode::Msg, &[&flags.to_le_bytes(), sections]).unwrap()
    }

    fn body(document: &RawDocument) -> Vec<u8> {
        [&[0], document.as_bytes()].concat()
    }

    #[tokio::test]
    async fn what_was_written_is_read_again() {
        let ping = rawdoc! { "ping": 1, "$db": "shop" };
        let sent = Message::of_body(3, 2, &ping).unwrap();
        let mut bytes = Vec::new();
        sent.write(&mut bytes).await.unwrap();
        let came = read(&bytes).await.unwrap().unwrap();
        assert_eq!((came.id(), came.response_to(), came.opcode()), (3, 2, Opcode::Msg));
        let command = came.command().unwrap().unwrap();
        assert_eq!((command.name(), command.database(), command.body), ("ping", "shop", &*ping));
        assert!(!came.is_more_to_come() && !came.is_exhaust_allowed());
    }

    #[tokio::test]
    async fn a_message_cut_anywhere_is_an_error_or_the_end_never_a_message() {
        let whole = Message::of_body(1, 0, &rawdoc! { "ping": 1 }).unwrap();
        for cut in 0..whole.bytes().len() {
            let came = read(&whole.bytes()[..cut]).await;
            assert!(!matches!(came, Ok(Some(_))), "{cut}");
        }
    }

    #[tokio::test]
    async fn a_length_that_no_message_has_is_refused_before_anything_is_reserved() {
        for length in [i32::MAX, -1, 0, 15] {
            let bytes = [&length.to_le_bytes()[..], &[0; 12]].concat();
            assert!(read(&bytes).await.is_err(), "{length}");
        }
    }

    #[test]
    fn bytes_damaged_anywhere_are_an_error_or_a_command_never_a_panic() {
        let item = rawdoc! { "_id": 1 };
        let mut sections = body(&rawdoc! { "insert": "reviews", "$db": "shop" });
        sections.push(1);
        let length = u32::try_from(4 + 10 + item.as_bytes().len()).unwrap();
        sections.extend_from_slice(&length.to_le_bytes());
        sections.extend_from_slice(b"documents\0");
        sections.extend_from_slice(item.as_bytes());
        let whole = msg(0, &sections);
        let command = whole.command().unwrap().unwrap();
        let documents: Vec<_> = command.sequences[0].documents().map(Result::unwrap).collect();
        assert_eq!((command.sequences[0].field, documents), ("documents", vec![&*item]));
        for at in 0..sections.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = sections.clone();
                damaged[at] = value;
                let damaged = msg(0, &damaged);
                if let Ok(Some(command)) = damaged.command() {
                    let (_, _) = (command.name(), command.database());
                    let _count: usize =
                        command.sequences.iter().map(|one| one.documents().count()).sum();
                }
            }
        }
    }

    #[test]
    fn a_checksum_is_checked_and_an_unknown_required_flag_refused() {
        let section = body(&rawdoc! { "ping": 1 });
        let unsummed = msg(FLAG_CHECKSUM, &[&section[..], &[0; 4]].concat());
        let covered = &unsummed.bytes()[..unsummed.bytes().len() - 4];
        let sum = crc32c::crc32c(covered).to_le_bytes();
        let summed = msg(FLAG_CHECKSUM, &[&section[..], &sum].concat());
        assert_eq!(summed.command().unwrap().unwrap().name(), "ping");
        assert!(unsummed.command().is_err());
        assert!(msg(1 << 5, &section).command().is_err());
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn compression_is_taken_out_of_a_hello_and_of_nothing_else() {
        let hello = rawdoc! { "hello": 1, "compression": ["zstd"], "$db": "admin" };
        let plain = rawdoc! { "hello": 1, "$db": "admin" };
        let offered = msg(1 << 16, &body(&hello)).without_compression().unwrap().unwrap();
        assert_eq!(offered.command().unwrap().unwrap().body, &*plain);
        assert!(offered.is_exhaust_allowed(), "its flags stay");
        assert_eq!(msg(0, &body(&plain)).without_compression().unwrap(), None);
        let found = rawdoc! { "find": "reviews", "filter": { "compression": 1 } };
        assert_eq!(msg(0, &body(&found)).without_compression().unwrap(), None);

        let legacy = rawdoc! { "isMaster": 1, "compression": ["snappy"] };
        let start = [&[4, 0, 0, 0][..], b"admin.$cmd\0", &[0; 4], &(-1i32).to_le_bytes()].concat();
        let query = Message::of_parts(5, 0, Opcode::Query, &[&start, legacy.as_bytes()]).unwrap();
        let without = query.without_compression().unwrap().unwrap();
        let command = without.command().unwrap().unwrap();
        assert_eq!((command.body, command.database()), (&*rawdoc! { "isMaster": 1 }, "admin"));
        assert_eq!(&without.bytes()[HEADER_BYTES..][..start.len()], &start[..]);
    }

    #[test]
    fn a_compressed_message_is_refused() {
        let message = Message::of_parts(1, 0, Opcode::Compressed, &[&[0; 9]]).unwrap();
        assert!(message.command().is_err());
    }
}

//! Messages of the wire protocol, according to the server's documentation: `OP_MSG` with body and document
//! sequences, and the legacy `OP_QUERY`, which old drivers still use for the handshake.
//!
//! Invariant: large arrays are never decoded. The documents of a write are forwarded as raw BSON from client to
//! shard, whether the client put them into a sequence or into the body.

use std::io;

use bson::raw::{CStr, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, Document};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const OP_REPLY: i32 = 1;
const OP_QUERY: i32 = 2004;
const OP_MSG: i32 = 2013;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES_MAX: usize = 48_000_000 + 64 * 1024;

const FLAG_CHECKSUM: u32 = 1;
const FLAG_MORE_TO_COME: u32 = 1 << 1;
/// Mask of the flag bits of `OP_MSG` that a receiver must reject if it does not know them, according to the protocol.
const FLAGS_REQUIRED: u32 = 0xffff;

/// Name of each write command, and of its field with the array of documents.
const WRITE_ARRAYS: [(&str, &str); 3] =
    [("insert", "documents"), ("update", "updates"), ("delete", "deletes")];

/// Documents of a write command, separate from the command's body.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    /// Name of the command's field to which the documents belong, for example `updates`.
    pub(super) field: String,
    /// Documents as raw BSON, in the order of the client's command.
    pub(super) documents: Vec<RawDocumentBuf>,
}

/// A command that a client sent to the router.
#[derive(Debug)]
pub(super) struct Request {
    /// Id of the client's message, which the reply repeats.
    pub(super) id: i32,
    /// The decoded command without the array of a write; its first key is the command's name.
    pub(super) body: Document,
    /// Documents of a write command; `None` for other commands.
    pub(super) sequence: Option<Sequence>,
    /// True if the client expects no reply to this message.
    pub(super) more_to_come: bool,
    /// True if the command came as the legacy `OP_QUERY`, which determines the form of the reply.
    pub(super) legacy: bool,
}

impl Request {
    /// Returns the command's name, or an empty text if the body is empty.
    pub(super) fn name(&self) -> &str {
        self.body.keys().next().map_or("", String::as_str)
    }
}

/// Reads one message of a client. Returns `None` if the client has closed the connection between messages.
pub(super) async fn read_request<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> io::Result<Option<Request>> {
    let Some((header, payload)) = read_message(stream).await? else { return Ok(None) };
    match header.opcode {
        OP_MSG => parse_msg(&header, &payload).map(Some),
        OP_QUERY => parse_query(&header, &payload).map(Some),
        other => {
            Err(invalid(format!("message of opcode {other}, which this router does not speak")))
        }
    }
}

struct Header {
    bytes: [u8; HEADER_BYTES],
    id: i32,
    opcode: i32,
}

async fn read_message<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> io::Result<Option<(Header, Vec<u8>)>> {
    let mut bytes = [0; HEADER_BYTES];
    if stream.read(&mut bytes[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut bytes[1..]).await?;
    let field = |at: usize| {
        i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes are an i32"))
    };
    let length = usize::try_from(field(0)).unwrap_or(0);
    if !(HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(invalid(format!(
            "message of {length} bytes, at most {MESSAGE_BYTES_MAX} pass"
        )));
    }
    let mut payload = vec![0; length - HEADER_BYTES];
    stream.read_exact(&mut payload).await?;
    Ok(Some((Header { bytes, id: field(4), opcode: field(12) }, payload)))
}

fn parse_msg(header: &Header, payload: &[u8]) -> io::Result<Request> {
    let mut rest = payload;
    let flags = take_u32(&mut rest)?;
    if flags & FLAGS_REQUIRED & !(FLAG_CHECKSUM | FLAG_MORE_TO_COME) != 0 {
        return Err(invalid(format!("message with unknown required flags {flags:#x}")));
    }
    if flags & FLAG_CHECKSUM != 0 {
        let (covered, sum) = rest
            .split_last_chunk::<4>()
            .ok_or_else(|| invalid("message too short for its checksum".into()))?;
        let computed = crc32c(&[&header.bytes, &payload[..payload.len() - 4]]);
        if computed != u32::from_le_bytes(*sum) {
            return Err(invalid("message whose checksum does not match".into()));
        }
        rest = covered;
    }
    let mut body = None;
    let mut sequence = None;
    while let Some((kind, after)) = rest.split_first() {
        rest = after;
        match kind {
            0 => {
                let length = peek_length(rest)?;
                body = Some(parse_body(take(&mut rest, length)?, &mut sequence)?);
            }
            1 => sequence = Some(parse_sequence(&mut rest)?),
            other => return Err(invalid(format!("message section of kind {other}"))),
        }
    }
    let body = body.ok_or_else(|| invalid("message without a body".into()))?;
    let more_to_come = flags & FLAG_MORE_TO_COME != 0;
    Ok(Request { id: header.id, body, sequence, more_to_come, legacy: false })
}

fn parse_query(header: &Header, payload: &[u8]) -> io::Result<Request> {
    let mut rest = payload;
    take_u32(&mut rest)?;
    let namespace = take_cstring(&mut rest)?;
    let database = namespace
        .strip_suffix(".$cmd")
        .ok_or_else(|| invalid(format!("legacy query on {namespace}: only commands pass")))?
        .to_owned();
    take(&mut rest, 8)?;
    let length = peek_length(rest)?;
    let mut sequence = None;
    let mut body = parse_body(take(&mut rest, length)?, &mut sequence)?;
    body.insert("$db", database);
    Ok(Request { id: header.id, body, sequence, more_to_come: false, legacy: true })
}

/// Decodes the body of a command except the array of a write, which is stored in `sequence`.
fn parse_body(bytes: &[u8], sequence: &mut Option<Sequence>) -> io::Result<Document> {
    let raw = RawDocument::from_bytes(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut body = Document::new();
    let command = raw.iter().next().and_then(Result::ok).map_or("", |(key, _)| key.as_str());
    let array = WRITE_ARRAYS.iter().find(|(name, _)| *name == command).map(|(_, field)| *field);
    for element in raw {
        let (key, value) = element.map_err(|error| invalid(error.to_string()))?;
        match value {
            RawBsonRef::Array(items) if Some(key.as_str()) == array => {
                let mut documents = Vec::new();
                for item in items {
                    match item.map_err(|error| invalid(error.to_string()))? {
                        RawBsonRef::Document(document) => documents.push(document.to_owned()),
                        other => {
                            let kind = other.element_type();
                            return Err(invalid(format!("{key} with an element of type {kind:?}")));
                        }
                    }
                }
                *sequence = Some(Sequence { field: key.as_str().to_owned(), documents });
            }
            value => {
                let value = Bson::try_from(value).map_err(|error| invalid(error.to_string()))?;
                body.insert(key.as_str(), value);
            }
        }
    }
    Ok(body)
}

fn parse_sequence(rest: &mut &[u8]) -> io::Result<Sequence> {
    let length = peek_length(rest)?;
    let mut section = take(rest, length)?;
    take_u32(&mut section)?;
    let field = take_cstring(&mut section)?;
    let mut documents = Vec::new();
    while !section.is_empty() {
        let length = peek_length(section)?;
        let bytes = take(&mut section, length)?.to_vec();
        documents
            .push(RawDocumentBuf::from_bytes(bytes).map_err(|error| invalid(error.to_string()))?);
    }
    Ok(Sequence { field, documents })
}

/// Sends the command `body` to a server, as a message with the id `id`. `sequence` is the name of the documents'
/// field and the documents; it is borrowed, because a retry sends the same documents again.
pub(super) async fn write_command<S: AsyncWrite + Unpin>(
    stream: &mut S,
    id: i32,
    body: &Document,
    sequence: Option<(&str, &[&RawDocument])>,
) -> io::Result<()> {
    let mut payload = 0u32.to_le_bytes().to_vec();
    payload.push(0);
    payload.extend_from_slice(&body.to_vec().map_err(|error| invalid(error.to_string()))?);
    if let Some((field, documents)) = sequence {
        payload.push(1);
        let content: usize = documents.iter().map(|document| document.as_bytes().len()).sum();
        payload.extend_from_slice(&length_field(4 + field.len() + 1 + content)?);
        payload.extend_from_slice(field.as_bytes());
        payload.push(0);
        payload.reserve(content);
        for document in documents {
            payload.extend_from_slice(document.as_bytes());
        }
    }
    write_message(stream, id, 0, OP_MSG, &payload).await
}

/// Reads a server's reply, which must consist of one document.
pub(super) async fn read_answer<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> io::Result<RawDocumentBuf> {
    let message = read_message(stream).await?;
    let (header, mut payload) =
        message.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    if header.opcode != OP_MSG || payload.len() < 5 || payload[4] != 0 {
        return Err(invalid("answer that is not one document".into()));
    }
    let length = peek_length(&payload[5..])?;
    payload.drain(..5);
    payload.truncate(length);
    RawDocumentBuf::from_bytes(payload).map_err(|error| invalid(error.to_string()))
}

/// Sends `answer` to a client as the reply to message `request_id`; `legacy` is true if that message was an
/// `OP_QUERY`.
pub(super) async fn write_answer<S: AsyncWrite + Unpin>(
    stream: &mut S,
    request_id: i32,
    legacy: bool,
    answer: &RawDocument,
) -> io::Result<()> {
    let mut payload = Vec::with_capacity(32 + answer.as_bytes().len());
    if legacy {
        // Flags (8: await capable), cursor id, starting from, number returned.
        payload.extend_from_slice(&8u32.to_le_bytes());
        payload.extend_from_slice(&0u64.to_le_bytes());
        payload.extend_from_slice(&0u32.to_le_bytes());
        payload.extend_from_slice(&1u32.to_le_bytes());
    } else {
        payload.extend_from_slice(&[0; 5]);
    }
    payload.extend_from_slice(answer.as_bytes());
    let opcode = if legacy { OP_REPLY } else { OP_MSG };
    write_message(stream, request_id, request_id, opcode, &payload).await
}

async fn write_message<S: AsyncWrite + Unpin>(
    stream: &mut S,
    id: i32,
    response_to: i32,
    opcode: i32,
    payload: &[u8],
) -> io::Result<()> {
    let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
    message.extend_from_slice(&length_field(HEADER_BYTES + payload.len())?);
    for field in [id, response_to, opcode] {
        message.extend_from_slice(&field.to_le_bytes());
    }
    message.extend_from_slice(payload);
    stream.write_all(&message).await?;
    stream.flush().await
}

/// Returns a copy of `document` without the fields whose names `drop` accepts.
pub(super) fn without(document: &RawDocument, drop: impl Fn(&CStr) -> bool) -> RawDocumentBuf {
    let mut kept = RawDocumentBuf::new();
    for (key, value) in document.iter().flatten() {
        if !drop(key) {
            kept.append(key, value);
        }
    }
    kept
}

fn length_field(length: usize) -> io::Result<[u8; 4]> {
    let length = i32::try_from(length).map_err(|_| invalid(format!("length of {length} bytes")))?;
    Ok(length.to_le_bytes())
}

fn peek_length(bytes: &[u8]) -> io::Result<usize> {
    let (length, _) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| invalid("message that ends inside a length".into()))?;
    usize::try_from(i32::from_le_bytes(*length))
        .map_err(|_| invalid("message with a negative length".into()))
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (taken, after) = rest
        .split_at_checked(count)
        .ok_or_else(|| invalid("message that ends inside a section".into()))?;
    *rest = after;
    Ok(taken)
}

fn take_u32(rest: &mut &[u8]) -> io::Result<u32> {
    let bytes = take(rest, 4)?;
    Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
}

fn take_cstring(rest: &mut &[u8]) -> io::Result<String> {
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(|| invalid("message with an endless name".into()))?;
    let name = take(rest, end + 1)?[..end].to_vec();
    String::from_utf8(name).map_err(|error| invalid(error.to_string()))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns the CRC-32C (Castagnoli), reflected, of the concatenated `parts`. It is computed bit by bit, because
/// checksums are rare here.
fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in parts.iter().copied().flatten() {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{doc, rawdoc};

    fn message(flags: u32, sections: &[u8], checksum: bool) -> Vec<u8> {
        let length = HEADER_BYTES + 4 + sections.len() + if checksum { 4 } else { 0 };
        let mut bytes = Vec::new();
        for field in [i32::try_from(length).unwrap(), 7, 0, OP_MSG] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(sections);
        if checksum {
            bytes.extend_from_slice(&crc32c(&[&bytes]).to_le_bytes());
        }
        bytes
    }

    fn body_section(body: &Document) -> Vec<u8> {
        [vec![0], body.to_vec().unwrap()].concat()
    }

    #[test]
    fn crc32c_of_the_standard_check_input() {
        assert_eq!(crc32c(&[b"1234", b"56789"]), 0xe306_9283);
    }

    #[tokio::test]
    async fn documents_in_the_body_and_in_a_sequence_are_read_alike() {
        let item = rawdoc! { "_id": 1 };
        let in_body = body_section(&doc! { "insert": "c", "documents": [{ "_id": 1 }] });
        let mut in_sequence = body_section(&doc! { "insert": "c" });
        in_sequence.push(1);
        let length = 4 + 10 + item.as_bytes().len();
        in_sequence.extend_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        in_sequence.extend_from_slice(b"documents\0");
        in_sequence.extend_from_slice(item.as_bytes());
        for sections in [in_body, in_sequence] {
            let bytes = message(0, &sections, false);
            let request = read_request(&mut &*bytes).await.unwrap().unwrap();
            assert_eq!(request.body, doc! { "insert": "c" });
            assert_eq!(request.sequence.unwrap().documents, std::slice::from_ref(&item));
        }
    }

    #[tokio::test]
    async fn a_checksum_is_checked() {
        let section = body_section(&doc! { "ping": 1 });
        let mut bytes = message(FLAG_CHECKSUM, &section, true);
        assert!(read_request(&mut &*bytes).await.is_ok());
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(read_request(&mut &*bytes).await.is_err());
    }

    #[tokio::test]
    async fn an_unknown_required_flag_is_refused() {
        let bytes = message(1 << 5, &body_section(&doc! { "ping": 1 }), false);
        assert!(read_request(&mut &*bytes).await.is_err());
    }

    #[tokio::test]
    async fn an_array_of_another_command_stays_in_the_body() {
        let body = doc! { "aggregate": "c", "updates": [{ "a": 1 }] };
        let bytes = message(0, &body_section(&body), false);
        let request = read_request(&mut &*bytes).await.unwrap().unwrap();
        assert_eq!(request.body, body);
        assert!(request.sequence.is_none());
    }

    #[tokio::test]
    async fn a_message_cut_anywhere_is_an_error_or_the_end_never_a_request() {
        let bytes = message(0, &body_section(&doc! { "ping": 1 }), false);
        for cut in 0..bytes.len() {
            let read = read_request(&mut &bytes[..cut]).await;
            assert!(!matches!(read, Ok(Some(_))), "{cut}");
        }
    }
}

//! The part of Kafka's protocol that the log needs: five requests, each in the oldest version that
//! Kafka 4 still accepts, and the format of records.
//!
//! A message is its length and a body. A request's body begins with its kind, its version, an id
//! with which the reply begins too, and the client's name. Numbers have their most significant byte
//! first. A text is preceded by its length in two bytes, an array by its number of elements in four.
//!
//! It is implemented here because the maintained client libraries bring a
//! runtime and authentication with their own second versions of a dozen libraries, or every message
//! that Kafka has.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Maximum size of a reply, in bytes.
const ANSWER_BYTES_MAX: usize = 100 * 1024 * 1024;
/// The client's name in requests.
const CLIENT: &str = "imago";

/// A kind of request, and the version in which it is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api(i16, i16);

/// Appends records to a partition.
pub(super) const PRODUCE: Api = Api(0, 3);
/// Reads records of a partition.
pub(super) const FETCH: Api = Api(1, 4);
/// Returns the brokers and a topic's leader.
pub(super) const METADATA: Api = Api(3, 4);
/// Creates a topic.
pub(super) const CREATE_TOPICS: Api = Api(19, 2);
/// Returns the settings of a topic.
pub(super) const DESCRIBE_CONFIGS: Api = Api(32, 1);

/// A connection to a broker, with one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Number of the last request.
    id: i32,
}

impl Connection {
    /// Connects to `host:port`. Each later read and write fails if the broker is silent for the given time.
    pub(super) fn open(address: &str, silence: Duration) -> io::Result<Self> {
        let mut last = invalid("its name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, silence) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(silence))?;
                    stream.set_write_timeout(Some(silence))?;
                    return Ok(Self { stream, id: 0 });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a request and returns the reply. After a failure, the connection must not be used any more.
    pub(super) fn ask(&mut self, api: Api, body: &Writer) -> io::Result<Reader> {
        self.id = self.id.wrapping_add(1);
        let mut head = Writer::default();
        head.i16(api.0).i16(api.1).i32(self.id).text(CLIENT);
        let length = head.0.len() + body.0.len();
        let mut message = Writer::default();
        message.count(length)?;
        message.0.extend_from_slice(&head.0);
        message.0.extend_from_slice(&body.0);
        self.stream.write_all(&message.0)?;

        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > ANSWER_BYTES_MAX {
            return Err(invalid("its answer is too long to be one"));
        }
        let mut content = vec![0; length];
        self.stream.read_exact(&mut content)?;
        let mut answer = Reader { content, at: 0 };
        if answer.i32()? != self.id {
            return Err(invalid("its answer is to something else"));
        }
        Ok(answer)
    }
}

/// Returns the error of a broker's message that cannot be parsed.
pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A buffer for the body of a request.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn i8(&mut self, value: i8) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn i16(&mut self, value: i16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn i32(&mut self, value: i32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a text with its length: the name of a topic or a setting, which are short.
    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        let length = i16::try_from(value.len()).expect("names are short");
        self.i16(length).bytes(value.as_bytes())
    }

    /// Appends an absent text.
    pub(super) fn no_text(&mut self) -> &mut Self {
        self.i16(-1)
    }

    /// Appends a length, or the number of elements that follow.
    pub(super) fn count(&mut self, count: usize) -> io::Result<&mut Self> {
        let count = i32::try_from(count).map_err(|_| invalid("more than a message holds"))?;
        Ok(self.i32(count))
    }

    /// Appends a number in the encoding of records: the smaller its absolute value, the fewer bytes.
    fn varint(&mut self, value: i64) -> &mut Self {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            self.0.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        self.0.push(rest.to_le_bytes()[0]);
        self
    }
}

/// The content of a reply, and the offset up to which it was parsed.
#[derive(Debug)]
pub(super) struct Reader {
    content: Vec<u8>,
    at: usize,
}

impl Reader {
    pub(super) fn of(content: Vec<u8>) -> Self {
        Self { content, at: 0 }
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let found = self.content.get(self.at..self.at + N).and_then(|found| found.try_into().ok());
        self.at += N;
        found.ok_or_else(|| invalid("it ends too early"))
    }

    pub(super) fn i8(&mut self) -> io::Result<i8> {
        self.array().map(i8::from_be_bytes)
    }

    pub(super) fn i16(&mut self) -> io::Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> io::Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> io::Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a length or a number of elements; an absent array counts as 0.
    pub(super) fn count(&mut self) -> io::Result<usize> {
        Ok(usize::try_from(self.i32()?).unwrap_or(0))
    }

    /// Reads a text; an absent one is returned as empty.
    pub(super) fn text(&mut self) -> io::Result<String> {
        let length = usize::try_from(self.i16()?).unwrap_or(0);
        String::from_utf8(self.take(length)?).map_err(|_| invalid("a text that is none"))
    }

    /// Reads a number of bytes.
    pub(super) fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let found = self.content.get(self.at..self.at.saturating_add(length)).map(<[u8]>::to_vec);
        self.at = self.at.saturating_add(length);
        found.ok_or_else(|| invalid("it ends too early"))
    }

    /// Returns the number of bytes that are not read yet.
    pub(super) fn left(&self) -> usize {
        self.content.len().saturating_sub(self.at)
    }

    /// Reads a number in the encoding of records.
    fn varint(&mut self) -> io::Result<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(invalid("a number that does not end"))
    }
}

/// Version of the format of batches.
const BATCH_VERSION: i8 = 2;
/// Bits of a batch's attributes that name its compression.
const COMPRESSED: i16 = 0b111;
/// Bit of a batch's attributes that marks a control batch of Kafka.
const CONTROL: i16 = 1 << 5;

/// Returns a batch with one record, which has this value.
pub(super) fn batch(value: &[u8]) -> io::Result<Writer> {
    let mut record = Writer::default();
    let length = i64::try_from(value.len()).map_err(|_| invalid("more than a record holds"))?;
    // Attributes, time and offset within the batch; no key; the value; no headers.
    record.i8(0).varint(0).varint(0).varint(-1).varint(length).bytes(value).varint(0);

    let mut checked = Writer::default();
    // Attributes, the last offset within the batch, its first and last time.
    checked.i16(0).i32(0).i64(0).i64(0);
    // No producer with an id, an epoch and a sequence; one record.
    checked.i64(-1).i16(-1).i32(-1).i32(1);
    checked.varint(record.0.len() as i64).bytes(&record.0);

    let mut batch = Writer::default();
    // The batch's offset, which the broker sets; then, counted in its length: the leader's epoch (set by
    // the broker too), the version, the checksum.
    batch.i64(0).count(4 + 1 + 4 + checked.0.len())?.i32(-1).i8(BATCH_VERSION);
    batch.bytes(&crc32c::crc32c(&checked.0).to_be_bytes()).bytes(&checked.0);
    Ok(batch)
}

impl Writer {
    /// Appends bytes with their length before them.
    pub(super) fn sized(&mut self, value: &Writer) -> io::Result<&mut Self> {
        Ok(self.count(value.0.len())?.bytes(&value.0))
    }
}

/// A batch as it was read.
#[derive(Debug)]
pub(super) struct Batch {
    /// The offset after the batch's last record.
    pub(super) next: i64,
    /// The offset and the value of each record; empty for a control batch of Kafka.
    pub(super) records: Vec<(i64, Vec<u8>)>,
}

/// Reads the next batch of a fetch, or returns `None` if only a part of it was fetched, or nothing is left.
pub(super) fn read_batch(fetched: &mut Reader) -> io::Result<Option<Batch>> {
    const HEAD: usize = 8 + 4;
    if fetched.left() < HEAD {
        return Ok(None);
    }
    let (first, length) = (fetched.i64()?, fetched.count()?);
    if fetched.left() < length {
        return Ok(None);
    }
    let mut batch = Reader::of(fetched.take(length)?);
    let _leader_epoch = batch.i32()?;
    if batch.i8()? != BATCH_VERSION {
        return Err(invalid("a record of a format from before Kafka 0.11"));
    }
    let stored = batch.i32()?.cast_unsigned();
    if crc32c::crc32c(&batch.content[batch.at..]) != stored {
        return Err(invalid("a record whose checksum is wrong"));
    }
    let attributes = batch.i16()?;
    let next = first + i64::from(batch.i32()?) + 1;
    if attributes & CONTROL != 0 {
        return Ok(Some(Batch { next, records: Vec::new() }));
    }
    if attributes & COMPRESSED != 0 {
        return Err(invalid("a compressed record: set the topic's compression.type to producer"));
    }
    // Two times, the producer's id, epoch and sequence.
    batch.take(8 + 8 + 8 + 2 + 4)?;
    let many = batch.count()?;
    let records = (0..many).map(|_| read_record(&mut batch, first));
    Ok(Some(Batch { next, records: records.collect::<io::Result<_>>()? }))
}

/// Reads a record of a batch whose first offset is `first`, and returns its offset and value.
fn read_record(batch: &mut Reader, first: i64) -> io::Result<(i64, Vec<u8>)> {
    let length = batch.varint()?;
    let length = usize::try_from(length).map_err(|_| invalid("a record of no length"))?;
    let mut record = Reader::of(batch.take(length)?);
    record.i8()?;
    record.varint()?;
    let offset = first + record.varint()?;
    let key = usize::try_from(record.varint()?).unwrap_or(0);
    record.take(key)?;
    let value = usize::try_from(record.varint()?).unwrap_or(0);
    Ok((offset, record.take(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        for length in [0, 1, 63, 64, 8_191, 8_192, 100_000] {
            let value: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
            let mut fetched = Reader::of(batch(&value).unwrap().0);
            let read = read_batch(&mut fetched).unwrap().unwrap();
            assert_eq!((read.next, read.records), (1, vec![(0, value)]));
            assert!(read_batch(&mut fetched).unwrap().is_none());
        }
    }

    #[test]
    fn half_a_batch_is_none_and_a_changed_one_is_an_error() {
        let whole = batch(b"value").unwrap().0;
        for end in 0..whole.len() {
            assert!(read_batch(&mut Reader::of(whole[..end].to_vec())).unwrap().is_none());
        }
        for at in 17..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(read_batch(&mut Reader::of(changed)).is_err(), "{at}");
        }
    }

    #[test]
    fn numbers_of_either_sign_come_back() {
        for value in [0, -1, 1, 63, -64, 64, 300, i64::from(i32::MAX), i64::MAX, i64::MIN] {
            let mut written = Writer::default();
            written.varint(value);
            assert_eq!(Reader::of(written.0).varint().unwrap(), value);
        }
    }
}

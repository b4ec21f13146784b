//! Parses requests from a stream of bytes, which may be cut anywhere.
//!
//! One buffer holds the received bytes that have not been consumed, and a list holds the positions of the present
//! request's arguments in the buffer. Both are reused for the next request, so that parsing allocates nothing for a
//! request. The parser remembers its progress in an incomplete request: however finely the stream is cut, no byte is
//! examined twice.
//!
//! Why not a crate: `redis-protocol`, `resp-rs`, `redis-parser` and similar crates parse *frames* of both
//! directions. They parse an incomplete frame again from its first byte, allocate for each argument, and
//! support no inline requests. They limit nothing, or the size of a frame. A server must limit lines and
//! arguments, and must set stricter limits for a client that is not authenticated.
//!
//! Invariants:
//! 1. The parsed requests do not depend on where the stream was cut.
//! 2. The unconsumed bytes are at most [`Limits::request_bytes_max`] plus the limit of one line, and the
//!    buffer holds at most twice that. No memory is reserved for a length that is only announced.

use memchr::memchr;

use super::number;

/// Maximum length of one line of a request, in bytes: an inline request, or a count.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of arguments of one request.
const ARGUMENTS_MAX: i64 = 1024 * 1024;
/// Maximum number of arguments of a request, and maximum length of one argument in bytes, from a client that is not
/// authenticated.
const STRANGERS_ARGUMENTS_MAX: i64 = 10;
const STRANGERS_BYTES_MAX: i64 = 16 * 1024;
/// Maximum capacity of each of the two buffers that an idle connection's parser retains, in bytes.
pub(super) const RETAINED_BYTES_MAX: usize = 64 * 1024;

/// Limits of the requests of one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum length of one request, in bytes on the wire.
    pub request_bytes_max: usize,
    /// True if the client is not authenticated yet.
    pub is_stranger: bool,
}

/// The error text for bytes that are not a request; nothing after them can be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub Vec<u8>);

/// Returns the protocol error with this description.
fn malformed<T>(what: impl AsRef<[u8]>) -> Result<T, Malformed> {
    Err(Malformed([b"ERR Protocol error: ", what.as_ref()].concat()))
}

/// The start and the end of one argument, in bytes from the start of its request.
#[derive(Clone, Copy, Debug)]
struct Slice {
    from: u32,
    to: u32,
}

/// The arguments of a request, the command's name first; there is at least one.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    bytes: &'a [u8],
    slices: &'a [Slice],
}

impl<'a> Arguments<'a> {
    /// Returns the number of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Returns the argument at `index`, which must exist.
    pub fn at(&self, index: usize) -> &'a [u8] {
        let Slice { from, to } = self.slices[index];
        &self.bytes[from as usize..to as usize]
    }

    /// Returns the argument at `index`, or `None` if there are too few arguments.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.len()).then(|| self.at(index))
    }

    /// Returns an iterator of the arguments from `index` on; it is empty if there are fewer.
    pub fn from(&self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        let slices = self.slices.get(index..).unwrap_or_default();
        slices.iter().map(move |slice| &bytes[slice.from as usize..slice.to as usize])
    }

    /// Returns the arguments without the first `count`; at least one must be left.
    pub fn behind(&self, count: usize) -> Self {
        Self { bytes: self.bytes, slices: &self.slices[count..] }
    }

    /// Returns true if the argument at `index` is this word, in upper or lower case.
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Returns a copy of the arguments, which outlives the parser's buffer.
    pub fn keep(&self) -> Kept {
        let mut kept = Kept { bytes: Vec::new(), slices: Vec::with_capacity(self.len()) };
        kept.bytes.reserve_exact(self.from(0).map(<[u8]>::len).sum());
        for argument in self.from(0) {
            kept.push(argument);
        }
        kept
    }
}

/// A copy of a request's arguments that outlives the buffer in which they arrived.
#[derive(Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    slices: Vec<Slice>,
}

impl Kept {
    /// Returns a copy of arguments that do not come from a parser, such as those in a script.
    pub fn of<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut kept = Self::default();
        arguments.into_iter().for_each(|argument| kept.push(argument));
        kept
    }

    fn push(&mut self, argument: &[u8]) {
        let from = self.bytes.len() as u32;
        self.bytes.extend_from_slice(argument);
        self.slices.push(Slice { from, to: self.bytes.len() as u32 });
    }

    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { bytes: &self.bytes, slices: &self.slices }
    }

    /// Returns the memory that the copy uses, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + self.slices.len() * size_of::<Slice>()
    }
}

/// The parser's progress in reading the present request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// No part of the request was read.
    Start,
    /// The given number of arguments is missing, and the length of the next one was not read.
    Arguments(u32),
    /// The given number of arguments is missing, and the next one has the given length in bytes.
    Argument(u32, u32),
    /// The request is complete.
    Done,
}

/// The parser of one connection, which splits the received bytes into requests.
pub(super) struct Parser {
    /// Received bytes, from some byte at or before the present request on.
    buffer: Vec<u8>,
    /// Position of the present request's first byte in the buffer.
    start: usize,
    /// Number of bytes of the present request that were read, and number of bytes after them that were searched for
    /// the end of a line.
    read: usize,
    searched: usize,
    reading: Reading,
    /// Positions of the present request's arguments that were read so far.
    slices: Vec<Slice>,
    /// Number of complete requests before the present one.
    requests: u64,
    /// The reason why later bytes are refused; `None` if they are accepted.
    flood: Option<String>,
}

impl Parser {
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            read: 0,
            searched: 0,
            reading: Reading::Start,
            slices: Vec::new(),
            requests: 0,
            flood: None,
        }
    }

    /// Accepts more bytes of the client's stream. Bytes beyond the limit on unconsumed bytes are dropped, and
    /// reported as an error after the requests before them.
    pub fn feed(&mut self, bytes: &[u8], request_bytes_max: usize) {
        if self.flood.is_some() {
            return;
        }
        // It moves at most as many bytes as were consumed since the last move, so that no byte moves often.
        if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
            if self.buffer.len() < RETAINED_BYTES_MAX / 2 {
                self.buffer.shrink_to(RETAINED_BYTES_MAX);
            }
        }
        let pending = self.buffer.len() - self.start;
        if pending + bytes.len() > request_bytes_max + LINE_BYTES_MAX {
            self.refuse("too big request".to_owned());
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Refuses all later bytes, and reports the error `why` after the requests that have arrived.
    pub fn refuse(&mut self, why: String) {
        self.flood.get_or_insert(why);
    }

    /// Reads on to the next request. Returns true if that request is complete: its arguments are available from
    /// [`Self::arguments`] until the next call.
    pub fn advance(&mut self, limits: Limits) -> Result<bool, Malformed> {
        if self.reading == Reading::Done {
            self.drop_read();
        }
        loop {
            let goes_on = match self.reading {
                Reading::Start => self.begin(limits)?,
                Reading::Arguments(left) => self.measure(left, limits)?,
                Reading::Argument(left, length) => self.take(left, length),
                Reading::Done => return Ok(true),
            };
            if !goes_on {
                return self.flood.as_ref().map_or(Ok(false), malformed);
            }
        }
    }

    pub fn arguments(&self) -> Arguments<'_> {
        debug_assert_eq!(self.reading, Reading::Done);
        Arguments { bytes: &self.buffer[self.start..], slices: &self.slices }
    }

    /// Returns the memory that the parser uses, in bytes.
    pub fn bytes(&self) -> usize {
        self.buffer.capacity() + self.slices.capacity() * size_of::<Slice>()
    }

    /// Returns an upper bound, in bytes, of the parser's memory after it receives `more` further bytes.
    pub fn bytes_with(&self, more: usize) -> usize {
        let (held, room) = (self.buffer.len(), self.buffer.capacity());
        self.bytes() + if held + more > room { room.max(more) } else { 0 }
    }

    /// Returns the number of complete requests so far, and the number of received bytes after them.
    pub fn unfinished(&self) -> (u64, usize) {
        (self.requests, self.buffer.len() - self.start)
    }

    /// Returns the number of received bytes that are not parsed yet.
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.start - self.read
    }

    /// Ends the present request: drops its bytes, and begins the next one.
    fn drop_read(&mut self) {
        self.start += self.read;
        self.requests += 1;
        (self.read, self.searched, self.reading) = (0, 0, Reading::Start);
        self.slices.clear();
        self.slices.shrink_to(RETAINED_BYTES_MAX / size_of::<Slice>());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(RETAINED_BYTES_MAX);
            self.start = 0;
        }
    }

    /// Returns the received bytes from the first one of the present request that was not read.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.start + self.read..]
    }

    /// Returns the length in bytes of the next line, which the byte `end` ends, or `None` if its end has not arrived.
    /// A line that is too long is an error with the text `too_long`.
    fn line(&mut self, end: u8, too_long: &str) -> Result<Option<usize>, Malformed> {
        let rest = self.rest();
        let length = memchr(end, &rest[self.searched..]).map(|at| self.searched + at);
        let so_far = rest.len();
        if length.unwrap_or(so_far) > LINE_BYTES_MAX {
            return malformed(too_long);
        }
        self.searched = length.unwrap_or(so_far);
        Ok(length)
    }

    /// Returns the length in bytes of the next line of a counted request, or `None` if its end has not arrived. Like
    /// Redis, the parser accepts any byte after the carriage return as the line feed, but there must be one.
    fn counted_line(&mut self, too_long: &str) -> Result<Option<usize>, Malformed> {
        let length = self.line(b'\r', too_long)?;
        Ok(length.filter(|length| length + 1 < self.rest().len()))
    }

    /// Records that this many further bytes of the request were read.
    fn used(&mut self, bytes: usize) {
        self.read += bytes;
        self.searched = 0;
    }

    /// Begins to read a request; returns false if more bytes are needed.
    fn begin(&mut self, limits: Limits) -> Result<bool, Malformed> {
        match self.rest().first() {
            None => Ok(false),
            Some(b'*') => self.count(limits),
            Some(_) => self.inline(),
        }
    }

    /// Reads the line with the number of arguments; returns false if more bytes are needed.
    fn count(&mut self, limits: Limits) -> Result<bool, Malformed> {
        let Some(length) = self.counted_line("too big mbulk count string")? else {
            return Ok(false);
        };
        let count = match number::integer(&self.rest()[1..length]) {
            Some(count) if count <= ARGUMENTS_MAX => count,
            _ => return malformed("invalid multibulk length"),
        };
        if limits.is_stranger && count > STRANGERS_ARGUMENTS_MAX {
            return malformed("unauthenticated multibulk length");
        }
        self.used(length + 2);
        match u32::try_from(count) {
            Ok(count) if count > 0 => self.reading = Reading::Arguments(count),
            // An empty request, which is ignored.
            _ => self.drop_read(),
        }
        Ok(true)
    }

    /// Reads the line with the next argument's length; returns false if more bytes are needed.
    fn measure(&mut self, left: u32, limits: Limits) -> Result<bool, Malformed> {
        let Some(length) = self.counted_line("too big bulk count string")? else {
            return Ok(false);
        };
        let line = &self.rest()[..length];
        if line.first() != Some(&b'$') {
            // Of an empty line, this shows the carriage return.
            return malformed([b"expected '$', got '", &self.rest()[..1], b"'"].concat());
        }
        let bytes = match number::integer(&line[1..]) {
            Some(bytes) if (0..=limits.request_bytes_max as i64).contains(&bytes) => bytes,
            _ => return malformed("invalid bulk length"),
        };
        if limits.is_stranger && bytes > STRANGERS_BYTES_MAX {
            return malformed("unauthenticated bulk length");
        }
        self.used(length + 2);
        if self.read + bytes as usize + 2 > limits.request_bytes_max {
            return malformed("too big request");
        }
        self.reading = Reading::Argument(left, bytes as u32);
        Ok(true)
    }

    /// Reads the next argument's bytes; returns false if more bytes are needed.
    fn take(&mut self, left: u32, length: u32) -> bool {
        let end = length as usize + 2;
        if self.rest().len() < end {
            return false;
        }
        let from = self.read as u32;
        self.slices.push(Slice { from, to: from + length });
        self.used(end);
        self.reading = if left == 1 { Reading::Done } else { Reading::Arguments(left - 1) };
        true
    }

    /// Reads a request that is one line of words; returns false if more bytes are needed.
    fn inline(&mut self) -> Result<bool, Malformed> {
        let Some(length) = self.line(b'\n', "too big inline request")? else { return Ok(false) };
        let line = &self.rest()[..length];
        let end = self.start + line.strip_suffix(b"\r").unwrap_or(line).len();
        if !split(&mut self.buffer[self.start..end], &mut self.slices) {
            return malformed("unbalanced quotes in request");
        }
        self.used(length + 1);
        if self.slices.is_empty() {
            self.drop_read();
        } else {
            self.reading = Reading::Done;
        }
        Ok(true)
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Splits a line into words, which may be quoted, and adds their positions to `words`. A word is never longer than
/// its quoted form, so it is unquoted in place. Returns false if a quote is not closed, or not followed by a blank.
fn split(line: &mut [u8], words: &mut Vec<Slice>) -> bool {
    let (mut at, mut to) = (0, 0);
    loop {
        while at < line.len() && is_blank(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return true;
        }
        let from = to;
        while at < line.len() && !is_blank(line[at]) {
            let quote = line[at];
            if !matches!(quote, b'"' | b'\'') {
                line[to] = quote;
                (at, to) = (at + 1, to + 1);
                continue;
            }
            at += 1;
            loop {
                let (byte, length) = match line[at..] {
                    [] => return false,
                    [byte, ..] if byte == quote => break,
                    [b'\\', b'x', high, low, ..] if quote == b'"' && is_hex(high, low) => {
                        (hex(high) << 4 | hex(low), 4)
                    }
                    [b'\\', escaped, ..] if quote == b'"' => (unescape(escaped), 2),
                    [b'\\', b'\'', ..] => (b'\'', 2),
                    [byte, ..] => (byte, 1),
                };
                line[to] = byte;
                (at, to) = (at + length, to + 1);
            }
            at += 1;
            if at < line.len() && !is_blank(line[at]) {
                return false;
            }
        }
        words.push(Slice { from: from as u32, to: to as u32 });
    }
}

fn is_hex(high: u8, low: u8) -> bool {
    high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
}

fn hex(digit: u8) -> u8 {
    (digit as char).to_digit(16).unwrap_or_default() as u8
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        byte => byte,
    }
}

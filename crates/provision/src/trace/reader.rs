//! Reader of `.imt` files. The checksum of each block is verified before its content is used.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::Path;

use super::format::{self, Closing};
use super::values::Payload;
use super::{Ending, Error, Header, Key, PhasesBy, Read, Requests, Span, Torn, Trace};

/// Size of the buffer for reading a file, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Reads a trace from a file that begins with the magic number of an `.imt` file; `path` names it in errors, and
/// `torn` tells what to do if it is torn or damaged.
pub(super) fn read(file: File, path: &Path, torn: Torn) -> Result<Trace, Error> {
    let mut blocks = Blocks { from: BufReader::with_capacity(BUFFER_BYTES, file), at: 0 };
    let mut trace = empty();
    let mut present = Vec::new();
    let outcome = head(&mut blocks).and_then(|header| {
        trace.header = header;
        body(&mut blocks, &mut trace, &mut present)
    });
    match outcome {
        Ok(()) => Ok(trace),
        Err(Stop::Io(source)) => Err(Error::io("read", path)(source)),
        Err(Stop::Newer(found)) => {
            Err(Error::Newer { path: path.to_owned(), found, known: format::VERSION })
        }
        Err(Stop::Damage(what)) if torn == Torn::UseWholePhases && !trace.phases.is_empty() => {
            trace.ending = Ending::Incomplete(format!("torn at byte {}: {what}", blocks.at));
            Ok(trace)
        }
        Err(Stop::Damage(what)) => Err(Error::Torn {
            path: path.to_owned(),
            at: blocks.at,
            what,
            whole_phases: trace.phases.len() as u64,
            whole_reads: trace.reads(),
        }),
    }
}

/// Returns a trace without phases, which the reader fills.
fn empty() -> Trace {
    Trace {
        header: Header {
            source: String::new(),
            namespace: String::new(),
            when: String::new(),
            phases_by: PhasesBy::One,
        },
        phases: Vec::new(),
        spans: Vec::new(),
        other_reads: 0,
        ending: Ending::Complete,
    }
}

/// The reason why the reading of a file stopped.
enum Stop {
    /// A read of the file failed; the field is the operating system's error.
    Io(std::io::Error),
    /// The file has a later version of the format; the field is that version.
    Newer(u16),
    /// The file is torn or damaged; the field describes the damage.
    Damage(String),
}

/// Makes a [`Stop::Damage`] with this description of the damage.
fn damage(what: impl Into<String>) -> Stop {
    Stop::Damage(what.into())
}

/// An `.imt` file that is read block by block.
struct Blocks {
    from: BufReader<File>,
    /// Offset of the current block in the file, in bytes.
    at: u64,
}

impl Blocks {
    /// Reads exactly as many bytes from the file as `bytes` has; `what` names them in the error if the file ends
    /// within them.
    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), Stop> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => damage(format!("the file ends within {what}")),
            _ => Stop::Io(error),
        })
    }

    /// Reads the next block, verifies its checksum, and leaves its kind, length and payload in `block`. Returns the
    /// block's kind.
    fn next(&mut self, block: &mut Vec<u8>) -> Result<u8, Stop> {
        block.clear();
        block.resize(5, 0);
        let first = loop {
            match self.from.read(&mut block[..1]) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Io(error)),
            }
        };
        if first == 0 {
            return Err(damage("the file was not closed"));
        }
        self.fill(&mut block[1..5], "the length of a block")?;
        let length = u32::from_le_bytes([block[1], block[2], block[3], block[4]]) as usize;
        if length > format::PAYLOAD_BYTES_MAX {
            return Err(damage(format!("a block of {length} bytes, which no block has")));
        }
        block.resize(5 + length, 0);
        self.fill(&mut block[5..], "a block")?;
        let mut crc = [0; 4];
        self.fill(&mut crc, "the checksum of a block")?;
        if crc32c::crc32c(block) != u32::from_le_bytes(crc) {
            return Err(damage("a block's checksum is not that of its content"));
        }
        Ok(block[0])
    }
}

/// Reads the file's head and returns the header in it; afterwards the first block is the next to be read.
fn head(blocks: &mut Blocks) -> Result<Header, Stop> {
    let mut head = vec![0; format::MAGIC.len() + 6];
    blocks.fill(&mut head, "its head")?;
    let version = u16::from_le_bytes([head[8], head[9]]);
    if version > format::VERSION {
        return Err(Stop::Newer(version));
    }
    let length = u32::from_le_bytes([head[10], head[11], head[12], head[13]]) as usize;
    if version == 0 || length > format::HEADER_BYTES_MAX {
        return Err(damage("its head is damaged"));
    }
    let begin = head.len();
    head.resize(begin + length, 0);
    blocks.fill(&mut head[begin..], "its head")?;
    let mut crc = [0; 4];
    blocks.fill(&mut crc, "its head")?;
    if crc32c::crc32c(&head) != u32::from_le_bytes(crc) {
        return Err(damage("the checksum of its head is not that of its content"));
    }
    blocks.at += head.len() as u64 + 4;
    serde_json::from_slice(&head[begin..]).map_err(|error| damage(format!("its head: {error}")))
}

/// Reads all blocks of the file into `trace`. `present` receives the reads of the phase that has not ended yet.
fn body(blocks: &mut Blocks, trace: &mut Trace, present: &mut Vec<Read>) -> Result<(), Stop> {
    let mut block = Vec::new();
    loop {
        let kind = blocks.next(&mut block)?;
        let payload = Payload(&block[5..]);
        match kind {
            format::READS => reads(payload, present)
                .ok_or_else(|| damage("a block of reads has something else"))?,
            format::PHASE_END => {
                let (number, reads, span) =
                    phase_end(payload).ok_or_else(|| damage("the end of a phase is not whole"))?;
                if number != trace.phases.len() as u64 || reads != present.len() as u64 {
                    return Err(damage(format!(
                        "phase {} has {} reads, and its end is that of phase {number} with {reads}",
                        trace.phases.len(),
                        present.len()
                    )));
                }
                present.shrink_to_fit();
                trace.phases.push(std::mem::take(present));
                trace.spans.push(span);
            }
            format::CLOSING => return close(blocks, &block[5..], trace, present),
            other => return Err(damage(format!("a block of the unknown kind {other}"))),
        }
        blocks.at += block.len() as u64 + 4;
    }
}

/// Decodes the payload of a block of reads and appends them to `to`; `None` if the payload is malformed.
fn reads(mut payload: Payload<'_>, to: &mut Vec<Read>) -> Option<()> {
    while !payload.is_empty() {
        let kind = payload.byte()?;
        let length = payload.number()?;
        let key = Key::from_parts(kind, payload.bytes(length)?)?;
        let document_bytes = match payload.number()? {
            0 => None,
            bytes => Some(u32::try_from(bytes - 1).ok()?),
        };
        to.push(Read { key, document_bytes });
    }
    Some(())
}

/// Decodes the payload of a block that ends a phase: the phase's number, its count of reads, and its span; `None` if
/// the payload is malformed.
fn phase_end(mut payload: Payload<'_>) -> Option<(u64, u64, Span)> {
    let (number, reads) = (payload.number()?, payload.number()?);
    let (began_us, ended_us) = (payload.number()?, payload.number()?);
    let requests = match payload.is_empty() {
        true => None,
        false => Some(Requests {
            count: payload.number()?,
            waited_us: payload.number()?,
            at_once: u32::try_from(payload.number()?).ok()?,
        }),
    };
    payload.is_empty().then_some((number, reads, Span { began_us, ended_us, requests }))
}

/// Compares the totals of the closing block, whose payload is `json`, with the reads in `trace`, checks that no bytes
/// follow the block, and completes `trace`.
fn close(
    blocks: &mut Blocks,
    json: &[u8],
    trace: &mut Trace,
    present: &[Read],
) -> Result<(), Stop> {
    let closing: Closing = serde_json::from_slice(json)
        .map_err(|error| damage(format!("its closing block: {error}")))?;
    let (documents, document_bytes) = trace.documents();
    let found = Closing {
        phases: trace.phases.len() as u64,
        reads: trace.reads(),
        documents,
        document_bytes,
        ..closing.clone()
    };
    if found != closing || !present.is_empty() {
        return Err(damage("its closing block counts other reads than it has"));
    }
    let mut rest = [0];
    match blocks.from.read(&mut rest) {
        Ok(0) => {}
        Ok(_) => return Err(damage("bytes follow its closing block")),
        Err(error) => return Err(Stop::Io(error)),
    }
    trace.other_reads = closing.other_reads;
    trace.ending = closing.ending;
    Ok(())
}

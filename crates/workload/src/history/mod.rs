//! The history: the requests to a database and its answers, one entry per operation.
//!
//! Every write has a unique number (`seq`), which is stored in the document. Updates also increment the
//! document's counter (`n`), so that an update that was applied twice is detected. Times are nanoseconds on
//! one monotonic clock since the start of the run, so that "ended before the other started" is exact.
//!
//! An entry takes 48 bytes, in memory and in a file. A file starts with one line of JSON (the [`Header`]) and
//! ends with a closing entry. A file without the closing entry lost its tail with the process that wrote it,
//! and allows no verdict.

mod record;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use record::{Recorder, RecorderError};

use crate::mix::Kind;
use crate::review::Reviews;
use crate::scatter::{mix64, unmix64};

/// The outcome of an operation on the database, as far as a check needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The database acknowledged the operation.
    Acked,
    /// The database answered that there is no such document.
    NotFound,
    /// The operation failed, and was certainly not applied.
    Refused,
    /// The operation failed, and may have been applied, or may be applied later.
    Unknown,
}

/// One operation of a load with its outcome and its times; one entry of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// The kind of the operation.
    pub kind: Kind,
    /// The outcome of the operation.
    pub fate: Fate,
    /// Number of the target to which the operation was sent: 0 at first, one more after each switch.
    pub target: u16,
    /// Number of the key on which the operation worked; of a scan, the first key.
    pub key: u64,
    /// Number of this write; of a read, the number of the write that it saw, or 0 if the target does not report it; 0
    /// for a scan.
    pub seq: u64,
    /// Time at which the operation was due, in ns since the start of the run.
    pub intended_ns: u64,
    /// Time at which the operation was sent, in ns since the start of the run.
    pub start_ns: u64,
    /// Time at which the operation was answered or timed out, in ns since the start of the run.
    pub end_ns: u64,
}

/// The format of documents' names (`_id`), which are derived from the numbers of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdForm {
    /// Text such as `review-000000000042`, in the order of insertion.
    #[default]
    Text,
    /// A 64-bit integer such as 42, in the order of insertion.
    Integer,
    /// Sixteen hexadecimal digits in a scattered order: new documents fall between old ones.
    Scattered,
}

impl IdForm {
    /// Returns the name of the document under the key number `key`.
    #[must_use]
    pub fn name(self, key: u64) -> String {
        match self {
            Self::Text => format!("review-{key:012}"),
            Self::Integer => key.to_string(),
            Self::Scattered => format!("{:016x}", mix64(key)),
        }
    }

    /// Returns the number of the key whose document has the name `name`, or `None` if no key has that name.
    #[must_use]
    pub fn key(self, name: &str) -> Option<u64> {
        let key = match self {
            Self::Text => name.strip_prefix("review-")?.parse().ok()?,
            Self::Integer => name.parse().ok()?,
            Self::Scattered => unmix64(u64::from_str_radix(name, 16).ok()?),
        };
        // Only one spelling is valid: `review-1` is another document than `review-000000000001`.
        (self.name(key) == name).then_some(key)
    }
}

/// Properties of a run that are needed to check its history; as JSON, the first line of a recorded file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format of the history: [`Header::VERSION`], or an older one.
    pub imago_history: u32,
    /// Number of preloaded documents: before the first operation, each of the keys `0..preloaded` had its document,
    /// with `seq` = key and `n` = 0.
    pub preloaded: u64,
    /// Parameters of the generator from which the documents' content follows.
    pub reviews: Reviews,
    /// Format of the documents' names (`_id`).
    pub id_form: IdForm,
    /// Semantics of writes; histories of format version 1 do not contain it and have [`Model::Documents`].
    #[serde(default)]
    pub model: Model,
    /// True if a read must see every write that was acknowledged before the read was sent. Only reads that
    /// report the write that they saw can be checked.
    #[serde(default)]
    pub reads_are_current: bool,
    /// Name of the collection or table that the load used, for people to read.
    pub namespace: String,
    /// Start of the run, in ms since 1970 UTC (wall clock), to find log lines of the same time.
    pub started_unix_ms: u64,
}

impl Header {
    /// Version of the format that this build writes; it also reads version 1.
    pub const VERSION: u32 = 2;
    const FIRST_VERSION: u32 = 1;
}

/// Semantics of the database's writes, which decide the content that a check expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// An update changes an existing document, increments the document's counter, and never creates one.
    #[default]
    Documents,
    /// Each write replaces all content under the key; insert and update are the same operation, as in
    /// Cassandra. Of two overlapping writes the one with the later timestamp wins. Reads report the write
    /// that they saw.
    Registers,
    /// Each write replaces all content under the key, and the writes take effect in order of arrival, as in
    /// Redis. A write that timed out may be applied at any later time, and then replaces later writes. Reads
    /// report the write that they saw.
    Arrivals,
}

/// A complete history: all writes, the reads and scans that found nothing, and, unless the model is
/// [`Model::Documents`], the reads that found a document.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// Properties of the run that are needed for a check.
    pub header: Header,
    /// Operations that a check needs, in the order in which they ended.
    pub ops: Vec<Op>,
    /// Number of all recorded operations, including those that are not in `ops`.
    pub recorded: u64,
}

/// The reason why a recorded history cannot be read or checked.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file of the history could not be read.
    #[error("cannot read the history {path}")]
    Read {
        /// Path of the history's file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The first line of the file is not a header of a version that this build supports.
    #[error("{path} is not a history that this version can read: {reason}")]
    Header {
        /// Path of the history's file.
        path: PathBuf,
        /// Description of the error in the header.
        reason: String,
    },
    /// An entry of the file does not match its checksum, or has invalid values.
    #[error("entry {index} of the history {path} is damaged")]
    Damaged {
        /// Path of the history's file.
        path: PathBuf,
        /// Index of the damaged entry in the file, from 0.
        index: u64,
    },
    /// The closing entry is missing, so the recording is incomplete.
    #[error(
        "the history {path} was not closed ({entries} entries): the load that recorded it did not \
         end properly, so operations are missing and nothing can be concluded from it"
    )]
    NotClosed {
        /// Path of the history's file.
        path: PathBuf,
        /// Number of complete entries in the file.
        entries: u64,
    },
}

/// Size of one entry in a history's file, in bytes.
const ENTRY_BYTES: usize = 48;
/// First byte of the closing entry of a file; other entries have the operation's kind there.
const CLOSING: u8 = 0xff;
/// Limit of the length of a header, the first line of a file, in bytes.
const HEADER_BYTES_MAX: u64 = 64 * 1024;

impl Op {
    /// Returns true if the check of a history with the semantics `model` needs this operation.
    #[must_use]
    pub fn matters(&self, model: Model) -> bool {
        let reads = self.kind == Kind::Read && model != Model::Documents;
        self.kind.writes() || self.fate == Fate::NotFound || reads
    }

    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let kind = match self.kind {
            Kind::Read => 0,
            Kind::Insert => 1,
            Kind::Update => 2,
            Kind::Delete => 3,
            Kind::Scan => 4,
        };
        let fate = match self.fate {
            Fate::Acked => 0,
            Fate::NotFound => 1,
            Fate::Refused => 2,
            Fate::Unknown => 3,
        };
        let numbers = [self.key, self.seq, self.intended_ns, self.start_ns, self.end_ns];
        entry([kind, fate], self.target, numbers)
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        // The encoded kind is its index in [`Kind::ALL`].
        let kind = *Kind::ALL.get(bytes[0] as usize)?;
        let fates = [Fate::Acked, Fate::NotFound, Fate::Refused, Fate::Unknown];
        Some(Self {
            kind,
            fate: *fates.get(bytes[1] as usize)?,
            target: u16::from_le_bytes([bytes[2], bytes[3]]),
            key: number(bytes, 0),
            seq: number(bytes, 1),
            intended_ns: number(bytes, 2),
            start_ns: number(bytes, 3),
            end_ns: number(bytes, 4),
        })
    }
}

fn entry(head: [u8; 2], target: u16, numbers: [u64; 5]) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..2].copy_from_slice(&head);
    bytes[2..4].copy_from_slice(&target.to_le_bytes());
    for (index, number) in numbers.into_iter().enumerate() {
        bytes[8 + index * 8..16 + index * 8].copy_from_slice(&number.to_le_bytes());
    }
    let sum = checksum(&bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn number(bytes: &[u8; ENTRY_BYTES], index: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[8 + index * 8..16 + index * 8]);
    u64::from_le_bytes(number)
}

/// Returns the FNV-1a checksum of all bytes of an entry but the checksum's own: it detects a torn or overwritten
/// entry.
fn checksum(bytes: &[u8; ENTRY_BYTES]) -> u32 {
    bytes[..4]
        .iter()
        .chain(&bytes[8..])
        .fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

impl History {
    /// Reads the history in the file `path`, and returns the operations that a check needs.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has another format or version, is damaged, or has no closing
    /// entry.
    pub fn read(path: &Path) -> Result<Self, HistoryError> {
        let mut ops = Vec::new();
        let (header, recorded) = Self::scan(path, |header, op| {
            if op.matters(header.model) {
                ops.push(op);
            }
        })?;
        Ok(Self { header, ops, recorded })
    }

    /// Calls `visit` with the header and each operation of the history in the file `path`, in the order in which the
    /// operations ended. Returns the header and the number of operations.
    ///
    /// # Errors
    /// As [`History::read`].
    pub fn scan(
        path: &Path,
        mut visit: impl FnMut(&Header, Op),
    ) -> Result<(Header, u64), HistoryError> {
        let read = |source| HistoryError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(read)?;
        let mut input = BufReader::with_capacity(1 << 20, file);
        let header = read_header(path, &mut input)?;
        let mut bytes = [0; ENTRY_BYTES];
        let mut index = 0;
        loop {
            if let Err(source) = input.read_exact(&mut bytes) {
                if source.kind() == std::io::ErrorKind::UnexpectedEof {
                    return Err(HistoryError::NotClosed { path: path.to_owned(), entries: index });
                }
                return Err(read(source));
            }
            let damaged = || HistoryError::Damaged { path: path.to_owned(), index };
            if bytes[4..8] != checksum(&bytes).to_le_bytes() {
                return Err(damaged());
            }
            if bytes[0] == CLOSING {
                return if number(&bytes, 0) == index {
                    Ok((header, index))
                } else {
                    Err(damaged())
                };
            }
            visit(&header, Op::decode(&bytes).ok_or_else(damaged)?);
            index += 1;
        }
    }
}

fn read_header(path: &Path, input: &mut impl BufRead) -> Result<Header, HistoryError> {
    let mut line = Vec::new();
    input
        .take(HEADER_BYTES_MAX)
        .read_until(b'\n', &mut line)
        .map_err(|source| HistoryError::Read { path: path.to_owned(), source })?;
    let other = |reason: String| HistoryError::Header { path: path.to_owned(), reason };
    let header: Header = serde_json::from_slice(&line).map_err(|error| other(error.to_string()))?;
    if !(Header::FIRST_VERSION..=Header::VERSION).contains(&header.imago_history) {
        return Err(other(format!("its version is {}", header.imago_history)));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            imago_history: Header::VERSION,
            preloaded: 3,
            reviews: Reviews::default(),
            id_form: IdForm::Text,
            model: Model::Documents,
            reads_are_current: false,
            namespace: "shop.reviews".into(),
            started_unix_ms: 0,
        }
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let kind = proptest::sample::select(Kind::ALL.to_vec());
        let fates = vec![Fate::Acked, Fate::NotFound, Fate::Refused, Fate::Unknown];
        let fate = proptest::sample::select(fates);
        (kind, fate, any::<u16>(), any::<[u64; 5]>()).prop_map(|(kind, fate, target, numbers)| {
            let [key, seq, intended_ns, start_ns, end_ns] = numbers;
            Op { kind, fate, target, key, seq, intended_ns, start_ns, end_ns }
        })
    }

    fn write(path: &Path, ops: &[Op]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let recorder = Recorder::file(path, &header()).unwrap();
        runtime.block_on(async {
            for op in ops {
                recorder.record(*op).await.unwrap();
            }
            assert_eq!(recorder.close().await.unwrap(), None);
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_recording_reads_back_as_it_was_written(ops in proptest::collection::vec(any_op(), 0..50)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("history");
            write(&path, &ops);
            let mut seen = Vec::new();
            let (read, count) = History::scan(&path, |_, op| seen.push(op)).unwrap();
            prop_assert_eq!(count, ops.len() as u64);
            prop_assert_eq!(read, header());
            prop_assert_eq!(seen, ops);
        }
    }

    proptest! {
        #[test]
        fn a_name_leads_back_to_its_key(key: u64) {
            for form in [IdForm::Text, IdForm::Integer, IdForm::Scattered] {
                prop_assert_eq!(form.key(&form.name(key)), Some(key));
            }
        }
    }

    #[test]
    fn another_spelling_of_a_name_is_no_key() {
        assert_eq!(IdForm::Text.key("review-1"), None);
        assert_eq!(IdForm::Integer.key("+1"), None);
        assert_eq!(IdForm::Scattered.key("ABCDEF0123456789"), None);
    }

    fn sample(key: u64) -> Op {
        Op {
            kind: Kind::Insert,
            fate: Fate::Acked,
            target: 0,
            key,
            seq: key,
            intended_ns: 1,
            start_ns: 2,
            end_ns: 3,
        }
    }

    #[test]
    fn reads_that_report_the_write_they_saw_are_needed_by_a_check() {
        let (kind, fate) = (Kind::Read, Fate::Acked);
        let op =
            Op { kind, fate, target: 0, key: 7, seq: 7, intended_ns: 1, start_ns: 2, end_ns: 3 };
        let needed = |model| op.matters(model);
        assert_eq!(
            [Model::Documents, Model::Registers, Model::Arrivals].map(needed),
            [false, true, true]
        );
    }

    #[test]
    fn a_recording_without_its_end_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        write(&path, &[sample(1), sample(2)]);
        let whole = std::fs::read(&path).unwrap();
        for cut in [1, ENTRY_BYTES, ENTRY_BYTES + 1] {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            assert!(matches!(History::read(&path), Err(HistoryError::NotClosed { .. })));
        }
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        write(&path, &[sample(1), sample(2)]);
        let mut bytes = std::fs::read(&path).unwrap();
        let second = bytes.len() - 2 * ENTRY_BYTES;
        bytes[second + 20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(History::read(&path), Err(HistoryError::Damaged { index: 1, .. })));
    }

    #[test]
    fn another_file_is_not_taken_for_a_history() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        std::fs::write(&path, "{\"imago_history\":9}\n").unwrap();
        assert!(matches!(History::read(&path), Err(HistoryError::Header { .. })));
    }
}

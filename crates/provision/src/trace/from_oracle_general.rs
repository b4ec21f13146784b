//! Import of traces in libCacheSim's `oracleGeneral` format: records of 24 bytes, without a file header. Each record
//! has the number of the next request for the same object.
//!
//! ```text
//! u32 time in seconds   u64 object   u32 bytes   i64 number of the next request for the object
//! ```
//!
//! Numbers are little-endian and packed. The last number is negative or the maximum if there is no further request. The
//! format has no magic number: a file is recognised by times that never decrease and next requests that come later,
//! which is checked for every record. An object of 0 bytes, which libCacheSim omits, is a document that does not exist.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

use super::gaps::Gaps;
use super::{Ending, Error, Header, Key, Read, Trace};

/// Size of a record of the `oracleGeneral` format, in bytes.
const RECORD_BYTES: usize = 24;
/// Greatest number of a next request that is accepted: a trace of 26 terabytes.
const REQUESTS_MAX: i64 = 1 << 40;

/// One request of an `oracleGeneral` trace.
struct Record {
    /// Time of the request, in seconds from an origin that the trace chose.
    time_s: u32,
    /// Id of the object.
    object: u64,
    /// Size of the object, in bytes; 0: the document does not exist.
    bytes: u32,
    /// Number of the next request for the same object; negative or the maximum if there is none.
    next: i64,
}

impl Record {
    /// Decodes the bytes of a record.
    fn of(bytes: &[u8; RECORD_BYTES]) -> Self {
        let part = |from: usize| -> [u8; 8] { std::array::from_fn(|at| bytes[from + at]) };
        let half = |from: usize| -> [u8; 4] { std::array::from_fn(|at| bytes[from + at]) };
        Self {
            time_s: u32::from_le_bytes(half(0)),
            object: u64::from_le_bytes(part(4)),
            bytes: u32::from_le_bytes(half(12)),
            next: i64::from_le_bytes(part(16)),
        }
    }

    /// Returns the reason why the record cannot be request number `number` (from 0 on) after a request at the time
    /// `before_s`, in seconds; `None` if the record is valid.
    fn problem(&self, number: i64, before_s: u32) -> Option<String> {
        if self.time_s < before_s {
            return Some(format!(
                "its time {} s is before {before_s} s of the one before it",
                self.time_s
            ));
        }
        let none = matches!(self.next, -2 | -1 | i64::MAX);
        if !none && !(number + 1..=REQUESTS_MAX).contains(&self.next) {
            return Some(format!(
                "its next request is number {}, which is not after it",
                self.next
            ));
        }
        None
    }
}

/// Returns true if `head`, the first bytes of a file of `length` bytes, may be records of an `oracleGeneral` trace.
pub(super) fn is_plausible(head: &[u8], length: u64) -> bool {
    let (records, _) = head.as_chunks::<RECORD_BYTES>();
    let mut before_s = 0;
    let plausible = |(number, bytes): (usize, &[u8; RECORD_BYTES])| {
        let record = Record::of(bytes);
        let problem = record.problem(number as i64, before_s);
        before_s = record.time_s;
        problem.is_none()
    };
    length.is_multiple_of(RECORD_BYTES as u64)
        && !records.is_empty()
        && records.iter().enumerate().all(plausible)
}

/// Reads a trace from a file of `oracleGeneral` records. `gap` is the interval without reads that ends a phase;
/// `None`: all reads are one phase.
pub(super) fn read(file: File, path: &Path, gap: Option<Duration>) -> Result<Trace, Error> {
    let mut from = BufReader::with_capacity(1 << 20, file);
    let mut gaps = Gaps::new(gap);
    let (mut number, mut before_s, mut first_s) = (0, 0, None);
    let foreign = |number: i64, what: String| Error::Foreign {
        path: path.to_owned(),
        looks: format!(
            "it begins as libCacheSim's oracleGeneral does, but of record {number} (from 0) {what}"
        ),
    };
    loop {
        let mut bytes = [0; RECORD_BYTES];
        match from.read_exact(&mut bytes) {
            Ok(()) => {}
            // The length is a multiple of the record's size: it was checked when the format was detected.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(Error::io("read", path)(error)),
        }
        let record = Record::of(&bytes);
        if let Some(what) = record.problem(number, before_s) {
            return Err(foreign(number, what));
        }
        before_s = record.time_s;
        let first_s = *first_s.get_or_insert(record.time_s);
        let read = Read {
            key: Key::from(record.object.cast_signed()),
            document_bytes: (record.bytes > 0).then_some(record.bytes),
        };
        // Times do not decrease: the record was just checked.
        let _in_order = gaps.read(u64::from(record.time_s - first_s) * 1_000_000, read);
        number += 1;
    }
    let (phases_by, phases, spans) = gaps.end();
    let header = Header {
        source: "libCacheSim oracleGeneral".into(),
        namespace: String::new(),
        when: String::new(),
        phases_by,
    };
    Ok(Trace { header, phases, spans, other_reads: 0, ending: Ending::Complete })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Options;

    fn record(time_s: u32, object: u64, bytes: u32, next: i64) -> Vec<u8> {
        let mut record = time_s.to_le_bytes().to_vec();
        record.extend_from_slice(&object.to_le_bytes());
        record.extend_from_slice(&bytes.to_le_bytes());
        record.extend_from_slice(&next.to_le_bytes());
        record
    }

    fn of(records: &[Vec<u8>], gap_s: Option<u64>) -> Result<Trace, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), records.concat()).unwrap();
        let options = Options { gap: gap_s.map(Duration::from_secs), ..Options::default() };
        Trace::read_with(file.path(), options).map_err(|error| error.to_string())
    }

    #[test]
    fn records_are_reads() {
        let records = [record(5, 17, 120, 2), record(5, 18, 0, -1), record(60, 17, 120, i64::MAX)];
        let trace = of(&records, Some(30)).unwrap();
        let seventeen = Read { key: Key::from(17), document_bytes: Some(120) };
        let missing = Read { key: Key::from(18), document_bytes: None };
        assert_eq!(trace.phases, vec![vec![seventeen.clone(), missing], vec![seventeen]]);
        assert_eq!(of(&records, None).unwrap().phases.len(), 1);
    }

    #[test]
    fn other_binary_files_are_refused() {
        assert!(of(&[record(5, 17, 120, 0)], None).is_err(), "its next request is itself");
        assert!(of(&[record(5, 17, 120, -1), vec![0]], None).is_err(), "a record that is cut");
        let mut late: Vec<Vec<u8>> = (0..500).map(|number| record(7, number, 9, -1)).collect();
        late.push(record(6, 1, 9, -1));
        assert!(of(&late, None).unwrap_err().contains("record 500"), "a time that falls");
    }
}

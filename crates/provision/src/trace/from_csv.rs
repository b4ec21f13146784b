//! Import of traces from CSV: a line of column names, then one read per line.
//!
//! | column | value |
//! |---|---|
//! | `phase` | any text; the lines of a phase stand together |
//! | `time` | instead of `phase`: seconds, with decimals; never less than in the line before |
//! | `key` | an integer, 24 hexadecimal digits of an object id, a value of Extended JSON (`{"$date": …}`), or text |
//! | `bytes` | the document's bytes; empty if there was no such document |
//!
//! The columns may have any order; other columns are ignored.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use bson::Bson;
use bson::oid::ObjectId;
use csv::StringRecord;

use super::gaps::Gaps;
use super::{Ending, Error, Header, Key, PhasesBy, Read, Span, Trace};

/// Indexes of the columns of a CSV file that have the parts of a read, from 0 on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    phase: Phase,
    /// Index of the column `key`, which has the `_id` of the document.
    key: usize,
    /// Index of the column `bytes`, which has the size of the document.
    bytes: usize,
}

/// The column that determines the phase of a read; the field is the column's index.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The column `phase`, which has a label; consecutive lines with the same label are one phase.
    Label(usize),
    /// The column `time`, which has seconds; an interval without reads ends a phase.
    Time(usize),
}

impl Columns {
    /// Finds the columns of a trace by the names in the first line of a CSV file.
    ///
    /// # Errors
    /// The reason why the names are not those of a trace.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let names: Vec<&str> = names
            .map(|name| name.trim_matches(|c: char| c.is_whitespace() || "\"\u{feff}".contains(c)))
            .collect();
        let find = |name: &str| names.iter().position(|found| *found == name);
        let need = |name: &str| find(name).ok_or_else(|| format!("there is no column {name}"));
        let phase = match (find("phase"), find("time")) {
            (Some(phase), None) => Phase::Label(phase),
            (None, Some(time)) => Phase::Time(time),
            (None, None) => return Err("there is neither a column phase nor a column time".into()),
            (Some(_), Some(_)) => {
                return Err(
                    "phase and time are both columns: leave one out, so that the other one defines \
                     the phases"
                        .into(),
                );
            }
        };
        Ok(Self { phase, key: need("key")?, bytes: need("bytes")? })
    }
}

/// Reads a trace from a CSV file. `gap` is the interval without reads that ends a phase, for a file with times;
/// `None`: all reads are one phase.
pub(super) fn read(file: File, path: &Path, gap: Option<Duration>) -> Result<Trace, Error> {
    let at = |line: u64, what: String| Error::Line { path: path.to_owned(), line, what };
    let broken = |error: csv::Error| {
        let line = error.position().map_or(0, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(source) => Error::io("read", path)(source),
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                at(line, format!("it has {len} columns, and the first line has {expected_len}"))
            }
            csv::ErrorKind::Utf8 { .. } => at(line, "it is not UTF-8".into()),
            other => at(line, format!("{other:?}")),
        }
    };
    let mut lines = csv::Reader::from_reader(BufReader::with_capacity(1 << 20, file));
    let columns = Columns::of(lines.headers().map_err(broken)?.iter());
    let columns = columns.map_err(|what| at(1, what))?;
    let mut labels = Labels::default();
    let mut gaps = Gaps::new(gap);
    let mut record = StringRecord::new();
    while lines.read_record(&mut record).map_err(broken)? {
        let line = record.position().map_or(0, csv::Position::line);
        read_line(&record, columns, &mut labels, &mut gaps).map_err(|what| at(line, what))?;
    }
    let (phases_by, phases, spans) = match columns.phase {
        Phase::Time(_) => gaps.end(),
        Phase::Label(_) => {
            let spans = vec![Span::default(); labels.phases.len()];
            (PhasesBy::Column, labels.phases, spans)
        }
    };
    let header =
        Header { source: "CSV".into(), namespace: String::new(), when: String::new(), phases_by };
    Ok(Trace { header, phases, spans, other_reads: 0, ending: Ending::Complete })
}

/// Collects reads with labels into phases: consecutive reads with the same label are one phase.
#[derive(Default)]
struct Labels {
    /// All labels of phases that were seen so far.
    seen: HashSet<String>,
    /// The label of the current phase; `None` before the first read.
    present: Option<String>,
    phases: Vec<Vec<Read>>,
}

impl Labels {
    /// Adds a read to the phase with this label; a label that returns after another one is an error.
    fn read(&mut self, label: &str, read: Read) -> Result<(), String> {
        if self.present.as_deref() != Some(label) {
            if !self.seen.insert(label.to_owned()) {
                return Err(format!(
                    "phase {label} had ended: the lines of a phase stand together"
                ));
            }
            self.present = Some(label.to_owned());
            self.phases.push(Vec::new());
        }
        // The phase was pushed with its first read.
        self.phases.last_mut().into_iter().for_each(|phase| phase.push(read.clone()));
        Ok(())
    }
}

/// Parses a line of the file and adds its read to `labels` or to `gaps`, by the column that determines the phase.
fn read_line(
    record: &StringRecord,
    columns: Columns,
    labels: &mut Labels,
    gaps: &mut Gaps,
) -> Result<(), String> {
    let field = |column: usize| record.get(column).unwrap_or_default().trim();
    let key = key(field(columns.key))?;
    let document_bytes = match field(columns.bytes) {
        "" => None,
        bytes => Some(bytes.parse().map_err(|_| format!("{bytes:?} is no number of bytes"))?),
    };
    let read = Read { key, document_bytes };
    match columns.phase {
        Phase::Label(column) => labels.read(field(column), read),
        Phase::Time(column) => {
            let text = field(column);
            let at_us = time_us(text).ok_or_else(|| format!("{text:?} is no time in seconds"))?;
            let in_order = gaps.read(at_us, read);
            in_order
                .then_some(())
                .ok_or_else(|| format!("the time {text} is before that of the line above"))
        }
    }
}

/// Parses a number of seconds with decimals and returns microseconds; `None` if the text is not a time from 0 up.
fn time_us(text: &str) -> Option<u64> {
    let us = text.parse::<f64>().ok()? * 1e6;
    // Below 2^53 microseconds (285 years), each integer is exactly one double.
    (0.0..9e15).contains(&us).then(|| us.round() as u64)
}

/// Parses the text of a key: Extended JSON, an integer, an object id, or else a string.
fn key(text: &str) -> Result<Key, String> {
    if text.is_empty() {
        return Err("it has no key".into());
    }
    if text.starts_with('{') {
        let value = serde_json::from_str::<Bson>(text);
        return value
            .map(|value| Key::from(&value))
            .map_err(|error| format!("the key {text}: {error}"));
    }
    // `007` and `+7` are strings: only the canonical form of an integer is parsed as one.
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits == "0" || digits.starts_with(|first: char| ('1'..='9').contains(&first));
    if plain
        && text != "-0"
        && let Ok(number) = text.parse::<i64>()
    {
        return Ok(Key::from(number));
    }
    if text.len() == 24
        && let Ok(id) = ObjectId::parse_str(text)
    {
        return Ok(Key::from(&Bson::ObjectId(id)));
    }
    Ok(Key::from(&Bson::String(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn of(text: &str, gap: Option<Duration>) -> Result<Trace, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Trace::read_with(file.path(), crate::trace::Options { gap, ..Default::default() })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_reads_by_phase() {
        let trace = of("phase,key,bytes\nmap-1,17,120\nmap-1,18,\nmap-2,17,120\n", None).unwrap();
        let seventeen = Read { key: Key::from(17), document_bytes: Some(120) };
        let missing = Read { key: Key::from(18), document_bytes: None };
        assert_eq!(trace.phases, vec![vec![seventeen.clone(), missing], vec![seventeen]]);
        assert_eq!(trace.header.phases_by, PhasesBy::Column);
    }

    #[test]
    fn columns_stand_in_any_order_and_others_beside_them() {
        let trace = of("bytes,client,key,phase\n120,7,17,0\n", None).unwrap();
        assert_eq!(trace.phases[0], vec![Read { key: Key::from(17), document_bytes: Some(120) }]);
    }

    #[test]
    fn a_pause_of_the_gap_or_longer_ends_a_phase() {
        let text = "time,key,bytes\n0.0,1,9\n0.1,2,9\n0.35,3,9\n0.5,4,9\n";
        let lengths =
            |gap| -> Vec<usize> { of(text, gap).unwrap().phases.iter().map(Vec::len).collect() };
        assert_eq!(lengths(Some(Duration::from_millis(200))), [2, 2]);
        assert_eq!(lengths(Some(Duration::from_millis(100))), [1, 1, 1, 1]);
        assert_eq!(lengths(None), [4]);
    }

    #[test]
    fn keys_have_the_types_that_they_are_written_as() {
        let kind = |text: &str| key(text).unwrap().to_bson();
        assert_eq!(kind("-5"), Bson::Int64(-5));
        assert_eq!(kind("007"), Bson::String("007".into()));
        assert_eq!(kind("99999999999999999999"), Bson::String("99999999999999999999".into()));
        assert!(matches!(kind("65a1b2c3d4e5f60718293a4b"), Bson::ObjectId(_)));
        assert!(matches!(kind(r#"{"$date": "2026-01-01T00:00:00Z"}"#), Bson::DateTime(_)));
        assert_eq!(kind("order-7"), Bson::String("order-7".into()));
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        let error = |text: &str| of(text, None).unwrap_err();
        assert!(error("phase,key,bytes\n0,17,large\n").contains("line 2"));
        assert!(error("phase,key,bytes\n0,,1\n").contains("no key"));
        assert!(error("phase,key,bytes\n0,1,1\n1,1,1\n0,1,1\n").contains("line 4"));
        assert!(error("time,key,bytes\n2,1,1\n1,1,1\n").contains("before"));
        assert!(error("time,key,bytes\nNaN,1,1\n").contains("no time"));
        assert!(error("phase,key,bytes\n0,1\n").contains("2 columns"));
        assert!(error("phase,key,bytes\n0,{\"$date\",1\n").contains("line 2"));
    }
}

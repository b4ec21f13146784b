//! A trace: the number of operations of each kind that clients requested, interval by interval.
//!
//! The format is CSV: `start,reads,updates,inserts,scans,record_bytes,reuse_distance`, with the columns in any order.
//! Columns of operations that do not occur may be missing; so may the last two, which may also have empty values. A
//! start is a time in any format that [`moment`] parses. Intervals have a fixed length, the most common one among the
//! first rows ([`reading`]). A gap is filled with unknown intervals, which are counted. A file may be compressed
//! (`gzip`).

mod moment;
mod reading;

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;

use imago_plan::tune::records::Records;
use imago_plan::tune::workload::Interval;

use crate::error::{Error, Result};
use crate::table::{OPERATIONS, RECORDS, Table};
pub use moment::seconds;
pub(crate) use reading::most_common;
use reading::{Reading, Seen};

/// Description of valid start times of intervals, for errors.
const WANTED: &str =
    "seconds, milli-, micro- or nanoseconds since 1970, or as 2014-04-10T00:04:00Z";
/// First bytes of a file that is compressed by gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A trace of the operations that clients requested; see the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Length of an interval of the trace, in seconds.
    pub interval_s: u64,
    /// Intervals of the trace in chronological order; a gap in the file is filled with intervals of unknown workload.
    pub intervals: Vec<Interval>,
    /// Number of intervals without data among [`Self::intervals`].
    pub missing: usize,
    /// Sizes and reuse distances of the records, one entry for each row of the file, up to a maximum.
    pub records: Vec<Records>,
    /// Number of the file's intervals that are combined into one of [`Self::intervals`]; above one for very long
    /// traces.
    pub together: u64,
}

/// Returns a reader of a file's content that decompresses it if it is compressed by gzip; `file` is the name for
/// errors.
pub(crate) fn unpacked<'r>(file: &str, from: impl Read + 'r) -> Result<Box<dyn Read + 'r>> {
    let mut from = BufReader::new(from);
    let begin = from
        .fill_buf()
        .map_err(|cause| Error::Table { file: file.to_owned(), reason: cause.to_string() })?;
    let is_packed = begin.starts_with(&GZIP);
    Ok(if is_packed {
        Box::new(flate2::bufread::MultiGzDecoder::new(from))
    } else {
        Box::new(from)
    })
}

impl Trace {
    /// Reads a trace from CSV; `file` is the file's name in errors.
    ///
    /// # Errors
    /// Fails if the trace is invalid; the error has the place and the reason.
    pub fn read(file: &str, from: impl Read) -> Result<Self> {
        Self::read_of(file, from, None)
    }

    /// Reads a trace to which intervals of `interval_s` seconds will be appended; the trace may be empty. `file` is
    /// the file's name in errors.
    ///
    /// # Errors
    /// Fails if the trace is invalid, or if its intervals have another length; the error has the place and the reason.
    pub fn read_to_add(file: &str, from: impl Read, interval_s: u64) -> Result<Self> {
        Self::read_of(file, from, Some(interval_s))
    }

    fn read_of(file: &str, from: impl Read, asked_s: Option<u64>) -> Result<Self> {
        let table = Table::open(file, unpacked(file, from)?, &["start"], &RECORDS)?;
        let mut reading = Reading::new(file, asked_s);
        table.each(|row| {
            let text = row.text("start").unwrap_or_default();
            let start_s = seconds(text).ok_or_else(|| row.wrong("start", WANTED))?;
            reading.add(Seen {
                line: row.line,
                start_s,
                counts: row.operations()?,
                records: row.records()?,
            })
        })?;
        reading.end()
    }
}

/// Header of a new trace file.
const COLUMNS: &str = "start,reads,updates,inserts,scans,record_bytes";

/// Writes a trace file; replaces an existing file. Each interval has its start, in seconds since 1970, and its
/// numbers of reads, updates, inserts and scans.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(path: &Path, intervals: impl Iterator<Item = (u64, [u64; 4])>) -> std::io::Result<()> {
    let mut text = format!("{COLUMNS}\n");
    let columns: Vec<String> = COLUMNS.split(',').map(str::to_owned).collect();
    for (start_s, operations) in intervals {
        text.push_str(&line(&columns, start_s, operations, None)?);
    }
    std::fs::write(path, text)
}

/// Formats an interval as a row of a trace file with these columns; `start_s` is in seconds since 1970.
fn line(
    columns: &[String],
    start_s: u64,
    operations: [u64; 4],
    record_bytes: Option<f64>,
) -> std::io::Result<String> {
    let has = |name: &str| columns.iter().any(|column| column == name);
    for (name, count) in OPERATIONS.iter().zip(operations) {
        if count > 0 && !has(name) {
            let what = format!("its first line has no column {name}, and there were {count}");
            return Err(std::io::Error::other(what));
        }
    }
    let value = |column: &String| match column.as_str() {
        "start" => start_s.to_string(),
        "record_bytes" => record_bytes.map_or_else(String::new, |bytes| format!("{bytes:.0}")),
        name => {
            let kind = OPERATIONS.iter().position(|one| *one == name);
            kind.map_or_else(String::new, |kind| operations[kind].to_string())
        }
    };
    let values: Vec<String> = columns.iter().map(value).collect();
    Ok(values.join(",") + "\n")
}

/// Returns the names of a trace file's columns; those of a new file if the file is empty.
fn columns_of(file: &File) -> std::io::Result<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file);
    let headers = reader.headers().map_err(std::io::Error::other)?;
    if headers.is_empty() {
        return Ok(COLUMNS.split(',').map(str::to_owned).collect());
    }
    Ok(headers.iter().map(str::to_ascii_lowercase).collect())
}

/// Checks that a trace file has all columns required to append intervals; a file that does not exist is valid.
///
/// # Errors
/// Fails if a column is missing, or if the file cannot be read.
pub fn require_columns(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(Error::Table { file: shown, reason: cause.to_string() }),
    };
    let columns = columns_of(&file)
        .map_err(|cause| Error::Table { file: shown.clone(), reason: cause.to_string() })?;
    // Databases do not distinguish inserts from updates.
    let needed = ["start", "reads", "updates", "scans"];
    match needed.into_iter().find(|name| !columns.iter().any(|column| column == name)) {
        None => Ok(()),
        Some(missing) => Err(Error::Columns {
            file: shown,
            problem: format!("the column {missing} is missing, and intervals are to be added"),
            columns: needed.join(","),
        }),
    }
}

/// Appends an interval, which starts at `start_s` (in seconds since 1970), to a trace file in the file's columns, and
/// syncs the file to disk; writes the header if the file is empty or new.
///
/// # Errors
/// Fails if the file cannot be written, or lacks a column for a count above zero ([`require_columns`]).
pub fn add(
    path: &Path,
    start_s: u64,
    operations: [u64; 4],
    record_bytes: Option<f64>,
) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let columns = columns_of(&file)?;
    let head = if file.metadata()?.len() == 0 { format!("{COLUMNS}\n") } else { String::new() };
    let line = line(&columns, start_s, operations, record_bytes)?;
    file.write_all((head + &line).as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use imago_plan::tune::workload::Mix;

    use super::*;

    fn read(text: &str) -> Result<Trace> {
        Trace::read("buses.csv", text.as_bytes())
    }

    #[test]
    fn columns_may_be_in_any_order_and_times_either_way() {
        let seconds =
            read("start,scans,updates\n1397088000,10,90\n1397088300,80,20\n1397088600,0,0\n");
        let dates = read(
            "updates, start, scans\n90,2014-04-10T00:00:00Z,10\n20,2014-04-10T02:05:00+02:00,80\n0,2014-04-10T00:10:00Z,0\n",
        );
        let seconds = seconds.unwrap();
        assert_eq!(dates.unwrap(), seconds);
        assert_eq!((seconds.interval_s, seconds.missing), (300, 0));
        let shares = seconds.intervals[0].mix.unwrap().shares();
        assert_eq!(shares, [0.0, 0.9, 0.0, 0.1]);
        assert!((seconds.intervals[0].rate_s.unwrap() - 100.0 / 300.0).abs() < 1e-12);
        assert_eq!(seconds.intervals[2].mix, None);
    }

    #[test]
    fn a_trace_is_added_to_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.csv");
        let read = |interval_s| {
            let file = std::fs::File::open(&path).unwrap();
            Trace::read_to_add("seen.csv", file, interval_s)
        };
        std::fs::write(&path, "").unwrap();
        add(&path, 1_795_737_600, [920, 4_410, 0, 3], Some(1_018.4)).unwrap();
        assert_eq!(read(300).unwrap().intervals.len(), 1, "one is enough to add to");
        add(&path, 1_795_737_900, [800, 4_000, 0, 0], None).unwrap();
        add(&path, 1_795_738_500, [0, 0, 0, 0], None).unwrap();
        let trace = read(300).unwrap();
        assert_eq!((trace.intervals.len(), trace.missing), (4, 1));
        let told: Vec<Option<f64>> = trace.records.iter().map(|one| one.bytes).collect();
        assert_eq!(told, [Some(1_018.0), None, None]);
        assert_eq!(trace.intervals[0].mix, Mix::of([920.0, 4_410.0, 0.0, 3.0]));
        // So few may have been added by controllers that were started again and again.
        assert_eq!(read(150).unwrap().missing, 4);
        for number in 0..10 {
            add(&path, 1_795_738_800 + number * 300, [920, 4_410, 0, 3], None).unwrap();
        }
        let error = read(150).unwrap_err().to_string();
        assert!(error.contains("its intervals are 300 s long"), "{error}");
        assert_eq!(read(300).unwrap().missing, 1);
    }

    #[test]
    fn a_file_is_added_to_in_the_columns_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.csv");
        std::fs::write(&path, "Updates, start,reads,reuse_distance\n7,1795737600,9,120\n").unwrap();
        add(&path, 1_795_737_900, [800, 4_000, 0, 0], Some(1_018.4)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("\n4000,1795737900,800,\n"), "{text}");
        let trace = Trace::read("seen.csv", text.as_bytes()).unwrap();
        assert_eq!(trace.intervals[1].mix, Mix::of([800.0, 4_000.0, 0.0, 0.0]));
        assert_eq!(trace.records[0].reuse_distance, Some(120.0));
        let error = require_columns(&path).unwrap_err().to_string();
        assert!(error.contains("the column scans is missing"), "{error}");
        let error = add(&path, 1_795_738_200, [0, 0, 0, 5], None).unwrap_err().to_string();
        assert!(error.contains("no column scans, and there were 5"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);

        let quoted = "\"start\",\"reads\",\"updates\",\"scans\"\n1795737600,9,7,0\n";
        std::fs::write(&path, quoted).unwrap();
        require_columns(&path).unwrap();
        add(&path, 1_795_737_900, [8, 6, 0, 1], Some(1_018.4)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{quoted}1795737900,8,6,1\n"));
        require_columns(&folder.path().join("none.csv")).unwrap();
    }

    #[test]
    fn files_of_monitoring_systems_are_read_packed_too() {
        let plain = read("start,reads\n1490054400,5\n1490054460,7\n1490054520,9\n").unwrap();
        let grafana = "\u{feff}\"Time\",\"reads\"\n2017-03-21 00:00:00,5\n2017-03-21 00:01:00,7\n2017-03-21 00:02:00,9\n";
        assert_eq!(read(grafana).unwrap(), plain);
        let influx =
            "reads,_time\n5,1490054400000000000\n7,1490054460000000000\n9,1490054520000000000\n";
        assert_eq!(read(influx).unwrap(), plain);
        let millis = "timestamp,reads\n1490054400000,5\n1490054460012,7\n1490054520003,9\n";
        assert_eq!(read(millis).unwrap(), plain);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(millis.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(Trace::read("buses.csv.gz", &packed[..]).unwrap(), plain);
        let cut = Trace::read("buses.csv.gz", &packed[..packed.len() - 9]).unwrap_err().to_string();
        assert!(cut.starts_with("buses.csv.gz: "), "{cut}");
    }

    #[test]
    fn a_gap_is_filled_and_counted() {
        let trace = read("start,reads\n1000,5\n1060,5\n1300,5\n1360,5\n").unwrap();
        assert_eq!((trace.interval_s, trace.missing, trace.intervals.len()), (60, 3, 7));
        let starts: Vec<u64> = trace.intervals.iter().map(|one| one.start_s).collect();
        assert_eq!(starts, [1000, 1060, 1120, 1180, 1240, 1300, 1360]);
        assert!(trace.intervals[2..5].iter().all(|one| one.mix.is_none()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, said) in [
            (
                "reads\n5\n",
                "buses.csv: the column start is missing; its first line names the columns: start,reads",
            ),
            ("start\n1000\n", "no column counts operations"),
            ("start,reads,writes\n1000,5,5\n", "the column \"writes\" means nothing here"),
            ("start,reads,reads\n1000,5,5\n", "the column reads is there twice"),
            ("start,reads\n", "0 intervals, and the length"),
            ("start,reads\n1000,5\n", "1 intervals, and the length"),
            ("start,reads\n1000,5\nyesterday,5\n", "buses.csv, line 3: start is \"yesterday\""),
            ("start,reads\n1000,5\n1060,-5\n", "line 3: reads is \"-5\", and it must be a number"),
            ("start,reads\n1000,5\n1060,NaN\n", "line 3: reads is \"NaN\""),
            ("start,reads\n1000,5\n1060,inf\n", "line 3: reads is \"inf\""),
            ("start,reads\n1000,5\n1060,1e308\n", "line 3: reads is \"1e308\""),
            ("start,reads\n1000,5\n1e300,5\n", "line 3: start is \"1e300\""),
            ("start,reads,record_bytes\n1000,5,\n1060,5,big\n", "line 3: record_bytes is \"big\""),
            (
                "start,reads\n1000,5\n1060,5\n1030,5\n",
                "line 4: it begins 30 s before the one before it",
            ),
            ("start,reads\n1000,5\n1060,5\n1060,5\n", "line 4: it begins when the one before does"),
            (
                "start,reads\n1000,5\n1060,5\n1120,5\n1210,5\n",
                "line 5: it begins 210 s behind the first one",
            ),
            (
                "start,reads\n0,5\n1,5\n2,5\n99999999,5\n",
                "line 5: a trace may have a gap of 20000000 intervals",
            ),
            ("start,reads\n1000,5\n1060\n", "line: 3"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

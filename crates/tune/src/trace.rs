//! A trace: how many operations of each kind clients asked for, interval by interval.
//!
//! As CSV: `start,reads,updates,inserts,scans,record_bytes,reuse_distance`, with the columns in any order and of the
//! operations only those that there are; the last two may be missing, or empty where they are not known. A start is in
//! seconds since 1970, or as RFC 3339 has it (`2014-04-10T00:04:00Z`). Intervals have one length, which is told from most
//! of them. A gap is filled with intervals of which nothing is known, and counted.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::path::Path;

use imago_plan::tune::records::Records;
use imago_plan::tune::workload::{Interval, Mix};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::{Error, Result};
use crate::table::{OPERATIONS, RECORDS, Table};

/// Intervals that a trace may have, gaps included: ten years of five minutes.
const INTERVALS_MAX: u64 = 1_100_000;

/// Distances of starts that do not tell the length of an interval.
const FEW: usize = 10;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The length of an interval, in seconds.
    pub interval_s: u64,
    /// The intervals, one behind the other.
    pub intervals: Vec<Interval>,
    /// Those among them that were missing.
    pub missing: usize,
    /// What is known of the records, of each interval that was not missing.
    pub records: Vec<Records>,
}

impl Trace {
    /// Reads a trace; `file` is its name in errors.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(file: &str, from: impl Read) -> Result<Self> {
        Self::read_of(file, from, None)
    }

    /// Reads a trace that is added to: its intervals have this length, and there may be none yet.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read_to_add(file: &str, from: impl Read, interval_s: u64) -> Result<Self> {
        Self::read_of(file, from, Some(interval_s))
    }

    fn read_of(file: &str, from: impl Read, asked_s: Option<u64>) -> Result<Self> {
        let table = Table::read(file, from, &["start"], &RECORDS)?;
        let mut rows: Vec<(u64, u64, [f64; 4])> = Vec::new();
        let mut records = Vec::new();
        for row in table.rows() {
            let text = row.text("start").unwrap_or_default();
            let wanted = "seconds since 1970, or as 2014-04-10T00:04:00Z";
            let start_s = seconds(text).ok_or_else(|| row.wrong("start", wanted))?;
            rows.push((row.line, start_s, row.operations()?));
            records.push(row.records()?);
        }
        if rows.len() < 2 && asked_s.is_none() {
            return Err(Error::TooLittle {
                file: file.to_owned(),
                found: format!("{} intervals", rows.len()),
                needed: "the length of an interval is told from two at least".to_owned(),
            });
        }
        let wrong =
            |line: u64, problem: String| Error::Order { file: file.to_owned(), line, problem };
        for pair in rows.windows(2) {
            let ((_, before_s, _), (line, start_s, _)) = (pair[0], pair[1]);
            if start_s <= before_s {
                let back_s = before_s - start_s;
                let problem = match back_s {
                    0 => "it begins when the one before does".to_owned(),
                    _ => format!("it begins {back_s} s before the one before it"),
                };
                return Err(wrong(
                    line,
                    format!("{problem}: intervals have to be in their order, each once"),
                ));
            }
        }
        let distances = || rows.windows(2).map(|pair| pair[1].1 - pair[0].1);
        let own_s = most_common(distances());
        if let (Some(asked_s), Some(own_s)) = (asked_s, own_s)
            && !may_be_added_to(distances(), asked_s)
        {
            return Err(Error::TooLittle {
                file: file.to_owned(),
                found: format!("its intervals are {own_s} s long"),
                needed: format!("intervals of {asked_s} s are to be added: name another file"),
            });
        }
        let interval_s =
            asked_s.or(own_s).expect("one row beside another, or a length that is asked for");
        let mut intervals = Vec::with_capacity(rows.len());
        let mut missing = 0;
        let first_s = rows.first().map_or(0, |row| row.1);
        for (line, start_s, counts) in rows {
            let since_s = start_s - first_s;
            if !since_s.is_multiple_of(interval_s) {
                let problem = format!(
                    "it begins {since_s} s behind the first one, and most intervals are {interval_s} s long"
                );
                return Err(wrong(line, problem));
            }
            if since_s / interval_s >= INTERVALS_MAX {
                let problem = format!("a trace may have {INTERVALS_MAX} intervals, gaps included");
                return Err(wrong(line, problem));
            }
            while first_s + intervals.len() as u64 * interval_s < start_s {
                let start_s = first_s + intervals.len() as u64 * interval_s;
                intervals.push(Interval { start_s, mix: None, rate_s: None });
                missing += 1;
            }
            let rate_s = Some(counts.iter().sum::<f64>() / interval_s as f64);
            intervals.push(Interval { start_s, mix: Mix::of(counts), rate_s });
        }
        Ok(Self { interval_s, intervals, missing, records })
    }
}

/// True if intervals of this length may be added where starts have these distances: one of them is of that length, or they
/// are so few that each may be a gap, as behind a controller that was started again and again.
fn may_be_added_to(distances: impl Iterator<Item = u64>, interval_s: u64) -> bool {
    let all: Vec<u64> = distances.collect();
    all.contains(&interval_s)
        || (all.len() < FEW && all.iter().all(|distance| distance.is_multiple_of(interval_s)))
}

fn seconds(text: &str) -> Option<u64> {
    let parsed = text.parse::<u64>().ok();
    parsed.or_else(|| {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        u64::try_from(at.unix_timestamp()).ok()
    })
}

/// The columns that a new file gets.
const COLUMNS: &str = "start,reads,updates,inserts,scans,record_bytes";

/// Writes a file of intervals, in place of one that is there.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, intervals: impl Iterator<Item = (u64, [u64; 4])>) -> std::io::Result<()> {
    let mut text = format!("{COLUMNS}\n");
    let columns: Vec<String> = COLUMNS.split(',').map(str::to_owned).collect();
    for (start_s, operations) in intervals {
        text.push_str(&line(&columns, start_s, operations, None)?);
    }
    std::fs::write(path, text)
}

/// A line of a file with these columns.
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

/// The columns of a file, or those of a new one if it is empty.
fn columns_of(file: &File) -> std::io::Result<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file);
    let headers = reader.headers().map_err(std::io::Error::other)?;
    if headers.is_empty() {
        return Ok(COLUMNS.split(',').map(str::to_owned).collect());
    }
    Ok(headers.iter().map(str::to_ascii_lowercase).collect())
}

/// Makes sure that a file has a column for all that a database counts, so that it can be added to; one that is not there can.
///
/// # Errors
/// It has not, or cannot be read.
pub fn require_columns(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(Error::Table { file: shown, reason: cause.to_string() }),
    };
    let columns = columns_of(&file)
        .map_err(|cause| Error::Table { file: shown.clone(), reason: cause.to_string() })?;
    // No database tells inserts from updates.
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

/// Adds an interval to a file, which is on disk when this returns, in the columns that it has; an empty one, or one that is
/// not there, gets its first line.
///
/// # Errors
/// The file cannot be written, or has no column for what there was ([`require_columns`]).
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

/// The value that is there most often; of several the least. None of none.
fn most_common(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    let most = counts.iter().max_by_key(|(value, count)| (**count, std::cmp::Reverse(**value)));
    most.map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
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
                "line 5: a trace may have 1100000 intervals",
            ),
            ("start,reads\n1000,5\n1060\n", "line: 3"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

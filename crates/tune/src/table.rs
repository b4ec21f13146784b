//! A CSV table of numbers: the first line has the names of the columns, in any order. Rows are streamed, so that memory
//! does not depend on the length of the table.

use std::io::Read;
use std::str::FromStr;

use imago_plan::tune::records::Records;

use crate::error::{Error, Result};

/// Names of the columns that count operations, by kind; a missing column counts as zero.
pub(crate) const OPERATIONS: [&str; 4] = ["reads", "updates", "inserts", "scans"];

/// Names of the columns of the records' mean size in bytes and mean reuse distance in records; each column may be
/// missing, or have empty values.
pub(crate) const RECORDS: [&str; 2] = ["record_bytes", "reuse_distance"];

/// Alternative names of the column `start`, as Grafana and InfluxDB export it.
const STARTS: [&str; 4] = ["time", "timestamp", "_time", "ts"];

/// Maximum number in a cell: no database counts that many operations in an interval, and sums of such numbers do not
/// overflow.
const NUMBER_MAX: f64 = 1e15;

/// Header of a CSV file: the file's name and the names of the columns, by position.
pub(crate) struct Columns {
    /// Name of the file, for error messages.
    pub(crate) file: String,
    names: Vec<String>,
}

/// One row of a CSV file, with the header and the line number for error messages.
pub(crate) struct Row<'t> {
    columns: &'t Columns,
    /// Number of the row's line in the file; the header is line 1.
    pub(crate) line: u64,
    record: &'t csv::StringRecord,
}

/// A CSV file that is read row by row, after its header was checked.
pub(crate) struct Table<R> {
    columns: Columns,
    reader: csv::Reader<R>,
}

impl<R: Read> Table<R> {
    /// Opens the CSV file `from`, and checks its header: it must have the columns `needed` and at least one of
    /// [`OPERATIONS`], and may have those of `optional`, but no others. `file` is the name for error messages.
    pub(crate) fn open(file: &str, from: R, needed: &[&str], optional: &[&str]) -> Result<Self> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(from);
        let headers = reader.headers().map_err(|error| unreadable(file, &error))?;
        let has_start = headers.iter().any(|name| name.eq_ignore_ascii_case("start"));
        let name = |name: &str| {
            let name = name.trim_start_matches('\u{feff}').to_ascii_lowercase();
            let is_start = !has_start && needed.contains(&"start") && STARTS.contains(&&*name);
            if is_start { "start".to_owned() } else { name }
        };
        let names: Vec<String> = headers.iter().map(name).collect();
        let known = || needed.iter().chain(&OPERATIONS).chain(optional);
        let wrong = |problem: String| {
            let columns = known().copied().collect::<Vec<_>>().join(",");
            Err(Error::Columns { file: file.to_owned(), problem, columns })
        };
        if let Some(missing) = needed.iter().find(|name| !names.iter().any(|one| one == *name)) {
            return wrong(format!("the column {missing} is missing"));
        }
        if let Some(other) = names.iter().find(|one| !known().any(|name| one == name)) {
            return wrong(format!("the column \"{other}\" means nothing here"));
        }
        if let Some(twice) = (1..names.len()).find(|n| names[..*n].contains(&names[*n])) {
            return wrong(format!("the column {} is there twice", names[twice]));
        }
        if !names.iter().any(|one| OPERATIONS.contains(&one.as_str())) {
            return wrong("no column counts operations".to_owned());
        }
        Ok(Self { columns: Columns { file: file.to_owned(), names }, reader })
    }

    /// Calls `with` for each row of the file, in order; only one row is in memory at a time.
    pub(crate) fn each(mut self, mut with: impl FnMut(Row<'_>) -> Result<()>) -> Result<()> {
        let mut record = csv::StringRecord::new();
        loop {
            let read = self.reader.read_record(&mut record);
            if !read.map_err(|error| unreadable(&self.columns.file, &error))? {
                return Ok(());
            }
            let line = record.position().map_or(0, csv::Position::line);
            with(Row { columns: &self.columns, line, record: &record })?;
        }
    }
}

fn unreadable(file: &str, error: &csv::Error) -> Error {
    Error::Table { file: file.to_owned(), reason: error.to_string() }
}

impl Row<'_> {
    /// Returns the text of this row in a column; None if the file has no such column.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let number = self.columns.names.iter().position(|one| one == column)?;
        self.record.get(number)
    }

    /// Returns the error for an invalid value of this row in a column; `wanted` describes valid values.
    pub(crate) fn wrong(&self, column: &str, wanted: &'static str) -> Error {
        Error::Value {
            file: self.columns.file.clone(),
            line: self.line,
            column: column.to_owned(),
            value: self.text(column).unwrap_or_default().to_owned(),
            wanted,
        }
    }

    /// Returns the number of this row in a column, from 0 to 1e15; zero if the file has no such column.
    pub(crate) fn number(&self, column: &str) -> Result<f64> {
        let Some(text) = self.text(column) else { return Ok(0.0) };
        let number = f64::from_str(text).ok().filter(|number| (0.0..=NUMBER_MAX).contains(number));
        number.ok_or_else(|| self.wrong(column, "a number, not below zero, and 1e15 at most"))
    }

    /// Returns the record size and the reuse distance of this row; each is None if its column is missing or the cell
    /// is empty.
    pub(crate) fn records(&self) -> Result<Records> {
        let known = |column: &str| match self.text(column) {
            None | Some("") => Ok(None),
            Some(_) => self.number(column).map(Some),
        };
        Ok(Records { bytes: known(RECORDS[0])?, reuse_distance: known(RECORDS[1])? })
    }

    /// Returns this row's numbers of reads, updates, inserts and scans.
    pub(crate) fn operations(&self) -> Result<[f64; 4]> {
        let mut counts = [0.0; 4];
        for (count, column) in counts.iter_mut().zip(OPERATIONS) {
            *count = self.number(column)?;
        }
        Ok(counts)
    }
}

//! A table of numbers as CSV: the first line names the columns, in any order.

use std::io::Read;
use std::str::FromStr;

use imago_plan::tune::records::Records;

use crate::error::{Error, Result};

/// The operations of a mix, as columns; one that is not there is zero throughout.
pub(crate) const OPERATIONS: [&str; 4] = ["reads", "updates", "inserts", "scans"];

/// What is known of the records, as columns; each may be missing, or empty.
pub(crate) const RECORDS: [&str; 2] = ["record_bytes", "reuse_distance"];

/// A row, with what is needed to say where something is wrong.
pub(crate) struct Row<'t> {
    table: &'t Table,
    pub(crate) line: u64,
    record: csv::StringRecord,
}

/// A table, read as a whole.
pub(crate) struct Table {
    pub(crate) file: String,
    columns: Vec<String>,
    rows: Vec<(u64, csv::StringRecord)>,
}

impl Table {
    /// Reads a table that has the needed columns and no others than these, the optional ones and [`OPERATIONS`], of which
    /// one is needed.
    pub(crate) fn read(
        file: &str,
        from: impl Read,
        needed: &[&str],
        optional: &[&str],
    ) -> Result<Self> {
        let told =
            |error: csv::Error| Error::Table { file: file.to_owned(), reason: error.to_string() };
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(from);
        let headers = reader.headers().map_err(told)?;
        let columns: Vec<String> = headers.iter().map(str::to_ascii_lowercase).collect();
        let known = || needed.iter().chain(&OPERATIONS).chain(optional);
        let wrong = |problem: String| {
            let columns = known().copied().collect::<Vec<_>>().join(",");
            Err(Error::Columns { file: file.to_owned(), problem, columns })
        };
        if let Some(missing) = needed.iter().find(|name| !columns.iter().any(|one| one == *name)) {
            return wrong(format!("the column {missing} is missing"));
        }
        if let Some(other) = columns.iter().find(|one| !known().any(|name| one == name)) {
            return wrong(format!("the column \"{other}\" means nothing here"));
        }
        if let Some(twice) = (1..columns.len()).find(|n| columns[..*n].contains(&columns[*n])) {
            return wrong(format!("the column {} is there twice", columns[twice]));
        }
        if !columns.iter().any(|one| OPERATIONS.contains(&one.as_str())) {
            return wrong("no column counts operations".to_owned());
        }
        let row = |record: csv::Result<csv::StringRecord>| {
            let record = record.map_err(told)?;
            let line = record.position().map_or(0, csv::Position::line);
            Ok((line, record))
        };
        let rows = reader.records().map(row).collect::<Result<_>>()?;
        Ok(Self { file: file.to_owned(), columns, rows })
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, record)| Row {
            table: self,
            line: *line,
            record: record.clone(),
        })
    }
}

impl Row<'_> {
    /// The value of a column; none without such a column.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let number = self.table.columns.iter().position(|one| one == column)?;
        self.record.get(number)
    }

    /// What is wrong with a value.
    pub(crate) fn wrong(&self, column: &str, wanted: &'static str) -> Error {
        Error::Value {
            file: self.table.file.clone(),
            line: self.line,
            column: column.to_owned(),
            value: self.text(column).unwrap_or_default().to_owned(),
            wanted,
        }
    }

    /// A number that is not negative; zero without such a column.
    pub(crate) fn number(&self, column: &str) -> Result<f64> {
        let Some(text) = self.text(column) else { return Ok(0.0) };
        let number = f64::from_str(text).ok().filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| self.wrong(column, "a number, not below zero"))
    }

    /// What is known of the records.
    pub(crate) fn records(&self) -> Result<Records> {
        let known = |column: &str| match self.text(column) {
            None | Some("") => Ok(None),
            Some(_) => self.number(column).map(Some),
        };
        Ok(Records { bytes: known(RECORDS[0])?, reuse_distance: known(RECORDS[1])? })
    }

    /// The counts of operations.
    pub(crate) fn operations(&self) -> Result<[f64; 4]> {
        let mut counts = [0.0; 4];
        for (count, column) in counts.iter_mut().zip(OPERATIONS) {
            *count = self.number(column)?;
        }
        Ok(counts)
    }
}

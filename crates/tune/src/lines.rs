//! Repair of CSV files to which rows are appended, and whose last row may be incomplete after the writing process
//! died.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// Repairs a CSV file whose last row lacks a line end: if the row has as many values as the first row, the line end
/// is added, otherwise the row is removed. The file is unchanged if it does not exist, or if `is_expected` returns
/// false for its first row.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn repair_torn_tail(
    path: &Path,
    is_expected: impl FnOnce(&str) -> bool,
) -> std::io::Result<()> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(cause),
    };
    let first = text.lines().next().unwrap_or_default();
    if text.ends_with('\n') || !is_expected(first) {
        return Ok(());
    }
    let begins = text.rfind('\n').map_or(0, |end| end + 1);
    let values = |line: &str| line.split(',').count();
    let mut file = OpenOptions::new().append(true).open(path)?;
    if values(&text[begins..]) == values(first) {
        file.write_all(b"\n")?;
    } else {
        file.set_len(begins as u64)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_off_is_ended_or_goes_and_a_foreign_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.csv");
        repair_torn_tail(&path, |_| true).unwrap();
        for (text, mended) in [
            ("start,reads\n1490054400,9\n149005", "start,reads\n1490054400,9\n"),
            (
                "start,reads\n1490054400,9\n1490054700,8",
                "start,reads\n1490054400,9\n1490054700,8\n",
            ),
            ("start,reads\n1490054400,9\n", "start,reads\n1490054400,9\n"),
            ("start,reads", "start,reads\n"),
            ("half a li", "half a li"),
            ("", ""),
        ] {
            std::fs::write(&path, text).unwrap();
            repair_torn_tail(&path, |first| first.starts_with("start")).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), mended, "{text}");
        }
    }
}

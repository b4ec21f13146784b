//! The file of measurements: one line for each measurement, written to disk as soon as it was made.
//!
//! The first line names the columns. A file with other columns is not changed: it belongs to another database, or is
//! not a file of measurements.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use imago_tune::cluster::{Error, Result};
use imago_tune::lines;
use imago_workload::mix::Mix;

use super::Sample;

/// The columns that every file of measurements has, as its first line.
const COLUMNS: &str = "configuration,operations_s,reads,updates,inserts,scans,round,warm_s,spread,record_bytes,median_us,p99_us";
/// The columns that follow [`COLUMNS`] for a database that reports its memory and CPU use.
const USED: &str = ",memory_bytes,cpu_us";

/// Identification of a measurement in the file: the configuration's name, the shares of the mix as text, and the
/// round.
pub(super) type Key = (String, String, usize);

pub(super) fn key(configuration: &str, mix: &Mix, round: usize) -> Key {
    (configuration.to_owned(), counts(mix), round)
}

fn counts(mix: &Mix) -> String {
    format!("{},{},{},{}", mix.read, mix.update, mix.insert, mix.scan)
}

fn columns(tells_use: bool) -> String {
    format!("{COLUMNS}{}", if tells_use { USED } else { "" })
}

/// Reads the identifications of the measurements in the file; empty if the file does not exist. An incomplete last
/// line is repaired first. `tells_use`: the database reports its memory and CPU use; `record_bytes`: the size of a
/// record.
///
/// # Errors
/// Fails if the file cannot be read or repaired, is not a file of such measurements, or was made with records of
/// another size.
pub(super) fn read(path: &Path, tells_use: bool, record_bytes: u32) -> Result<Vec<Key>> {
    lines::repair_torn_tail(path, |first| first == columns(tells_use))
        .map_err(|cause| Error::Usage(format!("cannot mend {}: {cause}", path.display())))?;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::Usage(format!("cannot read {}: {cause}", path.display()))),
    };
    let other = |line: usize| {
        let shown = path.display();
        Error::Usage(format!(
            "{shown}, line {line}: no measurement of this command for this database; name another --out"
        ))
    };
    let columns = columns(tells_use);
    let mut lines = text.lines();
    match lines.next() {
        Some(first) if first == columns.replace(",median_us,p99_us", "") => {
            return Err(Error::Usage(format!(
                "{}: an earlier version made it, and it does not tell the time to a reply (median_us, p99_us): name another \
                 --out",
                path.display()
            )));
        }
        Some(first) if first != columns => return Err(other(1)),
        _ => {}
    }
    let mut found = Vec::new();
    for (number, line) in (2..).zip(lines) {
        let fields: Vec<&str> = line.split(',').collect();
        let is_whole = fields.len() == columns.split(',').count();
        let [name, _, reads, updates, inserts, scans, round, _, _, bytes, ..] = fields[..] else {
            return Err(other(number));
        };
        if bytes != record_bytes.to_string() {
            let shown = path.display();
            return Err(Error::Usage(format!(
                "{shown}, line {number}: measured with records of {bytes} bytes, and --size-bytes is {record_bytes}: name \
                 another --out"
            )));
        }
        let round = round.parse().ok().filter(|_| is_whole).ok_or_else(|| other(number))?;
        found.push((name.to_owned(), format!("{reads},{updates},{inserts},{scans}"), round));
    }
    Ok(found)
}

/// Appends a measurement of the mix `mix` to the file, which is on disk when this returns. `tells_use`: the database
/// reports its memory and CPU use.
///
/// # Errors
/// Fails if the file cannot be written.
pub(super) fn write(path: &Path, sample: &Sample, mix: &Mix, tells_use: bool) -> Result<()> {
    let written = || {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let is_new = file.metadata()?.len() == 0;
        let head = if is_new { columns(tells_use) + "\n" } else { String::new() };
        let Sample { configuration, operations_s, round, warm_s, spread, record_bytes, .. } =
            sample;
        let counts = counts(mix);
        let memory = sample.memory_bytes.map_or_else(String::new, |bytes| bytes.to_string());
        let cpu = sample.cpu_us.map_or_else(String::new, |of| format!("{of:.2}"));
        let used = if tells_use { format!(",{memory},{cpu}") } else { String::new() };
        let [median, p99] = [sample.median_us, sample.p99_us]
            .map(|us| us.map_or_else(String::new, |us| format!("{us:.0}")));
        let line = format!(
            "{head}{configuration},{operations_s:.1},{counts},{round},{warm_s:.1},{spread:.3},{record_bytes},{median},{p99}\
             {used}\n"
        );
        file.write_all(line.as_bytes())?;
        file.sync_all()
    };
    written().map_err(|cause| Error::Failed {
        what: format!("cannot write {}: {cause}", path.display()),
        help: "the same command makes the measurements that are missing".into(),
    })
}

#[cfg(test)]
mod tests {
    use imago_tune::measurements::Measurements;

    use super::*;

    fn sample(configuration: &str, used: Option<(u64, f64)>) -> Sample {
        Sample {
            configuration: configuration.into(),
            mix: "read=90,update=5,scan=5".into(),
            round: 1,
            operations_s: 4_711.25,
            spread: 0.043,
            warm_s: 35.0,
            not_warm: None,
            median_us: Some(812.4),
            p99_us: Some(9_120.0),
            record_bytes: 1_000,
            memory_bytes: used.map(|used| used.0),
            cpu_us: used.map(|used| used.1),
        }
    }

    #[test]
    fn what_is_written_is_found_again_and_read_by_the_planner() {
        let folder = tempfile::tempdir().unwrap();
        let mix: Mix = "read=90,update=5,scan=5".parse().unwrap();
        for (tells_use, used) in [(false, None), (true, Some((48 << 20, 7.126)))] {
            let path = folder.path().join(format!("{tells_use}.csv"));
            assert_eq!(read(&path, tells_use, 1_000).unwrap(), []);
            let names = ["unified T8", "unified L10"];
            for name in names {
                write(&path, &sample(name, used), &mix, tells_use).unwrap();
            }
            let expected = names.map(|name| key(name, &mix, 1));
            assert_eq!(read(&path, tells_use, 1_000).unwrap(), expected);
            let error = read(&path, tells_use, 8_000).unwrap_err().to_string();
            assert!(error.contains("line 2: measured with records of 1000 bytes"), "{error}");
            let file = std::fs::File::open(&path).unwrap();
            let measured = Measurements::read("here.csv", file).unwrap();
            assert_eq!(
                (measured.samples.len(), measured.names),
                (2, names.map(String::from).into())
            );
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(",812,9120").count(), 2, "{text}");
            assert_eq!(text.matches(",50331648,7.13\n").count(), if tells_use { 2 } else { 0 });
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_measured_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("here.csv");
        let whole = format!("{COLUMNS}\nT8,1702.2,1,93,6,0,0,24.0,0.335,1000,36012,98304\n");
        std::fs::write(&path, format!("{whole}T8,573.9,1,63")).unwrap();
        assert_eq!(read(&path, false, 1_000).unwrap().len(), 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    }

    #[test]
    fn another_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        for (text, tells_use) in [
            ("start,reads\n1490054400,9\n".to_owned(), false),
            (COLUMNS.replace(",median_us,p99_us", "") + "\nT8,9.0,1,0,0,0,0,3.0,0.1\n", false),
            (format!("{COLUMNS}\nhalf a line\n"), false),
            (format!("{COLUMNS}\na,9.0,1,0,0,0,0,3.0\n"), false),
            (format!("{COLUMNS}\n"), true),
            (format!("{COLUMNS}{USED}\n"), false),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = read(&path, tells_use, 1_000).unwrap_err().to_string();
            assert!(error.contains("name another --out"), "{text}: {error}");
        }
    }
}

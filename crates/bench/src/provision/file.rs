//! The file of runs: one line of JSON for each run, synced to disk as soon as the run ends.
//!
//! The first line has the settings that all runs share. A benchmark that is started again appends to the runs in the
//! file. Runs with other settings are rejected, because they could not be compared.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cell::Run;
use crate::error::{Error, Result, process};

/// Version of the file format.
const VERSION: u32 = 1;
/// Start of the first line.
const HEAD: &str = "{\"imago_cells\":";

/// Settings that all runs of a file share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Common {
    /// Number of documents in the collection.
    pub documents: u64,
    /// Number of keys with which a chain starts.
    pub keys: u64,
    /// Number of phases of a chain.
    pub length: u32,
    /// Number of keys in a batch.
    pub batch: u32,
    /// Number of batches in flight.
    pub workers: u32,
    /// Kind of the job, as `imago chain run --job` takes it.
    pub job: String,
    /// CPU limit of each member with data, in percent of one processor; None on existing servers.
    pub cpu_percent: Option<u16>,
    /// Size of each member's storage cache, in MiB; None on existing servers.
    pub cache_mb: Option<u32>,
    /// Seed of the first keys.
    pub seed: u64,
}

#[derive(Serialize, Deserialize)]
struct Head {
    imago_cells: u32,
    #[serde(flatten)]
    common: Common,
}

/// Returns the path of the trace that belongs to a file of runs.
pub(crate) fn trace(path: &Path) -> PathBuf {
    path.with_extension("imt")
}

/// Returns the path of the probe that belongs to a file of runs.
pub(crate) fn probe(path: &Path) -> PathBuf {
    path.with_extension("probe.json")
}

/// An open file of runs, with the runs that it has.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    runs: Vec<Run>,
}

impl File {
    /// Opens a file, or creates it.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, is not a file of runs, or has runs with other settings. Fails for
    /// a new file if its trace or probe would have the same name, or already exists.
    pub(crate) fn open(path: &Path, common: &Common) -> Result<Self> {
        let shown = path.display();
        let wrong = |what: String| Error::Size(format!("{shown}: {what}; name another file"));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(cause) => return Err(process(format!("read {shown}"))(cause)),
        };
        let mut file = Self { path: path.to_path_buf(), runs: Vec::new() };
        // If a process ended while it wrote a line, the line has no newline: it is ignored, and cut off below.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole].lines();
        let Some(first) = lines.next() else {
            let begins = &text.as_bytes()[..text.len().min(HEAD.len())];
            if !HEAD.as_bytes().starts_with(begins) {
                return Err(wrong("this is no file of runs".into()));
            }
            // The file is new, so an existing trace or probe of this name belongs to runs that were deleted.
            for beside in [trace(path), probe(path)] {
                if beside == path {
                    let what = "the trace or the probe beside it would have the same name";
                    return Err(wrong(what.into()));
                }
                if beside.exists() {
                    let beside = beside.display();
                    return Err(wrong(format!("{beside} is of other runs: remove it, too")));
                }
            }
            file.cut(0)?;
            let head = Head { imago_cells: VERSION, common: common.clone() };
            file.write(&head)?;
            return Ok(file);
        };
        let head: Head =
            serde_json::from_str(first).map_err(|_| wrong("this is no file of runs".into()))?;
        if head.imago_cells != VERSION {
            return Err(wrong(format!("it has version {}, not {VERSION}", head.imago_cells)));
        }
        if head.common != *common {
            return Err(wrong("its runs have other settings, as its first line says".into()));
        }
        for (number, line) in (2..).zip(lines) {
            let run = serde_json::from_str(line)
                .map_err(|cause| wrong(format!("line {number} is no run: {cause}")))?;
            file.runs.push(run);
        }
        if whole < text.len() {
            file.cut(whole as u64)?;
        }
        Ok(file)
    }

    /// Returns all runs.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Appends a run, and syncs it to disk.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if the chain ended with other keys than in earlier runs, and thus was
    /// another job.
    pub(crate) fn add(&mut self, run: Run) -> Result<()> {
        let other = self.runs.first().filter(|first| first.result_sha256 != run.result_sha256);
        if let Some(first) = other {
            let (cell, before) = (&run.cell, &first.cell);
            return Err(Error::Wrong(format!(
                "{cell}: the chain's last keys are others than those on {before}"
            )));
        }
        self.write(&run)?;
        self.runs.push(run);
        Ok(())
    }

    fn write<T: Serialize>(&self, line: &T) -> Result<()> {
        let mut text = serde_json::to_vec(line).expect("plain data");
        text.push(b'\n');
        let written = || {
            let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        written().map_err(process(format!("write {}", self.path.display())))
    }

    fn cut(&self, length: u64) -> Result<()> {
        let cut = || match OpenOptions::new().write(true).open(&self.path) {
            Ok(file) => file.set_len(length),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(cause),
        };
        cut().map_err(process(format!("mend {}", self.path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::{CacheAt, Cell, Phase, Reads};
    use super::*;

    fn common() -> Common {
        Common {
            documents: 1_000_000,
            keys: 20_000,
            length: 8,
            batch: 512,
            workers: 4,
            job: "hash".into(),
            cpu_percent: Some(15),
            cache_mb: Some(256),
            seed: 1,
        }
    }

    fn run(number: u32) -> Run {
        let cell = Cell {
            shares: vec![44, 56],
            members: 2,
            cache_bytes: 17_500_000,
            cache_at: CacheAt::Worker,
            reads: Reads::Primary,
        };
        let phase = Phase { seconds: 1.25, keys: 19_904, hits: 386 };
        Run {
            cell,
            run: number,
            phases: vec![phase; 8],
            cache_bytes: 4_212_000,
            members: Vec::new(),
            result_sha256: "443607cc".into(),
            unshared: None,
        }
    }

    #[test]
    fn a_file_goes_on_behind_what_a_death_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.jsonl");
        let mut file = File::open(&path, &common()).unwrap();
        file.add(run(0)).unwrap();
        file.add(run(1)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in (0..whole.len()).step_by(7) {
            std::fs::write(&path, &whole[..length]).unwrap();
            let mut file = File::open(&path, &common()).unwrap();
            let had = file.runs().len();
            assert!(had < 2, "{length}");
            file.add(run(2)).unwrap();
            let again = File::open(&path, &common()).unwrap();
            assert_eq!(again.runs().len(), had + 1, "{length}");
            assert_eq!(again.runs().last(), Some(&run(2)));
        }
    }

    #[test]
    fn runs_of_another_job_and_what_older_runs_left_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.jsonl");
        let mut file = File::open(&path, &common()).unwrap();
        file.add(run(0)).unwrap();
        let other = Run { result_sha256: "5f2a".into(), ..run(1) };
        assert!(file.add(other).unwrap_err().to_string().contains("others than those"));
        assert_eq!(file.runs().len(), 1);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(trace(&path), "of the runs before").unwrap();
        let refused = File::open(&path, &common()).unwrap_err().to_string();
        assert!(refused.contains("cells.imt is of other runs"), "{refused}");
        assert!(File::open(&folder.path().join("cells.imt"), &common()).is_err());
        let odd = folder.path().join("odd.txt");
        std::fs::write(&odd, "fourteen bytesé").unwrap();
        assert!(File::open(&odd, &common()).is_err());
    }

    #[test]
    fn other_settings_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.jsonl");
        File::open(&path, &common()).unwrap();
        let other = File::open(&path, &Common { batch: 64, ..common() }).unwrap_err();
        assert!(other.to_string().contains("other settings"), "{other}");
        for text in ["configuration,operations_s\nT4,577\n", "T4", "{\"imago_cells\":9}\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(File::open(&path, &common()).is_err(), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left alone");
        }
    }
}

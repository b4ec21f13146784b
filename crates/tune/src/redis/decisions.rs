//! The log of decisions for a Redis Cluster, in a folder next to its cluster file, like its jobs. The controller's
//! lease is in the cluster itself, so that a second controller is refused on any machine. A suspension of changes is
//! stored in both places, as a server may evict any key.
//!
//! A file has the entries of a day, one per line, and is synced to disk after each entry. A line that is incomplete
//! because its process died is skipped. Files that are too old to be read are removed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use imago_job::clock;
use serde_json::Value as Json;

use super::Uri;
use super::lock::{self, CONTROLLER};
use crate::cluster::{Error, Result};
use crate::decisions::{DAYS_MAX, DecisionLog, Entry, Kind, day};

/// Name of the file, in the folder of decisions, that exists while changes by controllers are suspended.
const HOLD: &str = "hold";
/// Extension of the files that contain the entries of a day.
const ENDS: &str = "jsonl";

/// The log of a controller's decisions for one cluster of Redis; see the module's documentation.
#[derive(Clone, Debug)]
pub struct RedisDecisions {
    folder: PathBuf,
    uri: Uri,
}

impl RedisDecisions {
    /// Opens the log of decisions for the cluster of this cluster file, in a folder next to the file; `uri` is the
    /// cluster's connection string.
    ///
    /// # Errors
    /// Fails if the folder cannot be created.
    pub fn open(cluster_file: &Path, uri: Uri) -> Result<Self> {
        let folder = cluster_file.with_extension("decisions");
        std::fs::create_dir_all(&folder).map_err(|cause| failed("make", &folder, &cause))?;
        Ok(Self { folder, uri })
    }

    /// Returns the path of the file with the entries of this day (a date in UTC).
    fn file(&self, day: &str) -> PathBuf {
        self.folder.join(day).with_extension(ENDS)
    }

    /// Removes the files of days more than [`DAYS_MAX`] days before `at_s` (in seconds since 1970).
    fn remove_old(&self, at_s: u64) -> std::io::Result<()> {
        let first = day(at_s.saturating_sub(u64::from(DAYS_MAX) * 86_400));
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_days = path.extension().is_some_and(|ends| ends == ENDS);
            // The names of the files sort by date.
            if is_days && path.file_stem().is_some_and(|stem| *stem < *first) {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Persists on this machine that `process` has suspended changes if `is_held`, and otherwise that changes are
    /// allowed.
    fn suspend_locally(&self, is_held: bool, process: &str) -> Result<()> {
        let path = self.folder.join(HOLD);
        let done = if is_held {
            let made = OpenOptions::new().write(true).create_new(true).open(&path);
            made.and_then(|mut file| {
                file.write_all(process.as_bytes())?;
                file.sync_all()
            })
        } else {
            std::fs::remove_file(&path)
        };
        match done {
            // The file is in the requested state already.
            Err(cause) if is_held && cause.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(cause) if !is_held && cause.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map_err(|cause| failed("change", &path, &cause)),
        }
    }

    /// Returns the process that suspended changes on this machine; None if they are not suspended here.
    fn locally_suspended_by(&self) -> Result<Option<String>> {
        let path = self.folder.join(HOLD);
        match std::fs::read_to_string(&path) {
            Ok(process) => Ok(Some(process)),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(failed("read", &path, &cause)),
        }
    }

    /// Appends a line to the file of the day of `at_s` (in seconds since 1970), and syncs the file to disk.
    fn add(&self, at_s: u64, line: &str) -> std::io::Result<()> {
        let path = self.file(&day(at_s));
        if !path.exists() {
            self.remove_old(at_s)?;
        }
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let is_cut_off = file.metadata()?.len() > 0 && {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            last != *b"\n"
        };
        let begin = if is_cut_off { "\n" } else { "" };
        file.write_all(format!("{begin}{line}\n").as_bytes())?;
        file.sync_all()?;
        File::open(&self.folder)?.sync_all()
    }
}

fn failed(doing: &str, path: &Path, cause: &std::io::Error) -> Error {
    Error::failed(
        format!("cannot {doing} {}: {cause}", path.display()),
        "decisions are kept beside the cluster file: may it be written there, and is there room?",
    )
}

impl DecisionLog for RedisDecisions {
    async fn append(&self, at_s: u64, kind: Kind, what: &str, detail: &Json) -> Result<()> {
        let at_ms = i64::try_from(clock::now_ms()).unwrap_or(i64::MAX);
        let entry = Entry { at_ms, kind, what: what.to_owned(), detail: detail.clone() };
        let line = serde_json::to_string(&entry).expect("texts and numbers");
        self.add(at_s, &line).map_err(|cause| failed("write into", &self.folder, &cause))
    }

    async fn decisions(&self, now_s: u64, days: u16) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        for back in (0..u64::from(days.min(DAYS_MAX))).rev() {
            let path = self.file(&day(now_s.saturating_sub(back * 86_400)));
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    let entry = |line: &str| serde_json::from_str::<Entry>(line).ok();
                    all.extend(text.lines().filter_map(entry));
                }
                Err(cause) if cause.kind() == ErrorKind::NotFound => {}
                Err(cause) => return Err(failed("read", &path, &cause)),
            }
        }
        Ok(all)
    }

    async fn acquire_lease(&self, process: &str) -> Result<Option<String>> {
        CONTROLLER.take(&self.uri, process).await
    }

    async fn release_lease(&self, process: &str) -> Result<()> {
        CONTROLLER.give_up(&self.uri, process).await
    }

    async fn set_suspended(&self, is_held: bool, process: &str) -> Result<()> {
        if is_held {
            self.suspend_locally(true, process)?;
            return lock::suspend(&self.uri, process).await;
        }
        lock::resume(&self.uri).await?;
        self.suspend_locally(false, process)
    }

    async fn suspended_by(&self) -> Result<Option<String>> {
        match self.locally_suspended_by()? {
            Some(process) => Ok(Some(process)),
            None => lock::suspended_by(&self.uri).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 27 November 2026, 23:59:58 UTC.
    const AT_S: u64 = 1_795_823_998;

    fn log(folder: &Path) -> RedisDecisions {
        let uri = "redis://10.20.0.11:6379,10.20.0.12:6379".parse().unwrap();
        RedisDecisions::open(&folder.join("reviews.toml"), uri).unwrap()
    }

    #[tokio::test]
    async fn entries_are_read_by_days_and_a_torn_line_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path());
        let detail = serde_json::json!({ "to": "compact", "gain": 0.12 });
        log.append(AT_S, Kind::Decided, "stay with quick", &detail).await.unwrap();
        let today = log.file("2026-11-27");
        let whole = std::fs::read_to_string(&today).unwrap();
        std::fs::write(&today, format!("{whole}{}", &whole[..whole.len() / 2])).unwrap();
        log.append(AT_S + 1, Kind::Changing, "changing to compact", &detail).await.unwrap();
        log.append(AT_S + 2, Kind::Changed, "all nodes have compact", &detail).await.unwrap();
        let told = async |now_s, days| -> Vec<(Kind, String)> {
            let all = log.decisions(now_s, days).await.unwrap();
            all.into_iter().map(|entry| (entry.kind, entry.what)).collect()
        };
        let decided = (Kind::Decided, "stay with quick".to_owned());
        let changing = (Kind::Changing, "changing to compact".to_owned());
        let changed = (Kind::Changed, "all nodes have compact".to_owned());
        assert_eq!(told(AT_S + 3, 2).await, [decided.clone(), changing.clone(), changed.clone()]);
        assert_eq!(told(AT_S + 3, 1).await, std::slice::from_ref(&changed));
        assert_eq!(log.decisions(AT_S, 1).await.unwrap()[0].detail, detail);

        // Three months later the first day is removed with the first entry, and the second one is still read.
        let later = AT_S + 2 + 90 * 86_400;
        log.append(later, Kind::Decided, "stay with compact", &detail).await.unwrap();
        assert!(!today.exists() && log.file("2026-11-28").exists());
        assert_eq!(told(later - 86_400, 90).await, [changed]);
    }

    #[test]
    fn what_is_held_back_names_the_first_that_did_so() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path());
        assert_eq!(log.locally_suspended_by().unwrap(), None);
        log.suspend_locally(true, "ops-1, process 4711").unwrap();
        log.suspend_locally(true, "ops-2, process 815").unwrap();
        assert_eq!(log.locally_suspended_by().unwrap().as_deref(), Some("ops-1, process 4711"));
        log.suspend_locally(false, "ops-2, process 815").unwrap();
        log.suspend_locally(false, "ops-2, process 815").unwrap();
        assert_eq!(log.locally_suspended_by().unwrap(), None);
    }
}

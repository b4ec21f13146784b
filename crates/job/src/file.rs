//! A journal in a local directory, with one JSON file per job.
//!
//! A record is replaced as a whole: the new record is written to another file, fsynced and renamed over the old one,
//! and the directory is fsynced. So at any time, also after a crash, there is either the old record or the new one,
//! and an acknowledged change is on disk. Changes exclude each other, also between processes, by a lock on a second
//! file; the system releases the lock when its holder dies.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::atomic_file;
use crate::clock::{self, Clock};
use crate::id::JobId;
use crate::journal::{Answer, Claimed, Journal, JournalError, OperatorRequests, Request, Update};
use crate::record::Record;

/// Longest wait for the lock on a job's record. A lock is held only for one write, so a process that waits longer
/// waits for a holder that is stuck.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(2);

/// A journal in a local directory, with one JSON file per job.
#[derive(Clone)]
pub struct FileJournal {
    files: Files,
}

#[derive(Clone)]
struct Files {
    directory: PathBuf,
    clock: Clock,
}

impl FileJournal {
    /// Opens the journal in `directory`, which is created if it does not exist. Timestamps are those of the wall
    /// clock.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, JournalError> {
        Self::open_with_clock(directory, clock::wall())
    }

    /// Opens the journal in `directory`, which is created if it does not exist. Its records get their timestamps from
    /// `clock`.
    pub fn open_with_clock(
        directory: impl Into<PathBuf>,
        clock: Clock,
    ) -> Result<Self, JournalError> {
        let files = Files { directory: directory.into(), clock };
        let made =
            fs::create_dir_all(&files.directory).and_then(|()| match files.directory.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
                _ => Ok(()),
            });
        made.map_err(|source| files.unavailable("make the directory", source))?;
        Ok(Self { files })
    }

    /// Runs `work` on a thread that may block on the disk without blocking other tasks, and returns the future of its
    /// result.
    fn answer<'a, T: Send + 'static>(
        &self,
        work: impl FnOnce(Files) -> Result<T, JournalError> + Send + 'static,
    ) -> Answer<'a, T> {
        let files = self.files.clone();
        let place = files.clone();
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || work(files)).await {
                Ok(answer) => answer,
                Err(cause) => Err(place.unavailable("finish the work", io::Error::other(cause))),
            }
        })
    }
}

impl Journal for FileJournal {
    fn create<'a>(&'a self, record: &'a Record) -> Answer<'a, ()> {
        let record = record.clone();
        self.answer(move |files| {
            let _lock = files.lock(&record.id)?;
            if files.path(&record.id, "json").exists() {
                return Err(JournalError::Exists { id: record.id, place: files.place() });
            }
            files.write(&record)
        })
    }

    fn load<'a>(&'a self, id: &'a JobId) -> Answer<'a, Record> {
        let id = id.clone();
        self.answer(move |files| files.read(&id))
    }

    fn list(&self) -> Answer<'_, Vec<Record>> {
        self.answer(|files| files.read_all())
    }

    fn claim<'a>(
        &'a self,
        id: &'a JobId,
        process: &'a str,
        stale_after_ms: u64,
    ) -> Answer<'a, Claimed> {
        let (id, process) = (id.clone(), process.to_owned());
        self.answer(move |files| {
            let mut after = None;
            let epoch = files.change(&id, |record, now_ms| {
                let epoch = record.claim(&process, stale_after_ms, now_ms)?;
                after = Some(record.clone());
                Ok(epoch)
            })?;
            let record = after.expect("a change that succeeded has run");
            Ok(Claimed { epoch, record })
        })
    }

    fn save<'a>(
        &'a self,
        id: &'a JobId,
        epoch: u64,
        update: &'a Update,
    ) -> Answer<'a, OperatorRequests> {
        let (id, update) = (id.clone(), update.clone());
        self.answer(move |files| files.change(&id, |record, now| record.save(epoch, &update, now)))
    }

    fn release<'a>(&'a self, id: &'a JobId, epoch: u64) -> Answer<'a, ()> {
        let id = id.clone();
        self.answer(move |files| files.change(&id, |record, now| record.release(epoch, now)))
    }

    fn request<'a>(&'a self, id: &'a JobId, request: &'a Request) -> Answer<'a, ()> {
        let (id, request) = (id.clone(), *request);
        self.answer(move |files| files.change(&id, |record, now| record.request(&request, now)))
    }

    fn remove<'a>(&'a self, id: &'a JobId) -> Answer<'a, ()> {
        let id = id.clone();
        self.answer(move |files| {
            files.read(&id)?;
            let lock = files.lock(&id)?;
            files.read(&id)?.check_final()?;
            let failed = |error| files.unavailable("remove a job's record", error);
            fs::remove_file(files.path(&id, "json")).map_err(failed)?;
            drop(lock);
            // A process that waited for the lock finds no record, whichever of the lock files it has locked.
            fs::remove_file(files.path(&id, "lock")).map_err(failed)?;
            sync_directory(&files.directory).map_err(failed)
        })
    }

    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()> {
        let (id, checkpoint) = (id.clone(), checkpoint.clone());
        self.answer(move |files| {
            files.change(&id, |record, now| {
                record.amend(&checkpoint, now);
                Ok(())
            })
        })
    }
}

impl Files {
    fn place(&self) -> String {
        self.directory.display().to_string()
    }

    fn path(&self, id: &JobId, ending: &str) -> PathBuf {
        self.directory.join(format!("{id}.{ending}"))
    }

    fn unavailable(&self, doing: &'static str, source: io::Error) -> JournalError {
        JournalError::Unavailable { doing, place: self.place(), source: Box::new(source) }
    }

    fn change<T>(
        &self,
        id: &JobId,
        change: impl FnOnce(&mut Record, u64) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        // Read before the lock is taken, so that a request for an unknown job leaves no lock file.
        self.read(id)?;
        let _lock = self.lock(id)?;
        let mut record = self.read(id)?;
        let done = change(&mut record, (self.clock)())?;
        self.write(&record)?;
        Ok(done)
    }

    fn read(&self, id: &JobId) -> Result<Record, JournalError> {
        match fs::read(self.path(id, "json")) {
            Ok(text) => self.parse(id.as_str(), &text),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(JournalError::Unknown {
                id: id.clone(),
                place: self.place(),
                list: "imago tune jobs",
            }),
            Err(error) => Err(self.unavailable("read a job's record", error)),
        }
    }

    fn read_all(&self) -> Result<Vec<Record>, JournalError> {
        let failed = |error| self.unavailable("list the jobs", error);
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).map(str::parse::<JobId>);
            // Lock files, incomplete files and foreign files are not records.
            if let Some(Ok(id)) = id
                && path.extension().is_some_and(|ending| ending == "json")
            {
                records.push(self.read(&id)?);
            }
        }
        records.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(records)
    }

    fn parse(&self, id: &str, text: &[u8]) -> Result<Record, JournalError> {
        serde_json::from_slice(text).map_err(|error| JournalError::Damaged {
            id: id.to_owned(),
            place: self.place(),
            reason: error.to_string(),
        })
    }

    /// Replaces the stored record of a job, which need not exist. The caller holds the lock on the record.
    fn write(&self, record: &Record) -> Result<(), JournalError> {
        let text = serde_json::to_vec_pretty(record).map_err(|error| JournalError::Damaged {
            id: record.id.to_string(),
            place: self.place(),
            reason: error.to_string(),
        })?;
        let written = atomic_file::replace(&self.path(&record.id, "json"), &text);
        written.map_err(|error| self.unavailable("write a job's record", error))
    }

    fn lock(&self, id: &JobId) -> Result<File, JournalError> {
        let failed = |error| self.unavailable("lock a job's record", error);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path(id, "lock"))
            .map_err(failed)?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR)
                    if began.elapsed() < LOCK_WAIT_MAX =>
                {
                    std::thread::sleep(LOCK_POLL);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let waited = format!("another process held the lock for {LOCK_WAIT_MAX:?}");
                    return Err(failed(io::Error::new(ErrorKind::TimedOut, waited)));
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::contract;

    #[tokio::test]
    async fn keeps_the_contract_of_a_journal() {
        let directory = tempfile::tempdir().unwrap();
        contract::check(&FileJournal::open(directory.path().join("jobs")).unwrap()).await;
    }

    #[tokio::test]
    async fn a_damaged_record_is_named_and_not_taken_for_none() {
        let directory = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(directory.path()).unwrap();
        let record = Record::new("copy", serde_json::Value::Null, 1);
        journal.create(&record).await.unwrap();
        let path = directory.path().join(format!("{}.json", record.id));
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let loaded = journal.load(&record.id).await;
        assert!(
            matches!(&loaded, Err(JournalError::Damaged { id, .. }) if *id == record.id.as_str())
        );
        assert!(matches!(journal.list().await, Err(JournalError::Damaged { .. })));
    }

    #[tokio::test]
    async fn a_half_written_new_record_is_no_job() {
        let directory = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(directory.path()).unwrap();
        fs::write(directory.path().join(format!("{}.new", JobId::generate())), "{").unwrap();
        assert_eq!(journal.list().await.unwrap(), []);
    }

    #[tokio::test]
    async fn an_owner_is_stale_only_after_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let now = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(1_000));
        let read = std::sync::Arc::clone(&now);
        let clock: Clock =
            std::sync::Arc::new(move || read.load(std::sync::atomic::Ordering::SeqCst));
        let journal = FileJournal::open_with_clock(directory.path(), clock).unwrap();
        let record = Record::new("copy", serde_json::Value::Null, 1);
        journal.create(&record).await.unwrap();
        journal.claim(&record.id, "a", 0).await.unwrap();
        now.store(10_999, std::sync::atomic::Ordering::SeqCst);
        let early = journal.claim(&record.id, "b", 10_000).await;
        assert!(matches!(early, Err(JournalError::Owned { age_ms: 9_999, .. })));
        now.store(11_000, std::sync::atomic::Ordering::SeqCst);
        journal.claim(&record.id, "b", 10_000).await.unwrap();
    }
}

//! The recorder of a history: accepts operations from many tasks, and stores them in memory or in a file.
//!
//! A separate thread writes the file, from a bounded queue. So a slow disk delays the load (visibly, through
//! the limit of operations in flight) instead of inflating the measured latencies or the memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{CLOSING, Header, History, Op, entry};

/// Limit of the number of entries that wait to be written to the file.
const QUEUE_MAX: usize = 65_536;
/// Time without a new entry after which the writer flushes its buffer to the file. While entries arrive at shorter
/// intervals, they are written when the buffer of 256 KiB is full.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Limit of the attempts to add an entry to a full queue; with [`FULL_PAUSE`] between two of them, a minute in total.
const FULL_RETRIES: u32 = 6000;
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// The reason why an operation could not be recorded. The load is stopped then, since its history would be
/// incomplete.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// The history's file could not be created or written.
    #[error("cannot write the history {path}")]
    Write {
        /// Path of the history's file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The queue of entries to be written stayed full for a minute, because the disk is too slow.
    #[error("the history's disk did not take an entry for 60 s ({QUEUE_MAX} entries wait)")]
    Stuck,
    /// The writing thread ended before the recording did; closing the recorder returns its error.
    #[error("the history's writer ended early; see the error of closing the history")]
    WriterGone,
    /// The history in memory has reached its limit, this number of entries.
    #[error("the history in memory holds its maximum of {0} entries; record to a file instead")]
    MemoryFull(usize),
}

/// Records the operations of a run. It must be closed, otherwise the recording counts as incomplete.
#[derive(Debug)]
pub struct Recorder {
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Nothing,
    Memory { history: Mutex<History>, entries_max: usize },
    File { path: PathBuf, queue: SyncSender<Op>, writer: JoinHandle<std::io::Result<()>> },
}

impl Recorder {
    /// Returns a recorder that discards operations, for runs that only measure.
    #[must_use]
    pub fn nothing() -> Self {
        Self { sink: Sink::Nothing }
    }

    /// Returns a recorder that stores in memory the operations that a check needs, at most `entries_max` of them (48
    /// bytes each).
    #[must_use]
    pub fn memory(header: Header, entries_max: usize) -> Self {
        let history = Mutex::new(History { header, ops: Vec::new(), recorded: 0 });
        Self { sink: Sink::Memory { history, entries_max } }
    }

    /// Returns a recorder that writes all operations to the file `path`, which is replaced if it exists.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn file(path: &Path, header: &Header) -> Result<Self, RecorderError> {
        let write = |source| RecorderError::Write { path: path.to_owned(), source };
        let mut first = serde_json::to_vec(header).map_err(|error| write(error.into()))?;
        first.push(b'\n');
        let mut output = BufWriter::with_capacity(1 << 18, File::create(path).map_err(write)?);
        output.write_all(&first).and_then(|()| output.flush()).map_err(write)?;
        let (queue, entries) = sync_channel(QUEUE_MAX);
        let writer = std::thread::Builder::new()
            .name("history".into())
            .spawn(move || write_entries(output, &entries))
            .map_err(write)?;
        Ok(Self { sink: Sink::File { path: path.to_owned(), queue, writer } })
    }

    /// Records one operation. If the file's queue is full, this waits, at most a minute.
    ///
    /// # Errors
    /// Returns an error if the memory limit is reached, or if the file does not accept the entry.
    pub async fn record(&self, op: Op) -> Result<(), RecorderError> {
        match &self.sink {
            Sink::Nothing => Ok(()),
            Sink::Memory { history, entries_max } => remember(history, *entries_max, op),
            Sink::File { queue, .. } => {
                for _ in 0..FULL_RETRIES {
                    match queue.try_send(op) {
                        Ok(()) => return Ok(()),
                        Err(TrySendError::Disconnected(_)) => {
                            return Err(RecorderError::WriterGone);
                        }
                        Err(TrySendError::Full(_)) => tokio::time::sleep(FULL_PAUSE).await,
                    }
                }
                Err(RecorderError::Stuck)
            }
        }
    }

    /// Ends the recording, and returns the history if it was stored in memory, else `None`. A file is on disk (fsync)
    /// when this returns.
    ///
    /// # Errors
    /// Returns an error if the file could not be written completely.
    pub async fn close(self) -> Result<Option<History>, RecorderError> {
        match self.sink {
            Sink::Nothing => Ok(None),
            Sink::Memory { history, .. } => {
                Ok(Some(history.into_inner().unwrap_or_else(PoisonError::into_inner)))
            }
            Sink::File { path, queue, writer } => {
                drop(queue);
                let ended = tokio::task::spawn_blocking(|| writer.join()).await;
                let source = match ended {
                    Ok(Ok(Ok(()))) => return Ok(None),
                    Ok(Ok(Err(source))) => source,
                    Ok(Err(_)) | Err(_) => std::io::Error::other("the writer panicked"),
                };
                Err(RecorderError::Write { path, source })
            }
        }
    }
}

fn remember(history: &Mutex<History>, entries_max: usize, op: Op) -> Result<(), RecorderError> {
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    history.recorded += 1;
    if !op.matters(history.header.model) {
        return Ok(());
    }
    if history.ops.len() >= entries_max {
        return Err(RecorderError::MemoryFull(entries_max));
    }
    history.ops.push(op);
    Ok(())
}

fn write_entries(mut output: BufWriter<File>, entries: &Receiver<Op>) -> std::io::Result<()> {
    let mut written = 0u64;
    loop {
        match entries.recv_timeout(FLUSH_EVERY) {
            Ok(op) => {
                output.write_all(&op.encode())?;
                written += 1;
            }
            Err(RecvTimeoutError::Timeout) => output.flush()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    output.write_all(&entry([CLOSING, 0], 0, [written, 0, 0, 0, 0]))?;
    output.flush()?;
    output.get_ref().sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Fate, IdForm, Model};
    use crate::mix::Kind;
    use crate::review::Reviews;

    fn header() -> Header {
        Header {
            imago_history: Header::VERSION,
            preloaded: 0,
            reviews: Reviews::default(),
            id_form: IdForm::Integer,
            model: Model::Documents,
            reads_are_current: false,
            namespace: String::new(),
            started_unix_ms: 0,
        }
    }

    fn op(kind: Kind, fate: Fate) -> Op {
        Op { kind, fate, target: 0, key: 1, seq: 1, intended_ns: 0, start_ns: 0, end_ns: 0 }
    }

    #[tokio::test]
    async fn memory_keeps_what_a_check_needs_and_counts_the_rest() {
        let recorder = Recorder::memory(header(), 10);
        let ops = [
            op(Kind::Read, Fate::Acked),
            op(Kind::Read, Fate::NotFound),
            op(Kind::Update, Fate::Unknown),
        ];
        for op in ops {
            recorder.record(op).await.unwrap();
        }
        let history = recorder.close().await.unwrap().unwrap();
        assert_eq!(history.recorded, 3);
        assert_eq!(history.ops, ops[1..]);
    }

    #[tokio::test]
    async fn memory_has_an_end() {
        let recorder = Recorder::memory(header(), 1);
        recorder.record(op(Kind::Update, Fate::Acked)).await.unwrap();
        let refused = recorder.record(op(Kind::Update, Fate::Acked)).await;
        assert!(matches!(refused, Err(RecorderError::MemoryFull(1))));
    }

    #[tokio::test]
    async fn a_folder_that_does_not_exist_is_named() {
        let refused = Recorder::file(Path::new("/nonexistent/history"), &header());
        assert!(matches!(refused, Err(RecorderError::Write { path, .. })
            if path == Path::new("/nonexistent/history")));
    }
}

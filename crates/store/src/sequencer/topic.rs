//! The sequencer of a log in Kafka, which other processes may write too. Reading establishes positions: one thread
//! appends, another reads, and followers receive only entries that were read.
//!
//! A group is appended again until it is known to be in the topic, before the next group is appended: log entries
//! after a gap in their author's numbers are void, and entries that are in the topic twice count once. So a lost
//! reply costs time, and has no other effect.
//!
//! While the brokers do not answer, no entry is acknowledged, and the number of waiting entries is bounded by how far
//! a site may be ahead. The log ends after the time for which its configuration waits for brokers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::group::{ENTRIES_MAX, groups};
use super::{Destination, Followers, Sequencer, WriterMessage, lock, with_causes};
use crate::kafka::{KafkaLog, Landmark, Watch};
use crate::log::{LogError, RedoLog as _};
use crate::record::{LogEntry, Position};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use crate::sync::{Mutex, thread};

/// Maximum duration of one wait for entries of the topic; the reading thread notices the end of the log within it.
const READ_WAIT: Duration = Duration::from_millis(500);
/// Interval at which the appending thread checks whether the reading thread has ended.
const LOOK_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of positions, at which a checkpoint was due, whose locations in the topic are retained; a
/// checkpoint is made at one of them.
const LANDMARKS_MAX: usize = 8;

/// The state of a log in Kafka that other threads may read while the log's own threads are busy.
#[derive(Clone)]
pub(super) struct Topic {
    /// State of the log through which the appending thread writes the topic.
    appending: Arc<Watch>,
    /// State of the log through which the reading thread reads the topic.
    reading: Arc<Watch>,
    /// The last positions at which a checkpoint was due, and their locations in the topic.
    landmarks: Arc<Mutex<VecDeque<(Position, Landmark)>>>,
}

impl Topic {
    /// Returns why the topic cannot be written or read now, or `None` if it can be.
    pub(super) fn trouble(&self) -> Option<String> {
        self.appending.trouble().or_else(|| self.reading.trouble())
    }

    /// Stops further attempts after failures: each submitted group is written if the first attempt succeeds.
    pub(super) fn end(&self) {
        self.appending.end();
    }

    /// Returns the location in the topic at which a checkpoint as of position `known` was due, if it is retained.
    pub(super) fn landmark(&self, known: Position) -> Option<Landmark> {
        let landmarks = lock(&self.landmarks);
        landmarks.iter().find(|(at, _)| *at == known).map(|(_, landmark)| landmark.clone())
    }
}

impl Sequencer {
    /// Returns the sequencer of a topic that was read up to position `known`, and its thread. Followers receive no
    /// entries before the first submission: by then all of them have joined. The thread ends as that of
    /// [`Sequencer::of`] does. Followers are told likewise that a checkpoint is due after every `mark_every` bytes of
    /// records; bytes that were read during recovery count towards the first.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn of_topic(
        read: KafkaLog,
        known: Position,
        mark_every: Arc<AtomicU64>,
    ) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let appends = read.another();
        let topic =
            Topic { appending: appends.watch(), reading: read.watch(), landmarks: Arc::default() };
        let (writer, entries) = channel();
        let followers = Arc::new(Mutex::new(Followers::after(known)));
        let reader = Reader {
            log: read,
            next: known + 1,
            mark_every,
            marked: 0,
            landmarks: Arc::clone(&topic.landmarks),
            followers: Arc::clone(&followers),
        };
        let told = Arc::clone(&followers);
        let run = move || Appender { log: appends, entries, has_ended: false }.run(reader, &told);
        let thread = thread::Builder::new().name("log".into()).spawn(run)?;
        Ok((Self { followers, destination: Destination::Log(writer), topic: Some(topic) }, thread))
    }
}

/// The state of the thread that appends to the topic.
struct Appender {
    /// The log in Kafka, through which this thread appends.
    log: KafkaLog,
    /// Receives the messages to this thread.
    entries: Receiver<WriterMessage>,
    /// True if no more entries are accepted.
    has_ended: bool,
}

impl Appender {
    /// Appends entries, with a second thread that reads the topic, until either ends; then reports the end to the
    /// followers.
    fn run(mut self, reader: Reader, followers: &Mutex<Followers>) {
        let reading = reader.log.watch();
        let (begin, may_begin) = channel();
        let read = move || if may_begin.recv().is_ok() { reader.run() } else { Ok(()) };
        let ended = match std::thread::Builder::new().name("log's reader".into()).spawn(read) {
            Ok(reader) => {
                let appended = self.append_all(begin, &reader);
                reading.end();
                // If the reader failed, its error was the first.
                let read = reader.join().unwrap_or(Ok(()));
                appended.and(read).map_err(|error| with_causes(&error))
            }
            Err(error) => Err(format!("cannot start the log's reader: {error}")),
        };
        let why = ended.err().unwrap_or_else(|| "the store was stopped".to_owned());
        lock(followers).end(why);
    }

    /// Appends entries until no more follow, an error occurs, or the reading thread has ended. Sends on `begin`
    /// before the first entries are appended.
    fn append_all<T>(
        &mut self,
        begin: Sender<()>,
        reader: &std::thread::JoinHandle<T>,
    ) -> Result<(), LogError> {
        let mut begin = Some(begin);
        while !self.has_ended && !reader.is_finished() {
            let (mut group, mut syncs) = (Vec::new(), Vec::new());
            match self.entries.recv_timeout(LOOK_WAIT) {
                Ok(message) => self.take(message, &mut group, &mut syncs),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.has_ended = true,
            }
            while group.len() < ENTRIES_MAX
                && let Ok(message) = self.entries.try_recv()
            {
                self.take(message, &mut group, &mut syncs);
            }
            if !group.is_empty() {
                _ = begin.take().map(|begin| begin.send(()));
            }
            for group in groups(group) {
                self.log.append(&group)?;
            }
            // The sender may not wait any more.
            syncs.into_iter().for_each(|done: Sender<()>| _ = done.send(()));
        }
        Ok(())
    }

    /// Adds the entries of a message to `group`; records the request of a sync in `syncs`, or the end.
    fn take(
        &mut self,
        message: WriterMessage,
        group: &mut Vec<LogEntry>,
        syncs: &mut Vec<Sender<()>>,
    ) {
        match message {
            WriterMessage::Entries(_) if self.has_ended => {}
            WriterMessage::Entries(entries) => group.extend(entries),
            WriterMessage::Sync(done) => syncs.push(done),
            WriterMessage::End => self.has_ended = true,
        }
    }
}

/// The state of the thread that reads the topic.
struct Reader {
    /// The log in Kafka, through which this thread reads.
    log: KafkaLog,
    /// The position of the next entry that this thread reads.
    next: Position,
    /// Size of the topic's records between two checkpoints, in bytes.
    mark_every: Arc<AtomicU64>,
    /// Bytes of the topic read when a checkpoint was last reported as due.
    marked: u64,
    /// The last positions at which a checkpoint was due, and their locations in the topic.
    landmarks: Arc<Mutex<VecDeque<(Position, Landmark)>>>,
    /// The recipients of the log, which this thread delivers entries to.
    followers: Arc<Mutex<Followers>>,
}

impl Reader {
    /// Reads the topic, and delivers its entries to the followers, until the log ends or an error occurs.
    fn run(mut self) -> Result<(), LogError> {
        let watch = self.log.watch();
        while !watch.is_ending() {
            let mut entries = Vec::new();
            let mut see = |_, entry| entries.push(entry);
            let read = self.log.deliver(self.next, READ_WAIT, &mut see);
            if !entries.is_empty() {
                self.publish(entries);
            }
            read?;
        }
        Ok(())
    }

    /// Delivers entries that were read to the followers, and reports that a checkpoint is due if the topic has grown
    /// enough.
    fn publish(&mut self, entries: Vec<LogEntry>) {
        self.next += entries.len() as u64;
        let mut followers = lock(&self.followers);
        followers.publish(entries.into());
        let read = self.log.read_bytes();
        if read - self.marked < self.mark_every.load(Ordering::Relaxed) {
            return;
        }
        self.marked = read;
        if let Some(landmark) = self.log.landmark() {
            let mut landmarks = lock(&self.landmarks);
            landmarks.push_back((self.next - 1, landmark.clone()));
            while landmarks.len() > LANDMARKS_MAX {
                landmarks.pop_front();
            }
        }
        followers.mark();
    }
}

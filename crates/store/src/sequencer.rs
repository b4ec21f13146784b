//! The sequencer: it orders the log entries of all sites in one log, and delivers the log to all followers.
//!
//! A site submits its log entries in order and continues. Each follower receives every log entry from the
//! position where it joined on, once, in one order for all; with a durable log only after the log has written the
//! entry.
//!
//! Log entries are written in batches: entries that arrive while the log writes and syncs form its next group,
//! so under load many commits share one wait for the disk.

use std::sync::{Arc, PoisonError};
use std::time::Duration;
use std::{io, mem};

use crate::kafka::Landmark;
use crate::log::{Log, LogError};
use crate::record::{LogEntry, Position};
use crate::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "shuttle")]
use crate::sync::fault::{self, Fault};
use crate::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Mutex, MutexGuard};

mod group;
mod topic;

use group::{ENTRIES_MAX, groups};
use topic::Topic;

/// Maximum delay before a group of entries that did not fit on a full disk is written again.
const FULL_DISK_WAIT: Duration = Duration::from_millis(100);
/// Number of failed attempts after which followers are told that the log's disk is full. They are not told earlier,
/// because a checkpoint that fails frees its space at once.
const STALLED_TRIES: u32 = 5;

/// A recipient of the log as it grows; the sequencer calls it for each event.
pub trait Follower: Send {
    /// Receives the next log entries, and the position of the first. Returns false if the recipient is gone.
    fn follow(&mut self, first: Position, entries: &Arc<[LogEntry]>) -> bool;
    /// Reports that the log accepts no entries for now, because its disk is full; or that it accepts entries again.
    fn stall(&mut self, is_stalled: bool);
    /// Reports that a checkpoint as of the last delivered entry is due (a *mark*).
    fn mark(&mut self);
    /// Reports that the log accepts no more entries; `why` is the reason.
    fn end(&mut self, why: &str);
}

/// The entrance to the log for all sites: it accepts their entries, and orders them. Cheap to clone.
#[derive(Clone)]
pub struct Sequencer {
    /// The recipients of the log in this process.
    followers: Arc<Mutex<Followers>>,
    /// The place to which submitted entries go.
    destination: Destination,
    /// The state of the topic; `None` if the log is not in Kafka.
    topic: Option<Topic>,
}

/// The place to which a sequencer passes submitted log entries.
#[derive(Clone)]
enum Destination {
    /// The followers in this process only; no log is written.
    Memory,
    /// The thread that writes the log.
    Log(Sender<WriterMessage>),
    /// The process that has the log, reached by this function; that process delivers the log to this one.
    Elsewhere(Arc<dyn Fn(Vec<LogEntry>) + Send + Sync>),
}

/// A message to the thread that writes the log.
enum WriterMessage {
    /// Write these entries after those of earlier messages.
    Entries(Vec<LogEntry>),
    /// Make all entries of earlier messages durable, then notify this sender.
    Sync(Sender<()>),
    /// End after the entries of earlier messages are written; no more follow.
    End,
}

/// The recipients of the log, and the state of the log as known to them.
struct Followers {
    /// The position that the next log entry gets.
    next: Position,
    /// The recipients of the log.
    all: Vec<Box<dyn Follower>>,
    /// Why the log accepts no more entries; `None` while it accepts them.
    end: Option<String>,
    /// True while the log's disk is full.
    is_full: bool,
    /// True if the followers were told that the log's disk is full, and not yet that it accepts entries again.
    is_stalled: bool,
}

impl Sequencer {
    /// Returns the sequencer of a store without a log: entries are lost when the process ends.
    #[must_use]
    pub fn in_memory() -> Self {
        let followers = Arc::new(Mutex::new(Followers::after(Position::START)));
        Self { followers, destination: Destination::Memory, topic: None }
    }

    /// Returns the sequencer of a remote site: it passes entries to `send` for the process with the log, which has
    /// the followers.
    #[must_use]
    pub fn elsewhere(send: impl Fn(Vec<LogEntry>) + Send + Sync + 'static) -> Self {
        Self { destination: Destination::Elsewhere(Arc::new(send)), ..Self::in_memory() }
    }

    /// Returns the sequencer of a log in files, and the thread that writes the log. The thread ends with
    /// [`Sequencer::end`], or when the last clone of the sequencer is dropped; all entries submitted before are
    /// written then. Followers are told that a checkpoint is due after every `mark_every` bytes of log.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn of(log: Log, mark_every: Arc<AtomicU64>) -> io::Result<(Self, JoinHandle<()>)> {
        let (writer, entries) = channel();
        let followers = Arc::new(Mutex::new(Followers::after(log.next() - 1)));
        let told = Arc::clone(&followers);
        let write = move || {
            let (later, syncs) = (Vec::new(), Vec::new());
            let (unmarked, has_ended) = (0, false);
            Writer { log, entries, later, syncs, mark_every, unmarked, has_ended, followers: told }
                .run()
        };
        let thread = thread::Builder::new().name("log".into()).spawn(write)?;
        Ok((Self { followers, destination: Destination::Log(writer), topic: None }, thread))
    }

    /// Submits the next log entries of one site, in order; does not wait until they are written.
    pub fn submit(&self, entries: Vec<LogEntry>) {
        if entries.is_empty() {
            return;
        }
        match &self.destination {
            // If the thread has ended, all followers were told why.
            Destination::Log(writer) => _ = writer.send(WriterMessage::Entries(entries)),
            #[cfg(feature = "shuttle")]
            Destination::Memory if fault::is(Fault::ToldBehindPlace) => {
                let first = lock(&self.followers).place(&entries);
                lock(&self.followers).deliver(first, &entries.into());
            }
            Destination::Memory => lock(&self.followers).publish(entries.into()),
            Destination::Elsewhere(send) => send(entries),
        }
    }

    /// Makes all entries durable that were submitted before; returns false if that is not possible: the log has
    /// ended, or is in memory or in another process.
    #[must_use]
    pub fn sync(&self) -> bool {
        let Destination::Log(writer) = &self.destination else { return false };
        let (done, is_done) = channel();
        writer.send(WriterMessage::Sync(done)).is_ok() && is_done.recv().is_ok()
    }

    /// Returns the location in the Kafka topic at which a checkpoint as of position `known` was due; `None` if it is
    /// forgotten, or the log is not in Kafka.
    #[must_use]
    pub fn landmark(&self, known: Position) -> Option<Landmark> {
        self.topic.as_ref()?.landmark(known)
    }

    /// Ends the log: entries that are submitted later are not written.
    pub fn end(&self) {
        if let Some(topic) = &self.topic {
            topic.end();
        }
        if let Destination::Log(writer) = &self.destination {
            _ = writer.send(WriterMessage::End);
        }
    }

    /// Adds a follower, which receives all further entries; returns the position of the first of these entries.
    #[must_use]
    pub fn join(&self, mut follower: Box<dyn Follower>) -> Position {
        let mut followers = lock(&self.followers);
        if let Some(why) = &followers.end {
            follower.end(why);
        }
        followers.all.push(follower);
        followers.next
    }

    /// Returns why the log accepts no more entries, or `None` if it accepts them.
    #[must_use]
    pub fn has_ended(&self) -> Option<String> {
        lock(&self.followers).end.clone()
    }

    /// Returns why submitted entries are not written now, or `None` if they are.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let followers = lock(&self.followers);
        let full = || followers.is_full.then(|| "the log's disk is full".to_owned());
        let away = || self.topic.as_ref().and_then(Topic::trouble);
        followers.end.clone().or_else(full).or_else(away)
    }
}

/// Locks a mutex, whether or not a thread panicked while it held the lock.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Followers {
    /// Returns the state of a log that has the entries up to position `known`, without recipients.
    fn after(known: Position) -> Self {
        Self { next: known + 1, all: Vec::new(), end: None, is_full: false, is_stalled: false }
    }

    /// Assigns positions to log entries and delivers them to all followers.
    fn publish(&mut self, entries: Arc<[LogEntry]>) {
        let first = self.place(&entries);
        self.deliver(first, &entries);
    }

    /// Assigns positions to log entries, and returns the position of the first.
    fn place(&mut self, entries: &[LogEntry]) -> Position {
        let first = self.next;
        self.next += entries.len() as u64;
        first
    }

    /// Delivers log entries, of which the first is at position `first`, to all followers, and removes followers that
    /// are gone.
    fn deliver(&mut self, first: Position, entries: &Arc<[LogEntry]>) {
        self.all.retain_mut(|follower| follower.follow(first, entries));
    }

    /// Reports to all followers whether the log accepts no entries for now, if that has changed.
    fn stall(&mut self, is_stalled: bool) {
        if self.is_stalled != is_stalled {
            self.is_stalled = is_stalled;
            self.all.iter_mut().for_each(|follower| follower.stall(is_stalled));
        }
    }

    /// Reports to all followers that a checkpoint as of the last delivered entry is due.
    fn mark(&mut self) {
        self.all.iter_mut().for_each(|follower| follower.mark());
    }

    /// Reports the end of the log to all followers, and retains `why`, the reason.
    fn end(&mut self, why: String) {
        self.all.iter_mut().for_each(|follower| follower.end(&why));
        self.end = Some(why);
    }
}

/// The state of the thread that writes a log in files.
struct Writer {
    /// The log in files.
    log: Log,
    /// Receives the messages to this thread.
    entries: Receiver<WriterMessage>,
    /// Log entries to write next, which arrived during a wait.
    later: Vec<LogEntry>,
    /// Senders to notify after the next sync, each of which asked to make earlier entries durable.
    syncs: Vec<Sender<()>>,
    /// Size of the log between two checkpoints, in bytes.
    mark_every: Arc<AtomicU64>,
    /// Bytes of log written since a checkpoint was last reported as due.
    unmarked: u64,
    /// True if no more entries are accepted.
    has_ended: bool,
    /// The recipients of the log, which this thread delivers written entries to.
    followers: Arc<Mutex<Followers>>,
}

impl Writer {
    /// Writes the log and delivers it until no more entries follow or an error occurs; then reports the end to the
    /// followers.
    fn run(mut self) {
        let ended = loop {
            let mut group = match self.await_entries() {
                Ok(Some(group)) => group,
                Ok(None) => break self.log.sync(),
                Err(error) => break Err(error),
            };
            while group.len() < ENTRIES_MAX
                && let Ok(message) = self.entries.try_recv()
            {
                group.extend(self.accept(message));
            }
            let written =
                groups(group).into_iter().try_for_each(|group| self.write_and_publish(group));
            if let Err(error) = written {
                break Err(error);
            }
        };
        let why = match ended {
            Ok(()) => "the store was stopped".to_owned(),
            Err(error) => with_causes(&error),
        };
        lock(&self.followers).end(why);
    }

    /// Writes a group of entries and delivers it; reports that a checkpoint is due if the log has grown enough.
    fn write_and_publish(&mut self, group: Vec<LogEntry>) -> Result<(), LogError> {
        self.write(&group)?;
        let mut followers = lock(&self.followers);
        followers.publish(group.into());
        self.unmarked += self.log.group_bytes();
        if self.unmarked >= self.mark_every.load(Ordering::Relaxed) {
            self.unmarked = 0;
            followers.mark();
        }
        Ok(())
    }

    /// Returns the entries of a message; records the request of a sync, or the end.
    fn accept(&mut self, message: WriterMessage) -> Vec<LogEntry> {
        match message {
            WriterMessage::Entries(entries) if !self.has_ended => entries,
            WriterMessage::Entries(_) => Vec::new(),
            WriterMessage::Sync(done) => {
                self.syncs.push(done);
                Vec::new()
            }
            WriterMessage::End => {
                self.has_ended = true;
                Vec::new()
            }
        }
    }

    /// Waits for entries, and returns them, or `None` if no more follow. Makes written entries durable meanwhile, on
    /// request and as often as the log requires.
    fn await_entries(&mut self) -> Result<Option<Vec<LogEntry>>, LogError> {
        loop {
            let is_asked = !self.syncs.is_empty();
            #[cfg(feature = "shuttle")]
            let is_asked = is_asked && !fault::is(Fault::WaitBeforeSync);
            if is_asked {
                self.log.sync()?;
                // The sender may not wait any more.
                self.syncs.drain(..).for_each(|done| _ = done.send(()));
            }
            if !self.later.is_empty() {
                return Ok(Some(mem::take(&mut self.later)));
            }
            if self.has_ended {
                return Ok(None);
            }
            let wait = self.log.due_in().unwrap_or(Duration::MAX);
            match self.entries.recv_timeout(wait) {
                Ok(message) => self.later = self.accept(message),
                Err(RecvTimeoutError::Timeout) => self.log.sync()?,
                Err(RecvTimeoutError::Disconnected) => self.has_ended = true,
            }
        }
    }

    /// Writes a group of entries, and repeats that on a full disk until the group fits or no more entries follow.
    /// Followers learn that nothing is logged meanwhile, so that no client waits for it.
    fn write(&mut self, group: &[LogEntry]) -> Result<(), LogError> {
        for tries in 0.. {
            let full = match self.log.append(group) {
                Ok(_) => {
                    let mut followers = lock(&self.followers);
                    followers.is_full = false;
                    followers.stall(false);
                    return Ok(());
                }
                Err(error) if error.is_full_disk() && !self.log.is_unsure() => error,
                Err(error) => return Err(error),
            };
            let mut followers = lock(&self.followers);
            followers.is_full = true;
            if tries >= STALLED_TRIES {
                followers.stall(true);
            }
            drop(followers);
            match self.entries.recv_timeout(FULL_DISK_WAIT) {
                Ok(message) => {
                    let entries = self.accept(message);
                    self.later.extend(entries);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.has_ended = true,
            }
            if self.has_ended {
                return Err(full);
            }
        }
        unreachable!("it is tried until it is written or the store ends")
    }
}

/// Returns the texts of an error and of all its causes, separated by colons.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

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

/// Maximum delay before entries that did not fit on a full disk are written again.
const FULL_DISK_WAIT: Duration = Duration::from_millis(100);
/// Number of failed attempts after which followers are told that the disk is full. They are not told earlier, because
/// a checkpoint that fails frees its space at once.
const STALLED_TRIES: u32 = 5;

/// A recipient of the log as it grows.
pub trait Follower: Send {
    /// Receives the next log entries, and the position of the first. Returns false if the recipient is gone.
    fn follow(&mut self, first: Position, entries: &Arc<[LogEntry]>) -> bool;
    /// Reports that the log accepts no entries for now, because its disk is full; or that it accepts entries again.
    fn stall(&mut self, is_stalled: bool);
    /// Reports that a checkpoint as of the last delivered entry is due.
    fn mark(&mut self);
    /// Reports that the log accepts no more entries, and why.
    fn end(&mut self, why: &str);
}

/// The entrance to the log for all sites: it accepts their entries, and orders them. Cheap to clone.
#[derive(Clone)]
pub struct Sequencer {
    /// The recipients of the log.
    followers: Arc<Mutex<Followers>>,
    /// The destination of submitted entries.
    destination: Destination,
    /// The state of the topic, if the log is in Kafka.
    topic: Option<Topic>,
}

/// The destination of submitted log entries.
#[derive(Clone)]
enum Destination {
    /// The memory of this process only.
    Memory,
    /// The thread that writes the log.
    Log(Sender<WriterMessage>),
    /// The process with the log, which delivers the log to this process.
    Elsewhere(Arc<dyn Fn(Vec<LogEntry>) + Send + Sync>),
}

/// A message to the thread that writes the log.
enum WriterMessage {
    /// Write these entries.
    Entries(Vec<LogEntry>),
    /// Make all entries before this message durable, then notify the sender.
    Sync(Sender<()>),
    /// No more entries follow.
    End,
}

/// The recipients of the log, and its state as known to them.
struct Followers {
    /// The position of the next entry.
    next: Position,
    /// The recipients.
    all: Vec<Box<dyn Follower>>,
    /// Why the log accepts no more entries, once it does not.
    end: Option<String>,
    /// True while the disk is full.
    is_full: bool,
    /// True if the followers know that the disk is full.
    is_stalled: bool,
}

impl Sequencer {
    /// Returns the sequencer of a store without a log: entries are lost when the process ends.
    #[must_use]
    pub fn in_memory() -> Self {
        let followers = Arc::new(Mutex::new(Followers::after(Position::START)));
        Self { followers, destination: Destination::Memory, topic: None }
    }

    /// Returns the sequencer of a remote site: it sends entries to the process with the log, which has the followers.
    #[must_use]
    pub fn elsewhere(send: impl Fn(Vec<LogEntry>) + Send + Sync + 'static) -> Self {
        Self { destination: Destination::Elsewhere(Arc::new(send)), ..Self::in_memory() }
    }

    /// Returns the sequencer of a log in files, and the thread that writes the log. The thread ends with
    /// [`Sequencer::end`], or when the last handle is dropped; all entries submitted before are written then.
    /// Followers receive a mark after every `mark_every` bytes of log.
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

    /// Submits a site's next log entries.
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

    /// Makes all entries durable that were submitted before; returns false if that is not possible.
    #[must_use]
    pub fn sync(&self) -> bool {
        let Destination::Log(writer) = &self.destination else { return false };
        let (done, is_done) = channel();
        writer.send(WriterMessage::Sync(done)).is_ok() && is_done.recv().is_ok()
    }

    /// Returns the location in the topic of the mark given at a position; `None` if it is forgotten, or there is no
    /// topic.
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

    /// Adds a follower, which receives all further entries; returns the position of the first of them.
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

    /// Returns why no entries are written now, or `None` if they are.
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
    /// Returns the state of a log that has the entries up to `known`, without recipients.
    fn after(known: Position) -> Self {
        Self { next: known + 1, all: Vec::new(), end: None, is_full: false, is_stalled: false }
    }

    /// Assigns positions to entries and delivers them.
    fn publish(&mut self, entries: Arc<[LogEntry]>) {
        let first = self.place(&entries);
        self.deliver(first, &entries);
    }

    /// Assigns positions to log entries, and returns the first.
    fn place(&mut self, entries: &[LogEntry]) -> Position {
        let first = self.next;
        self.next += entries.len() as u64;
        first
    }

    /// Delivers entries to all followers, and removes those that are gone.
    fn deliver(&mut self, first: Position, entries: &Arc<[LogEntry]>) {
        self.all.retain_mut(|follower| follower.follow(first, entries));
    }

    /// Reports to all followers, if it has changed, whether the log is stalled.
    fn stall(&mut self, is_stalled: bool) {
        if self.is_stalled != is_stalled {
            self.is_stalled = is_stalled;
            self.all.iter_mut().for_each(|follower| follower.stall(is_stalled));
        }
    }

    /// Gives a mark to all followers.
    fn mark(&mut self) {
        self.all.iter_mut().for_each(|follower| follower.mark());
    }

    /// Reports the end of the log to all followers.
    fn end(&mut self, why: String) {
        self.all.iter_mut().for_each(|follower| follower.end(&why));
        self.end = Some(why);
    }
}

/// The thread that writes a log in files.
struct Writer {
    /// The log.
    log: Log,
    /// Messages to this thread.
    entries: Receiver<WriterMessage>,
    /// Entries to write next, which arrived during a wait.
    later: Vec<LogEntry>,
    /// Senders to notify after the next sync.
    syncs: Vec<Sender<()>>,
    /// Size of the log between two marks, in bytes.
    mark_every: Arc<AtomicU64>,
    /// Bytes written since the last mark.
    unmarked: u64,
    /// True if no more entries follow.
    has_ended: bool,
    /// The recipients of the log.
    followers: Arc<Mutex<Followers>>,
}

impl Writer {
    /// Writes the log until no more entries follow or an error occurs.
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

    /// Writes a group and delivers it; gives a mark if one is due.
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

    /// Returns the entries of a message, and records its other content.
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

    /// Writes a group, and repeats that on a full disk until it fits or no more entries follow. Followers learn that
    /// nothing is logged meanwhile, so that no client waits for it.
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

/// Returns the text of an error and of all its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

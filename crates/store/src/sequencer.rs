//! The order of log entries: makes one log of the entries of all sites, and sends it to all of them.
//!
//! A site submits its log entries in order and continues. Each follower receives every log entry from the
//! position where it joined on, once, in one order for all; with a durable log only when the log has the
//! entry.
//!
//! Log entries are written in batches: entries that arrive while the log writes and syncs are its next group,
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

/// Longest wait on a full disk before the entries that did not fit are tried again.
const FULL_DISK_WAIT: Duration = Duration::from_millis(100);
/// Tries before followers are told: a checkpoint that fails gives space back at once.
const STALLED_TRIES: u32 = 5;

/// Receives the log as it grows.
pub trait Follower: Send {
    /// The next log entries, and the place of the first. False when the receiver is gone.
    fn follow(&mut self, first: Position, entries: &Arc<[LogEntry]>) -> bool;
    /// The log takes nothing for now, since its disk is full, or takes something again.
    fn stall(&mut self, is_stalled: bool);
    /// All that was told so far is worth a checkpoint.
    fn mark(&mut self);
    /// The log takes nothing any more, and why.
    fn end(&mut self, why: &str);
}

/// The sites' entrance to the log: it takes their entries, and gives them one order. Cheap to clone.
#[derive(Clone)]
pub struct Sequencer {
    followers: Arc<Mutex<Followers>>,
    way: Way,
    /// The state of a log in Kafka.
    topic: Option<Topic>,
}

/// The destination of submitted log entries.
#[derive(Clone)]
enum Way {
    /// Nowhere but into this process's memory.
    Memory,
    /// To the thread that writes the log.
    Log(Sender<Handed>),
    /// To another process, which tells this one the log.
    Elsewhere(Arc<dyn Fn(Vec<LogEntry>) + Send + Sync>),
}

enum Handed {
    Frames(Vec<LogEntry>),
    /// Make everything before it durable, then notify the recipient.
    Sync(Sender<()>),
    /// These were the last.
    End,
}

struct Followers {
    next: Position,
    all: Vec<Box<dyn Follower>>,
    /// The reason why there is no more log.
    end: Option<String>,
    /// True if the disk is full at the moment, and true if followers know.
    is_full: bool,
    is_stalled: bool,
}

impl Sequencer {
    /// An order that only memory knows: it ends with the process.
    #[must_use]
    pub fn in_memory() -> Self {
        let followers = Arc::new(Mutex::new(Followers::behind(Position::START)));
        Self { followers, way: Way::Memory, topic: None }
    }

    /// The order of another process, which has the followers.
    #[must_use]
    pub fn elsewhere(send: impl Fn(Vec<LogEntry>) + Send + Sync + 'static) -> Self {
        Self { way: Way::Elsewhere(Arc::new(send)), ..Self::in_memory() }
    }

    /// The order of a log, whose thread ends with [`Sequencer::end`], or when the last handle is dropped;
    /// all entries submitted before are written then. Followers are given a mark whenever so many bytes
    /// were written.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn of(log: Log, mark_every: Arc<AtomicU64>) -> io::Result<(Self, JoinHandle<()>)> {
        let (writer, entries) = channel();
        let followers = Arc::new(Mutex::new(Followers::behind(log.next() - 1)));
        let told = Arc::clone(&followers);
        let write = move || {
            let (later, syncs) = (Vec::new(), Vec::new());
            let (unmarked, has_ended) = (0, false);
            Writer { log, entries, later, syncs, mark_every, unmarked, has_ended, followers: told }
                .run()
        };
        let thread = thread::Builder::new().name("log".into()).spawn(write)?;
        Ok((Self { followers, way: Way::Log(writer), topic: None }, thread))
    }

    /// Hands in a site's next log entries.
    pub fn submit(&self, entries: Vec<LogEntry>) {
        if entries.is_empty() {
            return;
        }
        match &self.way {
            // A thread that is gone has told all followers why.
            Way::Log(writer) => _ = writer.send(Handed::Frames(entries)),
            #[cfg(feature = "shuttle")]
            Way::Memory if fault::is(Fault::ToldBehindPlace) => {
                let first = lock(&self.followers).place(&entries);
                lock(&self.followers).pass_on(first, &entries.into());
            }
            Way::Memory => lock(&self.followers).tell(entries.into()),
            Way::Elsewhere(send) => send(entries),
        }
    }

    /// Makes all durable that was handed in before; false where that cannot be.
    #[must_use]
    pub fn sync(&self) -> bool {
        let Way::Log(writer) = &self.way else { return false };
        let (done, is_done) = channel();
        writer.send(Handed::Sync(done)).is_ok() && is_done.recv().is_ok()
    }

    /// The place in a topic of the mark that was given at a position, unless that is long ago.
    #[must_use]
    pub fn landmark(&self, known: Position) -> Option<Landmark> {
        self.topic.as_ref()?.landmark(known)
    }

    /// Nothing is written any more.
    pub fn end(&self) {
        if let Some(topic) = &self.topic {
            topic.end();
        }
        if let Way::Log(writer) = &self.way {
            _ = writer.send(Handed::End);
        }
    }

    /// From here on a follower is told everything; returns where that begins.
    #[must_use]
    pub fn join(&self, mut follower: Box<dyn Follower>) -> Position {
        let mut followers = lock(&self.followers);
        if let Some(why) = &followers.end {
            follower.end(why);
        }
        followers.all.push(follower);
        followers.next
    }

    /// The reason why nothing will be written any more, if so.
    #[must_use]
    pub fn has_ended(&self) -> Option<String> {
        lock(&self.followers).end.clone()
    }

    /// The reason why nothing is written now, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let followers = lock(&self.followers);
        let full = || followers.is_full.then(|| "the log's disk is full".to_owned());
        let away = || self.topic.as_ref().and_then(Topic::trouble);
        followers.end.clone().or_else(full).or_else(away)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Followers {
    fn behind(known: Position) -> Self {
        Self { next: known + 1, all: Vec::new(), end: None, is_full: false, is_stalled: false }
    }

    fn tell(&mut self, entries: Arc<[LogEntry]>) {
        let first = self.place(&entries);
        self.pass_on(first, &entries);
    }

    /// Gives log entries their place.
    fn place(&mut self, entries: &[LogEntry]) -> Position {
        let first = self.next;
        self.next += entries.len() as u64;
        first
    }

    fn pass_on(&mut self, first: Position, entries: &Arc<[LogEntry]>) {
        self.all.retain_mut(|follower| follower.follow(first, entries));
    }

    fn stall(&mut self, is_stalled: bool) {
        if self.is_stalled != is_stalled {
            self.is_stalled = is_stalled;
            self.all.iter_mut().for_each(|follower| follower.stall(is_stalled));
        }
    }

    fn mark(&mut self) {
        self.all.iter_mut().for_each(|follower| follower.mark());
    }

    fn end(&mut self, why: String) {
        self.all.iter_mut().for_each(|follower| follower.end(&why));
        self.end = Some(why);
    }
}

struct Writer {
    log: Log,
    entries: Receiver<Handed>,
    /// Entries that arrived while a full disk was waited for.
    later: Vec<LogEntry>,
    syncs: Vec<Sender<()>>,
    /// Bytes to write between two marks, and bytes written since the last.
    mark_every: Arc<AtomicU64>,
    unmarked: u64,
    has_ended: bool,
    followers: Arc<Mutex<Followers>>,
}

impl Writer {
    fn run(mut self) {
        let ended = loop {
            let mut group = match self.await_frames() {
                Ok(Some(group)) => group,
                Ok(None) => break self.log.sync(),
                Err(error) => break Err(error),
            };
            while group.len() < ENTRIES_MAX
                && let Ok(handed) = self.entries.try_recv()
            {
                group.extend(self.taken(handed));
            }
            let written =
                groups(group).into_iter().try_for_each(|group| self.write_and_tell(group));
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

    fn write_and_tell(&mut self, group: Vec<LogEntry>) -> Result<(), LogError> {
        self.write(&group)?;
        let mut followers = lock(&self.followers);
        followers.tell(group.into());
        self.unmarked += self.log.group_bytes();
        if self.unmarked >= self.mark_every.load(Ordering::Relaxed) {
            self.unmarked = 0;
            followers.mark();
        }
        Ok(())
    }

    fn taken(&mut self, handed: Handed) -> Vec<LogEntry> {
        match handed {
            Handed::Frames(entries) if !self.has_ended => entries,
            Handed::Frames(_) => Vec::new(),
            Handed::Sync(done) => {
                self.syncs.push(done);
                Vec::new()
            }
            Handed::End => {
                self.has_ended = true;
                Vec::new()
            }
        }
    }

    /// The next log entries, or nothing once there are no more. Meanwhile what is to be made durable now
    /// and then is.
    fn await_frames(&mut self) -> Result<Option<Vec<LogEntry>>, LogError> {
        loop {
            let is_asked = !self.syncs.is_empty();
            #[cfg(feature = "shuttle")]
            let is_asked = is_asked && !fault::is(Fault::WaitBeforeSync);
            if is_asked {
                self.log.sync()?;
                // The caller may not wait any more.
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
                Ok(handed) => self.later = self.taken(handed),
                Err(RecvTimeoutError::Timeout) => self.log.sync()?,
                Err(RecvTimeoutError::Disconnected) => self.has_ended = true,
            }
        }
    }

    /// Writes a group; on a full disk again and again until it fits, or until no handle is left any
    /// more. Sites are told that nothing is logged, so that no client waits for it.
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
                Ok(handed) => {
                    let entries = self.taken(handed);
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

pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

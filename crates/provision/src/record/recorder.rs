//! What the connections of a job report, as one trace.
//!
//! A phase begins with the request of its first read and ends with the last reply: when no read by `_id` was under way or
//! came for the gap, or when the job's comment names another phase. Reads are appended when their reply is whole.

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::trace::{Ending, Error, Header, Key, Span, Writer};

/// Open cursors of reads by `_id` that are followed; the keys of further ones are counted as other reads.
const CURSORS_MAX: usize = 10_000;

/// Numbers of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Phases in the trace.
    pub phases: u64,
    /// Reads in the trace.
    pub reads: u64,
    /// Those that found their document.
    pub documents: u64,
    /// The bytes of these documents.
    pub document_bytes: u64,
    /// Documents that were read otherwise than by `_id`, and reads that found none; not in the trace.
    pub other_reads: u64,
    /// Reads of other collections; not in the trace.
    pub elsewhere_reads: u64,
    /// Reads that the server refused; not in the trace.
    pub failed_reads: u64,
    /// Reads in the trace whose phase had ended when their reply came: they are in the next one.
    pub late_reads: u64,
}

/// A read by `_id` of one or more keys, until all of its reply was seen.
#[derive(Debug)]
pub(super) struct Open {
    keys: Vec<Key>,
    label: Option<String>,
    /// Bytes of the documents that came, by the hash of their `_id`.
    found: HashMap<u64, u32>,
}

impl Open {
    pub(super) fn new(keys: Vec<Key>, label: Option<String>) -> Self {
        Self { keys, label, found: HashMap::new() }
    }

    /// Takes a document of the reply.
    pub(super) fn found(&mut self, id: &Key, bytes: u32) {
        self.found.insert(id.hash64(), bytes);
    }
}

/// The trace in the making.
#[derive(Debug)]
pub(super) struct Recorder {
    gap: Duration,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    out: Out,
    namespace: Option<String>,
    phase: Phase,
    under_way: usize,
    cursors: HashMap<i64, Open>,
    totals: Totals,
}

#[derive(Debug)]
enum Out {
    /// Not made before the first read: only then its collection is known.
    Not {
        path: PathBuf,
        header: Header,
    },
    Open(Writer),
    Failed(Error),
}

/// The present phase.
#[derive(Debug, Default)]
struct Phase {
    label: Option<String>,
    began: Option<Instant>,
    ended: Option<Instant>,
}

impl Recorder {
    /// A recording to the file `path`; an empty namespace in the header is that of the first read by `_id`.
    pub(super) fn new(path: &Path, header: Header, gap: Duration) -> Self {
        let namespace = Some(header.namespace.clone()).filter(|name| !name.is_empty());
        let state = State {
            out: Out::Not { path: path.to_owned(), header },
            namespace,
            phase: Phase::default(),
            under_way: 0,
            cursors: HashMap::new(),
            totals: Totals::default(),
        };
        Self { gap, begun: Instant::now(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read by `_id` of this collection was sent; false if the collection is not the one that is recorded.
    #[must_use]
    pub(super) fn begin(&self, namespace: &str, open: &Open) -> bool {
        let mut state = self.state();
        if state.namespace.get_or_insert_with(|| namespace.to_owned()) != namespace {
            state.totals.elsewhere_reads += open.keys.len() as u64;
            return false;
        }
        let now = Instant::now();
        let labelled = open.label.is_some();
        let other = labelled && open.label != state.phase.label;
        let paused = state.under_way == 0
            && state.phase.ended.is_some_and(|ended| now.duration_since(ended) >= self.gap);
        if other || (paused && !labelled) {
            state.end_phase(self.begun);
            state.phase.label.clone_from(&open.label);
        }
        state.phase.began.get_or_insert(now);
        state.under_way += 1;
        true
    }

    /// The next batch of an open cursor was asked for. Returns the read, if it is one by `_id`.
    pub(super) fn resume(&self, cursor: i64) -> Option<Open> {
        let mut state = self.state();
        let open = state.cursors.remove(&cursor)?;
        state.under_way += 1;
        Some(open)
    }

    /// A reply was seen; its cursor is open unless it is 0.
    pub(super) fn reply(&self, open: Open, cursor: i64) {
        let mut state = self.state();
        state.under_way -= 1;
        state.phase.ended = Some(Instant::now());
        if cursor == 0 {
            state.append(&open);
        } else if state.cursors.len() < CURSORS_MAX {
            state.cursors.insert(cursor, open);
        } else {
            state.totals.other_reads += open.keys.len() as u64;
        }
    }

    /// A read by `_id` had no reply: the connection ended, or the server refused it.
    pub(super) fn fail(&self, open: &Open) {
        let mut state = self.state();
        state.under_way -= 1;
        state.totals.failed_reads += open.keys.len() as u64;
    }

    /// The job closed a cursor before its end: keys whose documents had not come are not known.
    pub(super) fn close(&self, cursor: i64) {
        let mut state = self.state();
        if let Some(open) = state.cursors.remove(&cursor) {
            state.append_found(open);
        }
    }

    /// Counts reads that are not by `_id`.
    pub(super) fn count_other(&self, namespace: &str, reads: u64) {
        let mut state = self.state();
        if state.namespace.as_deref().is_none_or(|recorded| recorded == namespace) {
            state.totals.other_reads += reads;
        } else {
            state.totals.elsewhere_reads += reads;
        }
    }

    /// Hands the reads so far to the operating system.
    pub(super) fn flush(&self) {
        self.state().write(Writer::flush);
    }

    /// Closes the trace. Returns its collection and its numbers.
    ///
    /// # Errors
    /// The trace could not be written, now or before.
    pub(super) fn finish(&self, ending: &Ending) -> Result<(String, Totals), Error> {
        let mut state = self.state();
        for (_, open) in mem::take(&mut state.cursors) {
            state.append_found(open);
        }
        state.end_phase(self.begun);
        let other_reads = state.totals.other_reads;
        // Made now if nothing was read.
        state.open();
        state.write(|writer| {
            writer.count_other_reads(other_reads);
            Ok(())
        });
        let ended = || Error::Unwritable { path: PathBuf::new(), what: "it had ended".into() };
        match mem::replace(&mut state.out, Out::Failed(ended())) {
            Out::Open(writer) => writer.finish(ending)?,
            Out::Failed(error) => return Err(error),
            Out::Not { .. } => {}
        }
        Ok((state.namespace.clone().unwrap_or_default(), state.totals))
    }
}

impl State {
    /// Makes the file if it is not yet made.
    fn open(&mut self) {
        if let Out::Not { path, header } = &mut self.out {
            header.namespace = self.namespace.clone().unwrap_or_default();
            self.out = match Writer::create(path, header) {
                Ok(writer) => Out::Open(writer),
                Err(error) => Out::Failed(error),
            };
        }
    }

    /// Writes, unless it failed before: the job goes on without a recording, which says so in the end.
    fn write(&mut self, write: impl FnOnce(&mut Writer) -> Result<(), Error>) {
        if let Out::Open(writer) = &mut self.out
            && let Err(error) = write(writer)
        {
            tracing::warn!(%error, "the recording has failed; the job goes on");
            self.out = Out::Failed(error);
        }
    }

    fn append(&mut self, open: &Open) {
        self.open();
        if open.label.is_some() && open.label != self.phase.label {
            self.totals.late_reads += open.keys.len() as u64;
        }
        for key in &open.keys {
            let bytes = open.found.get(&key.hash64()).copied();
            self.totals.reads += 1;
            self.totals.documents += u64::from(bytes.is_some());
            self.totals.document_bytes += u64::from(bytes.unwrap_or(0));
            self.write(|writer| writer.read(key, bytes));
        }
    }

    fn append_found(&mut self, mut open: Open) {
        let asked = open.keys.len();
        open.keys.retain(|key| open.found.contains_key(&key.hash64()));
        self.totals.other_reads += (asked - open.keys.len()) as u64;
        self.append(&open);
    }

    fn end_phase(&mut self, begun: Instant) {
        let phase = mem::take(&mut self.phase);
        let since = |at: Option<Instant>| {
            let passed = at.map_or(Duration::ZERO, |at| at.duration_since(begun));
            u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
        };
        let span = Span { began_us: since(phase.began), ended_us: since(phase.ended) };
        let mut ended = 0;
        self.write(|writer| {
            if writer.phase_reads() > 0 {
                ended = 1;
                writer.end_phase(span)?;
            }
            Ok(())
        });
        self.totals.phases += ended;
    }
}

//! Merging of the reads of all connections of a job into one trace.
//!
//! A phase begins with the request of its first read and ends with its last reply. A new phase begins if no read by
//! `_id` was in progress for the length of the gap, or if the comment of the job's read names another phase. A read
//! is appended to the trace when its reply is complete.

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::trace::{Ending, Error, Header, Key, Requests, Span, Writer};

/// Maximum number of open cursors of reads by `_id` that are tracked; the keys of reads with further cursors count as
/// other reads.
const CURSORS_MAX: usize = 10_000;

/// Counts of the reads of a recorded job. A read is one key of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of phases in the trace.
    pub phases: u64,
    /// Number of reads by `_id` in the trace.
    pub reads: u64,
    /// Number of reads in the trace that found a document.
    pub documents: u64,
    /// Total size of the documents found by the reads in the trace, in bytes.
    pub document_bytes: u64,
    /// Number of documents that were read by other conditions than `_id`, plus the number of such reads that found
    /// none; they are not in the trace.
    pub other_reads: u64,
    /// Number of reads of other collections than the recorded one; they are not in the trace.
    pub elsewhere_reads: u64,
    /// Number of reads by `_id` that got no successful reply; they are not in the trace.
    pub failed_reads: u64,
    /// Number of reads in the trace whose phase, as their comment names it, had ended before their reply; they are
    /// recorded in a later phase.
    pub late_reads: u64,
}

/// A read by `_id` of one or more keys whose reply is not yet complete.
#[derive(Debug)]
pub(super) struct Open {
    /// The keys of the request, in order.
    keys: Vec<Key>,
    /// The phase that the comment of the request names; `None` without such a comment.
    label: Option<String>,
    /// Sizes of the documents returned so far, in bytes, by the hash of their `_id` ([`Key::hash64`]).
    found: HashMap<u64, u32>,
}

impl Open {
    pub(super) fn new(keys: Vec<Key>, label: Option<String>) -> Self {
        Self { keys, label, found: HashMap::new() }
    }

    /// Adds a document of the reply: its `_id`, and its size in bytes.
    pub(super) fn found(&mut self, id: &Key, bytes: u32) {
        self.found.insert(id.hash64(), bytes);
    }
}

/// Records the reads of all connections into one trace.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Minimum interval without reads by `_id` that ends a phase.
    gap: Duration,
    /// Start of the recording; the times in the trace count from it.
    begun: Instant,
    state: Mutex<State>,
}

/// The mutable part of a [`Recorder`], behind its mutex.
#[derive(Debug)]
struct State {
    /// The file of the trace, or the reason why there is none.
    out: Out,
    /// The recorded collection, as `database.collection`; `None` before the first read by `_id`, if none was
    /// requested.
    namespace: Option<String>,
    /// The phase to which new reads belong.
    phase: Phase,
    /// Number of requests by `_id` that wait for a reply.
    under_way: u32,
    /// Time at which that number last changed.
    changed: Instant,
    /// Reads by `_id` whose cursor is open on the server and not being read, by the cursor's id.
    cursors: HashMap<i64, Open>,
    /// Counts of the reads so far, for the report.
    totals: Totals,
}

/// The state of the trace file.
#[derive(Debug)]
enum Out {
    /// The file is not yet created, since the collection in its header is known only at the first read.
    Not {
        path: PathBuf,
        header: Header,
    },
    Open(Writer),
    /// The file could not be created or written; the field is the error.
    Failed(Error),
}

/// The phase of a recording to which new reads belong.
#[derive(Debug, Default)]
struct Phase {
    /// The phase's name in the comment of the job's reads; `None` if the job did not name the phase.
    label: Option<String>,
    /// Time of the phase's first request; `None` before it.
    began: Option<Instant>,
    /// Time of the phase's last reply so far; `None` before the first one.
    ended: Option<Instant>,
    /// Number of requests so far, further batches of cursors included.
    requests: u64,
    /// Sum of the times from each request to its reply, or until now.
    waited: Duration,
    /// Greatest number of requests under way at once.
    at_once: u32,
}

impl Phase {
    /// Counts a request, with which `under_way` requests are under way.
    fn count_request(&mut self, under_way: u32) {
        self.requests += 1;
        self.at_once = self.at_once.max(under_way);
    }
}

impl Recorder {
    /// Starts a recording into the file `path`, in which an interval of `gap` without reads ends a phase. If the
    /// header's namespace is empty, the recorded collection is that of the first read by `_id`.
    pub(super) fn new(path: &Path, header: Header, gap: Duration) -> Self {
        let namespace = Some(header.namespace.clone()).filter(|name| !name.is_empty());
        let state = State {
            out: Out::Not { path: path.to_owned(), header },
            namespace,
            phase: Phase::default(),
            under_way: 0,
            changed: Instant::now(),
            cursors: HashMap::new(),
            totals: Totals::default(),
        };
        Self { gap, begun: Instant::now(), state: Mutex::new(state) }
    }

    /// Locks and returns the mutable state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request by `_id` on the collection `namespace` was sent. Returns false if another collection is
    /// recorded.
    #[must_use]
    pub(super) fn begin(&self, namespace: &str, open: &Open) -> bool {
        let mut state = self.state();
        if state.namespace.get_or_insert_with(|| namespace.to_owned()) != namespace {
            state.totals.elsewhere_reads += open.keys.len() as u64;
            return false;
        }
        let now = state.pass();
        let labelled = open.label.is_some();
        let other = labelled && open.label != state.phase.label;
        let paused = state.under_way == 0
            && state.phase.ended.is_some_and(|ended| now.duration_since(ended) >= self.gap);
        if other || (paused && !labelled) {
            state.end_phase(self.begun);
            state.phase.label.clone_from(&open.label);
        }
        state.phase.began.get_or_insert(now);
        state.request();
        true
    }

    /// Records that the next batch of the cursor with this id was requested. Returns the read by `_id` that the
    /// cursor belongs to; `None` for a cursor of another read.
    pub(super) fn resume(&self, cursor: i64) -> Option<Open> {
        let mut state = self.state();
        let open = state.cursors.remove(&cursor)?;
        state.pass();
        state.request();
        Some(open)
    }

    /// Records a reply to the read `open`. `cursor` is the id of its cursor: 0 if the read is complete.
    pub(super) fn reply(&self, open: Open, cursor: i64) {
        let mut state = self.state();
        let now = state.pass();
        state.under_way -= 1;
        state.phase.ended = Some(now);
        if cursor == 0 {
            state.append(&open);
        } else if state.cursors.len() < CURSORS_MAX {
            state.cursors.insert(cursor, open);
        } else {
            state.totals.other_reads += open.keys.len() as u64;
        }
    }

    /// Records that the read `open` failed: the connection ended before the reply, or the server returned an error.
    pub(super) fn fail(&self, open: &Open) {
        let mut state = self.state();
        state.pass();
        state.under_way -= 1;
        state.totals.failed_reads += open.keys.len() as u64;
    }

    /// Records that the job closed the cursor with this id before its end. Keys without a document so far count as
    /// other reads, since it is not known whether their documents exist.
    pub(super) fn close(&self, cursor: i64) {
        let mut state = self.state();
        if let Some(open) = state.cursors.remove(&cursor) {
            state.append_found(open);
        }
    }

    /// Counts `reads` reads on the collection `namespace` that are not by `_id`.
    pub(super) fn count_other(&self, namespace: &str, reads: u64) {
        let mut state = self.state();
        if state.namespace.as_deref().is_none_or(|recorded| recorded == namespace) {
            state.totals.other_reads += reads;
        } else {
            state.totals.elsewhere_reads += reads;
        }
    }

    /// Writes the reads so far to the operating system, where they survive the death of this process.
    pub(super) fn flush(&self) {
        self.state().write(Writer::flush);
    }

    /// Ends the last phase and closes the trace file; `ending` tells whether it has the whole job. Returns the
    /// recorded collection, empty if there is none, and the counts.
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
        // Create the file even if nothing was read.
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
    /// Adds the time since the last change to the wait of each request under way. Returns the time now.
    fn pass(&mut self) -> Instant {
        let now = Instant::now();
        self.phase.waited += now.duration_since(self.changed) * self.under_way;
        self.changed = now;
        now
    }

    /// Counts a request that begins now.
    fn request(&mut self) {
        self.under_way += 1;
        self.phase.count_request(self.under_way);
    }

    /// Creates the trace file if it does not exist yet.
    fn open(&mut self) {
        if let Out::Not { path, header } = &mut self.out {
            header.namespace = self.namespace.clone().unwrap_or_default();
            self.out = match Writer::create(path, header) {
                Ok(writer) => Out::Open(writer),
                Err(error) => Out::Failed(error),
            };
        }
    }

    /// Calls `write` if the trace file is open. After a failure the job continues without a recording, and
    /// [`Recorder::finish`] returns the error.
    fn write(&mut self, write: impl FnOnce(&mut Writer) -> Result<(), Error>) {
        if let Out::Open(writer) = &mut self.out
            && let Err(error) = write(writer)
        {
            tracing::warn!(%error, "the recording has failed; the job goes on");
            self.out = Out::Failed(error);
        }
    }

    /// Appends all keys of a read whose reply is complete to the trace.
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

    /// Appends the keys of an incomplete read that have a document, and counts its other keys as other reads.
    fn append_found(&mut self, mut open: Open) {
        let asked = open.keys.len();
        open.keys.retain(|key| open.found.contains_key(&key.hash64()));
        self.totals.other_reads += (asked - open.keys.len()) as u64;
        self.append(&open);
    }

    /// Ends the current phase, and writes its end if it has reads; `begun` is the start of the recording.
    fn end_phase(&mut self, begun: Instant) {
        let phase = mem::take(&mut self.phase);
        let since = |at: Option<Instant>| {
            let passed = at.map_or(Duration::ZERO, |at| at.duration_since(begun));
            u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
        };
        let requests = Requests {
            count: phase.requests,
            waited_us: u64::try_from(phase.waited.as_micros()).unwrap_or(u64::MAX),
            at_once: phase.at_once,
        };
        let span = Span {
            began_us: since(phase.began),
            ended_us: since(phase.ended),
            requests: Some(requests),
        };
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

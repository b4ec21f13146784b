//! Recording of a trace by the chain itself: each key that the chain reads, whether the cache has its document or
//! not.
//!
//! A proxy in front of the database does not see the reads that a cache answers; the job does.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bson::raw::RawBson;

use super::key::Key;
use super::run::Observer;
use crate::trace::{self, Ending, Error, Header, PhasesBy, Span, Writer};

/// Writes each key that a chain reads into a trace, while the chain runs.
pub struct Recorder {
    state: Arc<Mutex<State>>,
}

/// The mutable part of a [`Recorder`], behind its mutex.
struct State {
    writer: Writer,
    /// Number of the chain's current phase, from 0 on.
    phase: u32,
    /// Start of the recording; the times in the trace count from it.
    began: Instant,
    /// Start and end of the current phase so far, in microseconds since the start of the recording.
    span: Span,
    /// The first error of writing the trace; after it, nothing is written.
    failed: Option<Error>,
}

impl Recorder {
    /// Creates the trace file `path` for the reads of a collection; `namespace` is its name, as
    /// `database.collection`.
    ///
    /// # Errors
    /// The file already exists, or cannot be created.
    pub fn create(path: &Path, namespace: String) -> Result<Self, Error> {
        let when = bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default();
        let header =
            Header { source: "imago chain run".into(), namespace, when, phases_by: PhasesBy::Job };
        let writer = Writer::create(path, &header)?;
        let state =
            State { writer, phase: 0, began: Instant::now(), span: Span::default(), failed: None };
        Ok(Self { state: Arc::new(Mutex::new(state)) })
    }

    /// Returns the callback that the chain has to call for each key that it reads.
    #[must_use]
    pub fn observer(&self) -> Arc<Observer> {
        let state = Arc::clone(&self.state);
        Arc::new(move |phase: u32, key: &Key, document_bytes: Option<u32>| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.failed.is_none() {
                state.failed = state.read(phase, key, document_bytes).err();
            }
        })
    }

    /// Ends the last phase and closes the trace file. `ending` tells whether the trace has the whole job.
    ///
    /// # Errors
    /// The file could not be written, now or before.
    pub fn finish(self, ending: &Ending) -> Result<(), Error> {
        // The chain has ended, and dropped its observer.
        let state = Arc::into_inner(self.state).expect("the observer is dropped with its chain");
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(failed) = state.failed {
            return Err(failed);
        }
        if state.writer.phase_reads() > 0 {
            state.writer.end_phase(state.span)?;
        }
        state.writer.finish(ending)
    }
}

impl State {
    /// Appends the read of a key in the phase `phase` (from 0 on), after ending the phases before it.
    /// `document_bytes` is the document's size; `None` if there is no document.
    fn read(&mut self, phase: u32, key: &Key, document_bytes: Option<u32>) -> Result<(), Error> {
        let now_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        while self.phase < phase {
            self.writer.end_phase(self.span)?;
            self.phase += 1;
            self.span = Span { began_us: now_us, ended_us: now_us, requests: None };
        }
        self.span.ended_us = now_us;
        let value = RawBson::try_from(key.value().clone()).expect("an _id is a value");
        self.writer.read(&trace::Key::from_raw(value.as_raw_bson_ref()), document_bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use crate::trace::Trace;

    #[test]
    fn a_trace_has_all_phases_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chain.imt");
        let begin = || Recorder::create(&path, "shop.messages".into());
        let recorder = begin().unwrap();
        let observer = recorder.observer();
        for (phase, id, bytes) in [(0, 17, Some(131)), (0, 230_511, None), (2, 17, Some(131))] {
            observer(phase, &Key::of_number(id), bytes);
        }
        observer(2, &Key::parse(r#"{"$oid": "65f1c2a90000000000000001"}"#).unwrap(), Some(99));
        drop(observer);
        recorder.finish(&Ending::Complete).unwrap();
        let trace = Trace::read(&path).unwrap();
        let counts: Vec<usize> = trace.phases.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 0, 2]);
        assert_eq!(trace.phases[0][1].document_bytes, None);
        assert_eq!(trace.phases[0][0].key.hash64(), trace.phases[2][0].key.hash64());
        assert!(begin().is_err(), "a trace that is there is not written over");
    }
}

//! A chain that records its own reads: all keys, also those that the cache answers, which a proxy before the database
//! does not see.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::Error as JobError;
use super::run::Observer;
use crate::trace::{Ending, Error, Header, Key, PhasesBy, Span, Writer};

/// The trace of a running chain.
#[derive(Debug)]
pub struct OwnTrace(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    begun: Instant,
    /// None after it failed, or ended.
    writer: Option<Writer>,
    failure: Option<Error>,
    phase: u32,
    span: Span,
}

impl OwnTrace {
    /// Begins a new file; `when` is the present time (RFC 3339, UTC).
    ///
    /// # Errors
    /// The file exists or cannot be made.
    pub fn create(path: &Path, namespace: String, when: String) -> Result<Self, Error> {
        let source = "recorded by imago chain run".into();
        let header = Header { source, namespace, when, phases_by: PhasesBy::Job };
        let state = State {
            begun: Instant::now(),
            writer: Some(Writer::create(path, &header)?),
            failure: None,
            phase: 0,
            span: Span::default(),
        };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// What the chain tells each key that it read. A failure to write does not disturb it: [`OwnTrace::finish`] says it.
    #[must_use]
    pub fn observer(&self) -> Arc<Observer> {
        let state = Arc::clone(&self.0);
        Arc::new(move |phase, key: &super::Key, bytes| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = state.read(phase, &Key::from(key.value()), bytes) {
                state.writer = None;
                state.failure = Some(error);
            }
        })
    }

    /// Closes the file. It is marked as incomplete if the chain failed.
    ///
    /// # Errors
    /// The file could not be written, now or before.
    pub fn finish(self, failed: Option<&JobError>) -> Result<(), Error> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        let ending = failed.map_or(Ending::Complete, |why| Ending::Incomplete(why.to_string()));
        let span = state.span;
        let Some(mut writer) = state.writer.take() else { return Ok(()) };
        if writer.phase_reads() > 0 {
            writer.end_phase(span)?;
        }
        writer.finish(&ending)
    }
}

impl State {
    fn read(&mut self, phase: u32, key: &Key, bytes: Option<u32>) -> Result<(), Error> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let now_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        if phase != self.phase {
            writer.end_phase(self.span)?;
            self.phase = phase;
        }
        if writer.phase_reads() == 0 {
            self.span.began_us = now_us;
        }
        self.span.ended_us = now_us;
        writer.read(key, bytes)
    }
}

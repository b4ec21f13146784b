//! The open-loop driver: sends operations when they are due, independent of the database's replies.
//!
//! A clock thread decides when each operation is due (evenly or as a Poisson process) and starts
//! it then, without waiting for earlier ones, so that a database that stalls meets the queue that
//! real clients would form. The number in flight is bounded: an operation that is due while the
//! bound is reached is *dropped*, and reported as such, never silently left out.
//!
//! The target can be replaced while the load runs ([`Control::switch`]), as clients are at a
//! cut-over: operations that start later go to the new one, those in flight end where they began.

mod clock;
mod perform;
mod report;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot, watch};

pub use report::{FailureCount, Report, SideReport, Snapshot, SwitchMark};

use crate::history::{History, Recorder, RecorderError};
use crate::keys::Distribution;
use crate::mix::{Kind, Mix};
use crate::population::Population;
use crate::review::Reviews;
use crate::target::Target;
use crate::timeline::Timeline;
use report::Failures;

/// The distribution of the times at which operations are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Independently of each other, at the given rate on average, as requests of many clients.
    #[default]
    Poisson,
    /// At equal distances.
    Uniform,
    /// As soon as another one has ended, so that as many are in flight as may be: for the most that a database serves.
    Closed,
}

/// The load to drive.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Shares of the kinds of operation.
    pub mix: Mix,
    /// Other shares from these times on, in their order.
    pub turns: Vec<(Duration, Mix)>,
    /// Which keys they go to.
    pub keys: Distribution,
    /// Operations per second.
    pub rate_per_s: f64,
    /// The distribution of the times at which they are due.
    pub arrival: Arrival,
    /// Duration of the run; `None` until stopped.
    pub duration: Option<Duration>,
    /// The most operations in flight.
    pub in_flight_max: u32,
    /// After this an operation counts as failed, perhaps applied.
    pub op_timeout: Duration,
    /// The keys `0..preloaded` exist when the load starts.
    pub preloaded: u64,
    /// The documents.
    pub reviews: Reviews,
    /// The share of inserts that go to keys whose document was deleted before; 0 to 1.
    pub reinsert: f64,
    /// The most documents that a scan reads.
    pub scan_documents: u32,
    /// The seed of all choices.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mix: Mix::default(),
            turns: Vec::new(),
            keys: Distribution::Uniform,
            rate_per_s: 300.0,
            arrival: Arrival::default(),
            duration: Some(Duration::from_secs(60)),
            in_flight_max: 1024,
            op_timeout: Duration::from_secs(30),
            preloaded: 0,
            reviews: Reviews::default(),
            reinsert: 0.0,
            scan_documents: 50,
            seed: 1,
        }
    }
}

/// Why a load could not run, or could not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// An option cannot be used.
    #[error("the load cannot run: {0}")]
    Option(String),
    /// The history could not be recorded.
    #[error("the load was stopped, since its history could not be recorded")]
    Recorder(#[from] RecorderError),
    /// The clock thread could not be started, or failed.
    #[error("the load's clock failed: {0}")]
    Clock(String),
    /// Operations did not end in time after the last one was sent.
    #[error("operations were still in flight {0:?} after the load's end")]
    NotDrained(Duration),
    /// Operations ended without an answer, which only a bug in the target can cause.
    #[error("{0} operations ended without an answer: the target panicked")]
    Vanished(u64),
}

impl Options {
    /// Checks that the options make sense together.
    ///
    /// # Errors
    /// Says which one does not.
    pub fn validate(&self) -> Result<(), DriverError> {
        let refuse = |reason: String| Err(DriverError::Option(reason));
        if !self.rate_per_s.is_finite() || !(0.001..=1e6).contains(&self.rate_per_s) {
            return refuse(format!("the rate {} is not between 0.001 and 1e6", self.rate_per_s));
        }
        if !(0.0..=1.0).contains(&self.reinsert) {
            return refuse(format!("the reinsert share {} is not in 0..=1", self.reinsert));
        }
        if self.in_flight_max == 0 || self.op_timeout.is_zero() {
            return refuse("the bound in flight and the time-out must be above 0".into());
        }
        if self.scan_documents == 0 {
            return refuse("a scan must read one document at least".into());
        }
        if self.preloaded == 0 && self.mix.insert <= 0.0 {
            return refuse("there are no documents and the mix inserts none".into());
        }
        if !self.turns.is_sorted_by_key(|(from, _)| *from) {
            return refuse("the times at which the mix turns must be in their order".into());
        }
        for mix in self.turns.iter().map(|(_, mix)| mix).chain([&self.mix]) {
            mix.validate().map_err(|error| DriverError::Option(error.to_string()))?;
        }
        self.reviews.validate().map_err(|error| DriverError::Option(error.to_string()))
    }

    /// The shares of an operation that is due at a time of the load.
    fn mix_at(&self, at_ns: u64) -> &Mix {
        let at = Duration::from_nanos(at_ns);
        self.turns.iter().rev().find(|(from, _)| *from <= at).map_or(&self.mix, |(_, mix)| mix)
    }
}

/// One operation that is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    kind: Kind,
    key: u64,
    seq: u64,
    intended_ns: u64,
}

/// The present target of operations.
struct Current<T> {
    target: Arc<T>,
    number: u16,
}

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self { target: Arc::clone(&self.target), number: self.number }
    }
}

struct Shared<T> {
    options: Options,
    begin: Instant,
    current: watch::Sender<Current<T>>,
    in_flight: Arc<Semaphore>,
    stopped: AtomicBool,
    started: AtomicU64,
    ended: AtomicU64,
    population: Mutex<Population>,
    measured: Mutex<Measured>,
    recorder_error: Mutex<Option<RecorderError>>,
}

/// The measurements, behind one lock that is held for well under a microsecond per operation.
struct Measured {
    timeline: Timeline,
    start_delay_us: hdrhistogram::Histogram<u64>,
    failures: Failures,
    unavailable: u64,
    switches: Vec<SwitchMark>,
    in_flight_peak: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks can leave them half-changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Shared<T> {
    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

/// Steers a running load. Clones steer the same load.
pub struct Control<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Control<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// A running load.
pub struct Running<T> {
    control: Control<T>,
    recorder: Arc<Recorder>,
    clock_ended: oneshot::Receiver<()>,
}

/// Starts a load on the current Tokio runtime.
///
/// # Errors
/// An option cannot be used, or the clock thread cannot be started.
pub fn start<T: Target>(
    options: Options,
    target: Arc<T>,
    recorder: Recorder,
) -> Result<Running<T>, DriverError> {
    options.validate()?;
    let first = SwitchMark { at_ms: 0, target: target.label() };
    let shared = Arc::new(Shared {
        begin: Instant::now(),
        current: watch::Sender::new(Current { target, number: 0 }),
        in_flight: Arc::new(Semaphore::new(options.in_flight_max as usize)),
        stopped: AtomicBool::new(false),
        started: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        population: Mutex::new(Population::new(options.preloaded)),
        measured: Mutex::new(Measured::new(first)),
        recorder_error: Mutex::new(None),
        options,
    });
    let recorder = Arc::new(recorder);
    let clock_ended = clock::spawn(Arc::clone(&shared), Arc::clone(&recorder))?;
    Ok(Running { control: Control { shared }, recorder, clock_ended })
}

impl<T: Target> Control<T> {
    /// Sends all operations that start from now on to another target; returns the moment, in
    /// milliseconds since the start of the run.
    pub fn switch(&self, target: Arc<T>) -> u64 {
        let label = target.label();
        self.shared.current.send_modify(|current| {
            *current = Current { target, number: current.number.saturating_add(1) };
        });
        let at_ms = self.shared.now_ns() / 1_000_000;
        lock(&self.shared.measured).switches.push(SwitchMark { at_ms, target: label });
        at_ms
    }

    /// Sends no further operation. Those in flight still end.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// The measurements so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.shared)
    }
}

impl<T: Target> Running<T> {
    /// The handle that steers this load.
    #[must_use]
    pub fn control(&self) -> Control<T> {
        self.control.clone()
    }

    /// Waits until the load has ended and every operation was answered or given up; returns what
    /// was measured, and the history when it was recorded in memory.
    ///
    /// # Errors
    /// The history could not be recorded; operations did not end; the clock or a target panicked.
    pub async fn finish(self) -> Result<(Report, Option<History>), DriverError> {
        let shared = self.control.shared;
        let clock = self.clock_ended.await;
        let last_ns = shared.now_ns();
        // An operation in flight may take its time-out and then wait for the history's disk.
        let patience = shared.options.op_timeout + Duration::from_secs(90);
        let all = Arc::clone(&shared.in_flight).acquire_many_owned(shared.options.in_flight_max);
        let drained = tokio::time::timeout(patience, all).await;
        if let Some(error) = lock(&shared.recorder_error).take() {
            return Err(error.into());
        }
        drop(drained.map_err(|_| DriverError::NotDrained(patience))?.map_err(|_| gone())?);
        clock.map_err(|_| gone())?;
        let started = shared.started.load(Ordering::SeqCst);
        let vanished = started - shared.ended.load(Ordering::SeqCst);
        if vanished > 0 {
            return Err(DriverError::Vanished(vanished));
        }
        let recorder = Arc::into_inner(self.recorder)
            .ok_or_else(|| DriverError::Clock("an operation still holds the history".into()))?;
        let history = recorder.close().await?;
        Ok((Report::make(&shared, last_ns), history))
    }
}

fn gone() -> DriverError {
    DriverError::Clock("its thread panicked".into())
}

#[cfg(test)]
mod tests;

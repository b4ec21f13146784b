//! The open-loop driver: sends operations when they are due, independent of the database's replies.
//!
//! A clock thread decides when each operation is due (evenly or as a Poisson process) and starts it at that
//! time, without waiting for earlier ones. So a database that stalls meets the queue that real clients would
//! form. The number of operations in flight is limited. An operation that is due while the limit is reached
//! is *dropped* and reported.
//!
//! The target can be replaced while the load runs ([`Control::switch`]), as at a cut-over: operations that
//! start later go to the new target, and those in flight end at the old one.

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

/// The distribution of the times at which the operations of a load are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Independent of each other at the given average rate (exponential intervals), like the requests of many
    /// clients.
    #[default]
    Poisson,
    /// At equal intervals, at the given rate.
    Uniform,
    /// As soon as another operation has ended, so that the maximum number is in flight; the rate is ignored. This
    /// measures the peak throughput.
    Closed,
}

/// The options of a load: its operations, their rate and their limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Weights of the kinds of operation from the start of the run on.
    pub mix: Mix,
    /// Later mixes, in the order of their times: each replaces the previous one for operations that are due from its
    /// time since the start of the run on.
    pub turns: Vec<(Duration, Mix)>,
    /// Distribution of the operations over the existing keys.
    pub keys: Distribution,
    /// Average rate at which operations are due, in operations per second.
    pub rate_per_s: f64,
    /// Distribution of the times at which operations are due.
    pub arrival: Arrival,
    /// Time after which no more operations are started; `None` runs until the load is stopped.
    pub duration: Option<Duration>,
    /// Limit of the number of operations in flight; an operation that is due while it is reached is dropped.
    pub in_flight_max: u32,
    /// Time limit of one operation after it was sent; beyond it the operation counts as failed, and perhaps applied.
    pub op_timeout: Duration,
    /// Number of preloaded documents: those of the keys `0..preloaded` exist when the load starts.
    pub preloaded: u64,
    /// Parameters of the generator of the documents.
    pub reviews: Reviews,
    /// Probability, 0 to 1, that an insert uses a key whose document was deleted, if there is one.
    pub reinsert: f64,
    /// Limit of the number of documents that one scan reads.
    pub scan_documents: u32,
    /// Seed of all random choices of the load.
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

/// The reason why a load could not start, or not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// An option is invalid; the text names it.
    #[error("the load cannot run: {0}")]
    Option(String),
    /// The history of the operations could not be recorded, so the load was stopped.
    #[error("the load was stopped, since its history could not be recorded")]
    Recorder(#[from] RecorderError),
    /// The clock thread, which starts the operations, could not be started or panicked; the text says why.
    #[error("the load's clock failed: {0}")]
    Clock(String),
    /// Operations had not ended this long after the load's end.
    #[error("operations were still in flight {0:?} after the load's end")]
    NotDrained(Duration),
    /// This many operations ended without an outcome, which only a panic in the target can cause.
    #[error("{0} operations ended without an answer: the target panicked")]
    Vanished(u64),
}

impl Options {
    /// Checks that each option is valid, and that the options are consistent.
    ///
    /// # Errors
    /// Returns an error that names the invalid option.
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

    /// Returns the mix for an operation that is due at `at_ns`, in ns since the start of the run.
    fn mix_at(&self, at_ns: u64) -> &Mix {
        let at = Duration::from_nanos(at_ns);
        self.turns.iter().rev().find(|(from, _)| *from <= at).map_or(&self.mix, |(_, mix)| mix)
    }
}

/// An operation that is due now, with its key, number and due time.
#[derive(Debug, Clone, Copy)]
struct Due {
    kind: Kind,
    key: u64,
    seq: u64,
    intended_ns: u64,
}

/// Target to which operations that start now are sent, and its number: 0 at first, one more after each switch.
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

/// Measurements of a running load. One lock protects them, which is held for well under a microsecond per operation.
struct Measured {
    timeline: Timeline,
    start_delay_us: hdrhistogram::Histogram<u64>,
    failures: Failures,
    unavailable: u64,
    switches: Vec<SwitchMark>,
    in_flight_peak: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave the data of these locks inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Shared<T> {
    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

/// A handle that controls a running load. Clones control the same load.
pub struct Control<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Control<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// A running load, whose end can be awaited.
pub struct Running<T> {
    control: Control<T>,
    recorder: Arc<Recorder>,
    clock_ended: oneshot::Receiver<()>,
}

/// Starts a load on the current Tokio runtime: operations go to `target`, and `recorder` receives their outcomes.
///
/// # Errors
/// Returns an error if an option is invalid, or if the clock thread cannot be started.
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
    /// Sends all operations that start from now on to `target`. Returns the time of the switch, in ms since the start
    /// of the run.
    pub fn switch(&self, target: Arc<T>) -> u64 {
        let label = target.label();
        self.shared.current.send_modify(|current| {
            *current = Current { target, number: current.number.saturating_add(1) };
        });
        let at_ms = self.shared.now_ns() / 1_000_000;
        lock(&self.shared.measured).switches.push(SwitchMark { at_ms, target: label });
        at_ms
    }

    /// Stops the load: no further operation is sent, and those in flight still end.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the state and measurements of the load so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.shared)
    }
}

impl<T: Target> Running<T> {
    /// Returns a handle that controls this load.
    #[must_use]
    pub fn control(&self) -> Control<T> {
        self.control.clone()
    }

    /// Waits until the load has ended and every operation was answered or timed out. Returns the
    /// measurements, and the history if it was recorded in memory.
    ///
    /// # Errors
    /// Returns an error if the history could not be recorded, if operations did not end, or if the clock or a
    /// target panicked.
    pub async fn finish(self) -> Result<(Report, Option<History>), DriverError> {
        let shared = self.control.shared;
        let clock = self.clock_ended.await;
        let last_ns = shared.now_ns();
        // An operation in flight may take until its time limit, and then wait for the history's disk.
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

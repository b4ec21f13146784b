//! The clock thread: decides when each operation is due, and starts it at that time.
//!
//! A separate thread is needed because the runtime's timers have a resolution of a millisecond: a load of
//! sub-millisecond operations would mostly measure the timer. All random choices are made here, by one seeded
//! generator, so that kinds and times follow from the options alone. The key of an operation also depends on
//! the inserts that were answered before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Arrival, DriverError, Due, Shared, lock, perform};
use crate::history::Recorder;
use crate::keys::Chooser;
use crate::mix::Kind;
use crate::population::Population;
use crate::target::Target;

/// Longest sleep of the clock thread before it checks whether the load was stopped.
const NAP: Duration = Duration::from_millis(20);
/// Limit of the number of times that a key is drawn again because its document is known to be deleted.
const REDRAWS: u32 = 8;

/// Starts the clock thread. The receiver resolves when the thread has started its last operation.
pub(super) fn spawn<T: Target>(
    shared: Arc<Shared<T>>,
    recorder: Arc<Recorder>,
) -> Result<oneshot::Receiver<()>, DriverError> {
    let runtime = Handle::current();
    let (ended, clock_ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("load-clock".into())
        .spawn(move || {
            run(&shared, &recorder, &runtime);
            // The recorder is released before the end is announced, because the receiver closes it.
            drop(recorder);
            // The receiver may be gone.
            let _ = ended.send(());
        })
        .map_err(|error| DriverError::Clock(error.to_string()))?;
    Ok(clock_ended)
}

fn run<T: Target>(shared: &Arc<Shared<T>>, recorder: &Arc<Recorder>, runtime: &Handle) {
    let mut choice = Choice::new(shared);
    if shared.options.arrival == Arrival::Closed {
        return run_closed(shared, recorder, runtime, &mut choice);
    }
    let mut schedule = Schedule::new(shared);
    let end_ns = shared.options.duration.map_or(u64::MAX, |d| d.as_nanos() as u64);
    loop {
        let due_ns = schedule.next_ns();
        if due_ns >= end_ns {
            wait_until(shared, end_ns);
            return;
        }
        if !wait_until(shared, due_ns) {
            return;
        }
        let Ok(permit) = Arc::clone(&shared.in_flight).try_acquire_owned() else {
            lock(&shared.measured).timeline.dropped(due_ns);
            continue;
        };
        let due = choice.next(&mut lock(&shared.population), due_ns);
        shared.started.fetch_add(1, Ordering::SeqCst);
        runtime.spawn(perform::run(Arc::clone(shared), Arc::clone(recorder), due, permit));
    }
}

/// Starts an operation whenever another one has ended, so that as many as permitted are in flight, until the load
/// ends.
fn run_closed<T: Target>(
    shared: &Arc<Shared<T>>,
    recorder: &Arc<Recorder>,
    runtime: &Handle,
    choice: &mut Choice<'_, T>,
) {
    let end_ns = shared.options.duration.map_or(u64::MAX, |d| d.as_nanos() as u64);
    while !shared.stopped.load(Ordering::Relaxed) && shared.now_ns() < end_ns {
        let free = Arc::clone(&shared.in_flight).acquire_owned();
        let permit = runtime.block_on(async { tokio::time::timeout(NAP, free).await });
        let Ok(Ok(permit)) = permit else { continue };
        let due = choice.next(&mut lock(&shared.population), shared.now_ns());
        shared.started.fetch_add(1, Ordering::SeqCst);
        runtime.spawn(perform::run(Arc::clone(shared), Arc::clone(recorder), due, permit));
    }
}

/// Sleeps until `due_ns`, in ns since the start of the run. Returns false if the load was stopped before.
fn wait_until<T>(shared: &Shared<T>, due_ns: u64) -> bool {
    loop {
        if shared.stopped.load(Ordering::Relaxed) {
            return false;
        }
        let now_ns = shared.now_ns();
        if now_ns >= due_ns {
            return true;
        }
        std::thread::sleep(Duration::from_nanos(due_ns - now_ns).min(NAP));
    }
}

/// Generates the times at which operations are due, in ns since the start of the run.
struct Schedule {
    arrival: Arrival,
    gap_ns: f64,
    at_ns: f64,
    rng: StdRng,
}

impl Schedule {
    fn new<T>(shared: &Shared<T>) -> Self {
        let options = &shared.options;
        let rng = StdRng::seed_from_u64(options.seed ^ 0x5eed);
        Self { arrival: options.arrival, gap_ns: 1e9 / options.rate_per_s, at_ns: 0.0, rng }
    }

    fn next_ns(&mut self) -> u64 {
        self.at_ns += match self.arrival {
            Arrival::Uniform | Arrival::Closed => self.gap_ns,
            // `1 - u` is in (0, 1], so the logarithm is finite.
            Arrival::Poisson => -(1.0 - self.rng.random::<f64>()).ln() * self.gap_ns,
        };
        self.at_ns as u64
    }
}

/// Draws the kinds and keys of operations, and assigns the numbers (`seq`) of writes.
struct Choice<'a, T> {
    shared: &'a Shared<T>,
    chooser: Chooser,
    next_seq: u64,
    rng: StdRng,
}

impl<'a, T> Choice<'a, T> {
    fn new(shared: &'a Shared<T>) -> Self {
        let options = &shared.options;
        Self {
            shared,
            chooser: Chooser::new(options.keys, options.preloaded, options.seed),
            // The preloaded documents have the numbers of their keys.
            next_seq: options.preloaded,
            rng: StdRng::seed_from_u64(options.seed),
        }
    }

    fn next(&mut self, population: &mut Population, intended_ns: u64) -> Due {
        let wanted = self.shared.options.mix_at(intended_ns).pick(self.rng.random());
        // While no document exists, the operation must be an insert.
        let (kind, key) = match (wanted, self.existing(population)) {
            (Kind::Insert, _) | (_, None) => (Kind::Insert, self.vacant(population)),
            (kind, Some(key)) => (kind, key),
        };
        let mut seq = 0;
        if kind.writes() {
            seq = self.next_seq;
            self.next_seq += 1;
        }
        Due { kind, key, seq, intended_ns }
    }

    fn existing(&mut self, population: &Population) -> Option<u64> {
        let mut key = self.chooser.choose(population.settled(), &mut self.rng)?;
        for _ in 0..REDRAWS {
            if !population.is_gone(key) {
                break;
            }
            key = self.chooser.choose(population.settled(), &mut self.rng)?;
        }
        Some(key)
    }

    fn vacant(&mut self, population: &mut Population) -> u64 {
        let again = self.rng.random::<f64>() < self.shared.options.reinsert;
        let spare = if again { population.take_deleted() } else { None };
        spare.unwrap_or_else(|| population.assign())
    }
}

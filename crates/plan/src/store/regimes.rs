//! The regimes of a workload, which are the workloads between which it alternates, and which of them are expected: a
//! change of the design has to save more than it costs over these (MorphoSys, §5.3.1).
//!
//! The paper predicts the workload from samples of the last seconds. Where two workloads alternate, a design that is
//! best for the last seconds is the worst one a moment later. So time is divided into slices. Slices with similar
//! accesses ([`signature`]) are one *regime*, which has samples, rate and latency of its own, by its own time. The
//! lengths of past regimes, and whether they returned, give the time that the present one is expected to last, and the
//! share of the time after it that other known regimes take ([`expected`]). A workload that never changed is expected
//! to stay, and a change for one that keeps moving to new keys is credited with little.
//!
//! A slice that fits no regime is held back until the next one, because a slice in which one workload follows another
//! is not a regime. If the next slice fits no regime either, it begins a new one.
//!
//! Invariants:
//! - Everything is bounded: the number of regimes, the samples of each, the open slice, and the latencies.
//! - Samples of different regimes are never priced as if they ran at the same time.

use std::collections::VecDeque;

use super::layout::Key;
use super::reservoir::Reservoir;
use super::workload::Sample;

mod expected;
mod latencies;
mod signature;

pub use expected::{Expected, OtherRegime};
pub use latencies::{Latencies, Latency};
use signature::Signature;

/// Limit on the number of regimes that are remembered.
const REGIMES_MAX: usize = 6;
/// Limit on the number of samples of the open slice; later ones are dropped.
const OPEN_MAX: usize = 8_192;
/// Longest slice, as a multiple of [`Settings::slice_ms`]: a slice with few samples is extended.
const SLICES_MAX: u64 = 4;
/// A slice with fewer samples than this belongs to the present regime.
const SLICE_SAMPLES_MIN: usize = 12;
/// Weight of a measurement in the moving mean of concurrent transactions, from 0 to 1.
const MEAN_RATE: f64 = 0.3;
/// Factor on the weight of earlier turns from one regime to another, at each new one.
const TURN_DECAY: f64 = 0.95;

/// The settings by which a workload is divided into regimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Limit on the number of samples that are kept for each regime.
    pub samples: usize,
    /// Longest age of a sample, in ms of its regime's own time.
    pub window_ms: u64,
    /// Length of a slice of time, in ms.
    pub slice_ms: u64,
    /// Time for which a slice that is over waits for late samples, in ms.
    pub grace_ms: u64,
    /// Least number of samples of a slice: one with fewer is extended, up to four times its length.
    pub slice_samples: usize,
    /// Number of draws by which transactions are generated for a decision, in addition to the samples: see
    /// [`super::decide::emulated`].
    pub generated: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            samples: 1_000,
            window_ms: 5_000,
            slice_ms: 500,
            grace_ms: 250,
            slice_samples: 40,
            generated: 100,
        }
    }
}

/// A sampled transaction, as it is offered to the regimes.
#[derive(Clone, Debug)]
pub struct ObservedTransaction<K> {
    /// Time at which the transaction began, in ms of the planner's clock.
    pub at_ms: u64,
    /// Number of transactions that the sample stands for, itself included.
    pub every: u32,
    /// Latency of the transaction, in µs.
    pub latency_us: f64,
    /// A random number from 0 up to 1, by which the reservoir decides whether it takes the sample.
    pub chance: f64,
    /// The keys that the transaction accessed, and its numbers of rows.
    pub sample: Sample<K>,
}

/// A span of time, in ms, with the samples of transactions that began in it.
#[derive(Clone, Debug)]
struct Slice<K> {
    from_ms: u64,
    to_ms: u64,
    seen: Vec<ObservedTransaction<K>>,
}

/// A workload that occurred, once or several times, with its samples.
#[derive(Clone, Debug)]
struct Regime<K> {
    id: u64,
    signature: Signature<K>,
    reservoir: Reservoir<Sample<K>>,
    /// The regime's own time: the sum of the lengths of its slices, in ms.
    clock_ms: u64,
    /// Length in ms, and number of transactions, of each of the last slices.
    rates: VecDeque<(u64, f64)>,
    /// Moving mean of the number of concurrent transactions in the regime; `None` if it was never measured.
    population: Option<f64>,
    visits: u32,
    /// Start of the regime's last visit (time as the present regime), in ms of the planner's clock.
    since_ms: u64,
    /// End of the regime's last slice, in ms of the planner's clock.
    last_ms: u64,
    /// Moving mean of the length of the regime's visits that ended, in ms; `None` if none ended.
    visit_ms: Option<f64>,
}

/// The regimes of a workload, the open slice of time, and how often the workload turned from one regime to another.
#[derive(Clone, Debug)]
pub struct Regimes<K> {
    settings: Settings,
    open: Vec<ObservedTransaction<K>>,
    open_ms: Option<u64>,
    pending_slice: Option<Slice<K>>,
    known: Vec<Regime<K>>,
    now: usize,
    next_id: u64,
    now_ms: u64,
    /// Number of turns from one regime to another; older ones count less.
    turns: f64,
    /// Number of turns that led back to a known regime; older ones count less.
    returns: f64,
    latencies: Latencies,
}

impl<K: Key> Regimes<K> {
    /// Creates the state before the first regime, without any sample.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            open: Vec::new(),
            open_ms: None,
            pending_slice: None,
            known: Vec::new(),
            now: 0,
            next_id: 0,
            now_ms: 0,
            turns: 0.0,
            returns: 0.0,
            latencies: Latencies::default(),
        }
    }

    /// Adds a sampled transaction to the open slice.
    pub fn offer(&mut self, seen: ObservedTransaction<K>) {
        if self.open.len() < OPEN_MAX {
            let at_ms = seen.at_ms;
            self.open_ms = Some(self.open_ms.map_or(at_ms, |from_ms| from_ms.min(at_ms)));
            self.open.push(seen);
        }
    }

    /// Records the number of concurrent transactions, at all sites together, for the present regime.
    pub fn under_way(&mut self, transactions: f64) {
        if let Some(now) = self.known.get_mut(self.now) {
            let before = now.population.unwrap_or(transactions);
            now.population = Some(before + MEAN_RATE * (transactions - before));
        }
    }

    /// Advances the time to `now_ms`: slices of time that are over become part of their regimes.
    pub fn pass(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Settings { slice_ms, grace_ms, slice_samples, .. } = self.settings;
        while let Some(from_ms) = self.open_ms {
            let within = |to_ms: u64| self.open.iter().filter(|seen| seen.at_ms < to_ms).count();
            let mut to_ms = from_ms + slice_ms;
            while to_ms < from_ms + SLICES_MAX * slice_ms && within(to_ms) < slice_samples {
                to_ms += slice_ms;
            }
            if now_ms < to_ms + grace_ms {
                break;
            }
            let (seen, open): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.open).into_iter().partition(|seen| seen.at_ms < to_ms);
            self.open = open;
            // After a time without transactions, the next slice begins with the next transaction.
            let next_ms = self.open.iter().map(|seen| seen.at_ms).min();
            self.open_ms =
                next_ms.map(|next_ms| if next_ms < to_ms + slice_ms { to_ms } else { next_ms });
            self.close(Slice { from_ms, to_ms, seen });
        }
        self.latencies.pass(self.now_ms);
    }

    fn close(&mut self, slice: Slice<K>) {
        if self.known.is_empty() {
            self.found(slice, None);
            return;
        }
        if slice.seen.len() < SLICE_SAMPLES_MIN {
            self.join(self.now, slice);
            return;
        }
        let misfit = |regime: &Regime<K>| regime.signature.misfit(&slice.seen);
        if misfit(&self.known[self.now]) <= 0.0 {
            self.pending_slice = None;
            self.join(self.now, slice);
            return;
        }
        let others = self.known.iter().map(misfit).enumerate();
        let nearest = others.min_by(|(_, one), (_, two)| one.total_cmp(two));
        match (nearest.filter(|(_, misfit)| *misfit <= 0.0), self.pending_slice.take()) {
            (Some((regime, _)), _) => {
                self.turn(slice.from_ms, true);
                self.enter(regime, slice.from_ms);
                self.join(regime, slice);
            }
            (None, Some(before)) => {
                let is_like = Signature::of(&before.seen).misfit(&slice.seen) <= 0.0;
                self.found(slice, Some(before).filter(|_| is_like));
            }
            (None, None) => self.pending_slice = Some(slice),
        }
    }

    /// Ends the visit of the present regime at `at_ms`; `is_return` says whether a known regime follows.
    fn turn(&mut self, at_ms: u64, is_return: bool) {
        self.turns = self.turns * TURN_DECAY + 1.0;
        self.returns = self.returns * TURN_DECAY + f64::from(u8::from(is_return));
        let now = &mut self.known[self.now];
        let visit_ms = at_ms.saturating_sub(now.since_ms) as f64;
        now.visit_ms = Some(now.visit_ms.map_or(visit_ms, |mean| f64::midpoint(mean, visit_ms)));
    }

    fn enter(&mut self, regime: usize, at_ms: u64) {
        self.now = regime;
        let now = &mut self.known[regime];
        (now.visits, now.since_ms) = (now.visits + 1, at_ms);
    }

    /// Begins a new regime with `slice`, and with the held-back slice `before` it, if there is one.
    fn found(&mut self, slice: Slice<K>, before: Option<Slice<K>>) {
        let began_ms = before.as_ref().map_or(slice.from_ms, |before| before.from_ms);
        if !self.known.is_empty() {
            self.turn(began_ms, false);
        }
        if self.known.len() == REGIMES_MAX {
            // A regime that never returned is forgotten first; of several, the one that occurred longest ago.
            let worth = |(number, regime): &(usize, &Regime<K>)| {
                (*number == self.now, regime.visits.min(2), regime.last_ms)
            };
            let least = self.known.iter().enumerate().min_by_key(worth).map(|(number, _)| number);
            let gone = self.known.remove(least.unwrap_or(0));
            self.latencies.forget(gone.id);
        }
        self.known.push(Regime {
            id: self.next_id,
            signature: Signature::of(&before.as_ref().unwrap_or(&slice).seen),
            reservoir: Reservoir::new(self.settings.samples, self.settings.window_ms),
            clock_ms: 0,
            rates: VecDeque::new(),
            population: None,
            visits: 0,
            since_ms: began_ms,
            last_ms: began_ms,
            visit_ms: None,
        });
        self.next_id += 1;
        let number = self.known.len() - 1;
        self.enter(number, began_ms);
        for slice in before.into_iter().chain([slice]) {
            self.join(number, slice);
        }
    }

    fn join(&mut self, regime: usize, slice: Slice<K>) {
        let Slice { from_ms, to_ms, seen } = slice;
        let (window_ms, of) = (self.settings.window_ms, &mut self.known[regime]);
        of.signature.add(&seen);
        let (mut sum_us, mut count) = (0.0, 0.0);
        let span_ms = to_ms - from_ms;
        for one in seen {
            let every = f64::from(one.every);
            sum_us += one.latency_us * every;
            count += every;
            let at_ms = of.clock_ms + one.at_ms.saturating_sub(from_ms);
            of.reservoir.offer(at_ms, u64::from(one.every), one.chance, || one.sample);
        }
        of.clock_ms += span_ms;
        of.reservoir.pass(of.clock_ms);
        of.last_ms = to_ms;
        of.rates.push_back((span_ms, count));
        let covered = |of: &Regime<K>| of.rates.iter().map(|(span_ms, _)| span_ms).sum::<u64>();
        while of.rates.len() > 1 && covered(of) > window_ms {
            of.rates.pop_front();
        }
        self.latencies.push(of.id, (from_ms, to_ms), sum_us, count);
    }

    /// Returns the regime that the workload is in; `None` before the first one, and after a whole window without
    /// transactions.
    fn present(&self) -> Option<&Regime<K>> {
        let now = self.known.get(self.now)?;
        (self.now_ms <= now.last_ms + self.settings.window_ms).then_some(now)
    }

    /// Returns the number of the present regime, which is never used for another one; `None` if there is no present
    /// regime.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        self.present().map(|now| now.id)
    }

    /// Returns the number of regimes that are remembered, the present one included.
    #[must_use]
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Returns the samples of the present regime, in no order.
    pub fn samples(&self) -> impl Iterator<Item = &Sample<K>> {
        self.present().into_iter().flat_map(|now| now.reservoir.samples()).map(|(_, sample)| sample)
    }

    /// Returns the number of transactions per second over the last seconds of the present regime; 0 if there is none.
    #[must_use]
    pub fn rate_s(&self) -> f64 {
        self.present().map_or(0.0, Regime::rate_s)
    }

    /// Returns the mean number of concurrent transactions in the present regime; 0 if it is unknown.
    #[must_use]
    pub fn population(&self) -> f64 {
        self.present().and_then(|now| now.population).unwrap_or(0.0)
    }

    /// Returns the number of draws by which transactions are generated: [`Settings::generated`].
    pub(super) fn generated(&self) -> usize {
        self.settings.generated
    }

    /// Returns the measured latencies of each regime, with their times.
    #[must_use]
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}

impl<K> Regime<K> {
    fn rate_s(&self) -> f64 {
        let sum = self.rates.iter().fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        sum.1 * 1_000.0 / sum.0.max(1) as f64
    }
}

#[cfg(test)]
mod tests;

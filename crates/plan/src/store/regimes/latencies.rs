//! Measured latencies by regime: the latencies of one workload do not judge a change that was made for another.

use std::collections::{BTreeMap, VecDeque};

/// A measured mean latency of transactions, with its uncertainty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean latency, in µs.
    pub mean_us: f64,
    /// Standard error of the mean latency, in µs.
    pub error_us: f64,
}

/// Time for which the latencies of a slice are remembered, in ms.
const REMEMBERED_MS: u64 = 900_000;
/// Limit on the number of slices of one regime that are remembered.
const SLICES_MAX: usize = 4_000;

/// A slice of a regime: its span in ms of the planner's clock, the sum of its transactions' latencies in µs, and the
/// number of its transactions.
#[derive(Clone, Copy, Debug)]
struct Measured {
    from_ms: u64,
    to_ms: u64,
    sum_us: f64,
    count: f64,
}

/// Measured latencies of transactions, by the regime and the slice of time in which they began.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    slices: BTreeMap<u64, VecDeque<Measured>>,
}

impl Latencies {
    /// Adds a slice of the regime with number `regime`: its span in ms of the planner's clock, the sum of its
    /// transactions' latencies in µs, and the number of its transactions.
    pub fn push(&mut self, regime: u64, (from_ms, to_ms): (u64, u64), sum_us: f64, count: f64) {
        let of = self.slices.entry(regime).or_default();
        of.push_back(Measured { from_ms, to_ms, sum_us, count });
        if of.len() > SLICES_MAX {
            of.pop_front();
        }
    }

    pub(super) fn pass(&mut self, now_ms: u64) {
        let oldest_ms = now_ms.saturating_sub(REMEMBERED_MS);
        for of in self.slices.values_mut() {
            while of.front().is_some_and(|one| one.to_ms < oldest_ms) {
                of.pop_front();
            }
        }
        self.slices.retain(|_, of| !of.is_empty());
    }

    pub(super) fn forget(&mut self, regime: u64) {
        self.slices.remove(&regime);
    }

    /// Returns the numbers of the regimes for which latencies are remembered.
    pub fn regimes(&self) -> impl Iterator<Item = u64> {
        self.slices.keys().copied()
    }

    /// Returns the mean latency over the last `span_ms` ms of a regime's own time (the sum of its slices); `None` if
    /// it is unknown.
    #[must_use]
    pub fn last(&self, regime: u64, span_ms: u64) -> Option<Latency> {
        let of = self.slices.get(&regime)?;
        let mut covered_ms = 0;
        mean(of.iter().rev().take_while(|one| {
            let is_within = covered_ms < span_ms;
            covered_ms += one.to_ms - one.from_ms;
            is_within
        }))
    }

    /// Returns the mean latency over the last `span_ms` ms of a regime's own time, from slices that began at `at_ms`
    /// or later; `None` as long as these cover less than `span_ms`.
    #[must_use]
    pub fn since(&self, regime: u64, at_ms: u64, span_ms: u64) -> Option<Latency> {
        let since = || {
            self.slices
                .get(&regime)
                .into_iter()
                .flatten()
                .rev()
                .take_while(|one| one.from_ms >= at_ms)
        };
        let covered_ms: u64 = since().map(|one| one.to_ms - one.from_ms).sum();
        let of_last = || self.last_since(regime, at_ms, span_ms);
        (covered_ms >= span_ms).then(of_last).flatten()
    }

    fn last_since(&self, regime: u64, at_ms: u64, span_ms: u64) -> Option<Latency> {
        let mut covered_ms = 0;
        mean(self.slices.get(&regime)?.iter().rev().take_while(|one| {
            let is_within = covered_ms < span_ms && one.from_ms >= at_ms;
            covered_ms += one.to_ms - one.from_ms;
            is_within
        }))
    }
}

/// Returns the mean latency of the slices' transactions, with an error estimated from the means of the slices; `None`
/// without transactions.
fn mean<'m>(slices: impl Iterator<Item = &'m Measured>) -> Option<Latency> {
    let slices: Vec<&Measured> = slices.filter(|one| one.count > 0.0).collect();
    let count: f64 = slices.iter().map(|one| one.count).sum();
    let mean_us =
        (count > 0.0).then(|| slices.iter().map(|one| one.sum_us).sum::<f64>() / count)?;
    let far = slices.iter().map(|one| (one.sum_us / one.count - mean_us).powi(2)).sum::<f64>();
    Some(Latency { mean_us, error_us: far.sqrt() / slices.len() as f64 })
}

//! Miss-ratio curves: exactly, from a sample of keys, and by simulation, beside one pass over the trace.
//!
//! No server takes part. The trace is drawn by Zipf's law, in eight phases as those of a chain. The floor is a pass
//! over the same trace that enters each key into a hash map, which any account of reuse does at least.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash as _, Hasher};
use std::time::Instant;

use imago_plan::reuse::{self, Curve, Policy, Reference, Sampling, Start};
use imago_workload::keys::{Chooser, Distribution};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::Header;
use crate::statistics::Figure;

/// Phases of the trace.
const PHASES: usize = 8;
/// Capacities at which curves are compared.
const CAPACITIES: u64 = 100;
/// The share of keys in a miniature simulation.
const RATE: f64 = 0.05;
/// Capacities that are simulated.
const SIMULATED: u64 = 4;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// References of the trace.
    pub references: u64,
    /// Keys that there are.
    pub keys: u64,
    /// The exponent of Zipf's law.
    pub skew: f64,
    /// Keys of a sample.
    pub samples: usize,
    /// Traces, each with a draw of its own; figures are medians.
    pub runs: u32,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The exact curve at all capacities, in seconds.
    pub exact_s: f64,
    /// Entering each reference's key into a hash map.
    pub floor_s: f64,
    /// The exact curve's time, of the floor.
    pub ratio_to_floor: f64,
    /// The curve from a sample, in seconds.
    pub sampled_s: f64,
    /// The same, of the exact curve's time.
    pub sampled_ratio_to_exact: f64,
    /// By how much the sample's miss ratio is off, the mean of a hundred capacities up to all bytes.
    pub sampled_error: f64,
    /// The same, the largest of all runs.
    pub sampled_error_max: f64,
    /// The largest memory of a sample, in bytes.
    pub sampled_bytes_max: u64,
    /// Miniature simulations of Redis's LRU and LFU at four capacities each, in seconds.
    pub simulated_s: f64,
    /// By how much the simulated LRU's miss ratio is off the exact one of true LRU, the mean of four capacities.
    pub simulated_lru_error: f64,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::exact_s`].
    pub exact_s: Figure,
    /// See [`Report::ratio_to_floor`].
    pub ratio_to_floor: Figure,
    /// See [`Report::sampled_s`].
    pub sampled_s: Figure,
    /// See [`Report::sampled_error`].
    pub sampled_error: Figure,
    /// See [`Report::simulated_s`].
    pub simulated_s: Figure,
}

/// Measures.
///
/// # Panics
/// If there are no keys, or the skew is negative or not a number.
#[must_use]
pub fn run(size: Size) -> Report {
    let runs: Vec<Run> = (0..size.runs.max(1)).map(|seed| once(size, seed.into())).collect();
    let figure = |of: fn(&Run) -> f64| Figure::of(runs.iter().map(of));
    let spread = Spread {
        exact_s: figure(|run| run.exact_s),
        ratio_to_floor: figure(|run| run.exact_s / run.floor_s),
        sampled_s: figure(|run| run.sampled_s),
        sampled_error: figure(|run| run.sampled_error),
        simulated_s: figure(|run| run.simulated_s),
    };
    Report {
        header: Header::of("reuse", size),
        exact_s: spread.exact_s.median,
        floor_s: figure(|run| run.floor_s).median,
        ratio_to_floor: spread.ratio_to_floor.median,
        sampled_s: spread.sampled_s.median,
        sampled_ratio_to_exact: figure(|run| run.sampled_s / run.exact_s).median,
        sampled_error: spread.sampled_error.median,
        sampled_error_max: spread.sampled_error.max,
        sampled_bytes_max: runs.iter().map(|run| run.sampled_bytes).max().unwrap_or(0),
        simulated_s: spread.simulated_s.median,
        simulated_lru_error: figure(|run| run.simulated_lru_error).median,
        spread,
    }
}

struct Run {
    exact_s: f64,
    floor_s: f64,
    sampled_s: f64,
    sampled_error: f64,
    sampled_bytes: u64,
    simulated_s: f64,
    simulated_lru_error: f64,
}

fn once(size: Size, seed: u64) -> Run {
    let mut dice = StdRng::seed_from_u64(seed);
    let phases = drawn(size, &mut dice);
    let (_, floor_s) = timed(|| entered(&phases));
    let (exact, exact_s) = timed(|| reuse::exact(&phases, Start::Cold));
    let sampling = Sampling { keys: size.samples, seed };
    let ((sampled, sampled_bytes), sampled_s) =
        timed(|| reuse::sampled_with_bytes(&phases, Start::Cold, sampling));
    let capacity = |n: u64, of: u64| exact.distinct_bytes() * n / of;
    let capacities: Vec<u64> = (1..=SIMULATED).map(|n| capacity(n, SIMULATED + 1)).collect();
    let minute = (size.references as f64 / 10.0).max(1.0);
    let lfu = Policy::SampledLfu {
        samples: 5,
        log_factor: 10,
        decay_minutes: 1,
        references_per_minute: minute,
    };
    let mut simulated =
        |policy| reuse::simulated(&phases, Start::Cold, policy, &capacities, RATE, &mut dice);
    let (lru, lru_s) = timed(|| simulated(Policy::SampledLru { samples: 5 }));
    let (_, lfu_s) = timed(|| simulated(lfu));
    let compared: Vec<u64> = (1..=CAPACITIES).map(|n| capacity(n, CAPACITIES)).collect();
    Run {
        exact_s,
        floor_s,
        sampled_s,
        sampled_error: error(&sampled, &exact, &compared),
        sampled_bytes: sampled_bytes as u64,
        simulated_s: lru_s + lfu_s,
        simulated_lru_error: error(&lru, &exact, &capacities),
    }
}

/// The mean distance of two curves' miss ratios.
fn error(one: &Curve, other: &Curve, capacities: &[u64]) -> f64 {
    let errors = capacities.iter().map(|at| (one.miss_ratio(*at) - other.miss_ratio(*at)).abs());
    errors.sum::<f64>() / capacities.len() as f64
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed().as_secs_f64())
}

/// References by Zipf's law; an entry takes 200 to 700 bytes, always the same for the same key.
fn drawn(size: Size, dice: &mut StdRng) -> Vec<Vec<Reference>> {
    let distribution = Distribution::named("zipf", size.skew).expect("the caller checks the skew");
    let mut chooser = Chooser::new(distribution, size.keys, 1);
    let mut reference = |_| {
        let number =
            chooser.choose(size.keys, dice).expect("the caller checks that there are keys");
        let mut hasher = DefaultHasher::new();
        number.hash(&mut hasher);
        let key = hasher.finish();
        Reference { key, bytes: 200 + (key % 500) as u32 }
    };
    let phases = PHASES as u64;
    (0..phases)
        .map(|number| {
            let references =
                size.references * (number + 1) / phases - size.references * number / phases;
            (0..references).map(&mut reference).collect()
        })
        .collect()
}

/// Keys are hashes already.
#[derive(Default)]
struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// The floor: how many distinct keys there are.
fn entered(phases: &reuse::Phases) -> usize {
    let mut seen: HashMap<u64, u32, BuildHasherDefault<Unhashed>> = HashMap::default();
    for reference in phases.iter().flatten() {
        seen.insert(reference.key, reference.bytes);
    }
    std::hint::black_box(seen.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_near_the_exact_curve() {
        let size = Size { references: 200_000, keys: 50_000, skew: 0.9, samples: 4_000, runs: 2 };
        let report = run(size);
        assert!(report.sampled_error_max <= 0.03, "{report:?}");
        assert!(report.simulated_lru_error <= 0.05, "{report:?}");
        assert!(report.sampled_bytes_max > 0 && report.exact_s > 0.0, "{report:?}");
    }
}

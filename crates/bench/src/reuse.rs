//! Benchmark of miss-ratio curves: exact, from a sample of keys, and by simulation, compared with one pass over the
//! trace.
//!
//! No server takes part. The trace is drawn by Zipf's law, in eight phases like those of a chain. The floor is a pass
//! over the same trace that inserts each key into a hash map: every computation of reuse has to do at least that.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash as _, Hasher};
use std::time::Instant;

use imago_plan::provision::reuse::{self, Curve, Policy, Reference, Sampling, Start};
use imago_workload::keys::{Chooser, Distribution};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::Header;
use crate::statistics::Figure;

/// Number of phases of the trace.
const PHASES: usize = 8;
/// Number of capacities at which curves are compared.
const CAPACITIES: u64 = 100;
/// Share of the keys in a miniature simulation.
const RATE: f64 = 0.05;
/// Number of capacities that are simulated.
const SIMULATED: u64 = 4;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of references in the trace.
    pub references: u64,
    /// Number of keys from which references are drawn.
    pub keys: u64,
    /// Exponent of Zipf's law.
    pub skew: f64,
    /// Number of keys in a sample.
    pub samples: usize,
    /// Number of traces, each with its own draw; figures are medians.
    pub runs: u32,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Time to compute the exact curve for all capacities, in seconds.
    pub exact_s: f64,
    /// Time to insert the key of each reference into a hash map, in seconds.
    pub floor_s: f64,
    /// Time of the exact curve divided by the floor.
    pub ratio_to_floor: f64,
    /// Time to compute the curve from a sample, in seconds.
    pub sampled_s: f64,
    /// Time of the curve from a sample divided by the time of the exact curve.
    pub sampled_ratio_to_exact: f64,
    /// Absolute error of the miss ratio from a sample, from 0 to 1: the mean over a hundred capacities up to the
    /// bytes of all keys.
    pub sampled_error: f64,
    /// The largest such error of all runs.
    pub sampled_error_max: f64,
    /// Largest memory that a sample takes, in bytes.
    pub sampled_bytes_max: u64,
    /// Time of the miniature simulations of Redis's LRU and LFU at four capacities each, in seconds.
    pub simulated_s: f64,
    /// Absolute difference of the miss ratios of the simulated LRU and of exact true LRU, from 0 to 1: the mean over
    /// four capacities.
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

/// Runs the benchmark and returns its report.
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
        references_per_s: minute / 60.0,
    };
    let mut simulated =
        |policy| reuse::simulated(&phases, Start::Cold, policy, &capacities, RATE, &mut dice);
    let (lru, lru_s) =
        timed(|| simulated(Policy::SampledLru { samples: 5, references_per_s: None }));
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

/// Returns the mean absolute difference of the miss ratios of two curves.
fn error(one: &Curve, other: &Curve, capacities: &[u64]) -> f64 {
    let errors = capacities.iter().map(|at| (one.miss_ratio(*at) - other.miss_ratio(*at)).abs());
    errors.sum::<f64>() / capacities.len() as f64
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed().as_secs_f64())
}

/// Draws references by Zipf's law. An entry has 200 to 699 bytes, always the same for the same key.
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

/// A hasher that returns its input, because keys are hashes already.
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

/// Inserts all keys into a hash map, which is the floor. Returns the number of distinct keys.
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

//! Computes the curve of hits of an LRU cache from a sample of keys: SHARDS (Waldspurger et al., FAST 2015) of fixed
//! size.
//!
//! A key is in the sample if its hash is below a threshold, so either all of its references are sampled or none. When
//! there are more keys than the sample may hold, the one with the largest hash is removed, and its hash becomes the new
//! threshold: the rate decreases as keys arrive. A reference sampled at the rate R represents 1/R references, and the
//! bytes of other keys in its stack distance represent 1/R as many.
//!
//! The estimates are corrected to the true number of references, not quite as in the paper: see the module `repeats`.
//!
//! Memory does not grow with the trace: the sample is bounded, and hits are counted in buckets whose width is a small
//! fraction of the distance. The result depends on the trace and the seed alone.

use std::collections::BinaryHeap;

use super::curve::{Phase, Steps};
use super::hashed::scattered;
use super::repeats::{Repeats, Scale, Weights};
use super::stack::Stack;
use super::{Curve, Phases, Reference, Start};

/// The size and the seed of a sample of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Limit on the number of keys in the sample, at least 1; the error is proportional to 1/√keys.
    pub keys: usize,
    /// Seed of the hash by which keys are sampled; another seed samples other keys.
    pub seed: u64,
}

impl Default for Sampling {
    /// Returns 8,192 keys: a mean error of the miss ratio below 0.01.
    fn default() -> Self {
        Self { keys: 8_192, seed: 0 }
    }
}

/// Computes the curve of hits of an LRU cache by sampling; a step lies in the middle of its bucket. For a trace with
/// fewer keys than the sample may hold, the curve is exact except for the width of the buckets.
///
/// Size changes are followed. Once keys leave the sample, evictions caused by a size change are not accounted for as in
/// [`exact`](fn@super::exact).
///
/// # Panics
/// If the sample has no keys.
#[must_use]
pub fn sampled(phases: &Phases, start: Start, sampling: Sampling) -> Curve {
    sampled_with_bytes(phases, start, sampling).0
}

/// Computes the same curve as [`sampled`], and returns it with the peak memory of the sample in bytes: its structures
/// never shrink.
///
/// # Panics
/// As [`sampled`].
#[must_use]
pub fn sampled_with_bytes(phases: &Phases, start: Start, sampling: Sampling) -> (Curve, usize) {
    assert!(sampling.keys > 0, "a sample has at least one key");
    let mut sampler = Sampler::new(sampling, phases.len());
    for counts in start.passes() {
        for (number, references) in phases.iter().enumerate() {
            sampler.phase(number, references, *counts);
        }
    }
    let bytes = sampler.bytes();
    let held = sampler.stack.held();
    let sample_bytes = held.last().map_or(0, |(_, held)| *held) as f64;
    let scale = sampler.scale.factor(sample_bytes / sampler.rate());
    let up = scale / sampler.rate();
    let counted = phases.iter().zip(sampler.buckets).map(|(references, buckets)| {
        let references = references.len() as u64;
        Phase { references, hits: buckets.steps(references, scale) }
    });
    let up = |bytes: u64| (bytes as f64 * up).round() as u64;
    let held: Vec<_> = held.into_iter().map(|(depth, held)| (up(depth), up(held))).collect();
    let distinct_bytes = held.last().map_or(0, |(_, held)| *held);
    (Curve::new(counted.collect(), held, distinct_bytes), bytes)
}

/// The sampled keys of a trace, and the counts of their references so far.
struct Sampler {
    sampling: Sampling,
    /// Keys whose hash is below this threshold are sampled.
    threshold: u64,
    stack: Stack,
    /// Hashes and keys of the sample, the key with the largest hash first.
    largest: BinaryHeap<(u64, u64)>,
    repeats: Repeats,
    scale: Scale,
    buckets: Vec<Buckets>,
}

/// The classification of a reference by the sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    NotSampled,
    /// The first reference to a sampled key.
    Cold,
    /// The reference is a hit in every cache of at least this capacity, in bytes.
    Distance(u64),
}

impl Sampler {
    fn new(sampling: Sampling, phases: usize) -> Self {
        let precision = Buckets::precision(phases);
        Self {
            sampling,
            threshold: u64::MAX,
            stack: Stack::new(),
            largest: BinaryHeap::with_capacity(sampling.keys + 1),
            repeats: Repeats::default(),
            scale: Scale::default(),
            buckets: vec![Buckets::new(precision); phases],
        }
    }

    /// Returns the share of all keys that are sampled, from 0 to 1.
    fn rate(&self) -> f64 {
        self.threshold as f64 / u64::MAX as f64
    }

    /// Processes the references of the phase with index `number`, and counts them if `counts` is true.
    fn phase(&mut self, number: usize, references: &[Reference], counts: bool) {
        for reference in references {
            let outcome = self.refer(*reference);
            if counts {
                self.count(number, *reference, outcome);
            }
        }
        if counts {
            self.scale.pass(references.len() as u64);
        }
    }

    fn refer(&mut self, reference: Reference) -> Outcome {
        let Reference { key, bytes } = reference;
        let hash = scattered(key, self.sampling.seed);
        if hash >= self.threshold {
            return Outcome::NotSampled;
        }
        if let Some(depth) = self.stack.refer(key, bytes) {
            let others = depth.saturating_sub(u64::from(bytes)) as f64;
            return Outcome::Distance(u64::from(bytes) + (others / self.rate()).round() as u64);
        }
        self.largest.push((hash, key));
        if self.largest.len() <= self.sampling.keys {
            return Outcome::Cold;
        }
        if let Some((largest, leaves)) = self.largest.pop() {
            self.threshold = largest;
            self.stack.remove(leaves);
            self.repeats.remove(leaves);
            self.scale.remove(leaves);
        }
        if hash < self.threshold { Outcome::Cold } else { Outcome::NotSampled }
    }

    fn count(&mut self, phase: usize, reference: Reference, outcome: Outcome) {
        let distance = match outcome {
            Outcome::NotSampled => return,
            Outcome::Cold => None,
            Outcome::Distance(distance) => Some(distance),
        };
        let Reference { key, bytes } = reference;
        let square = self.repeats.square(phase, key);
        let weight = 1.0 / self.rate();
        self.scale.count(key, bytes, weight);
        self.buckets[phase].count(distance, weight, square);
    }

    /// Returns the current memory of all structures of the sampler, in bytes.
    fn bytes(&self) -> usize {
        let buckets: usize = self.buckets.iter().map(Buckets::bytes).sum();
        let largest = self.largest.capacity() * size_of::<(u64, u64)>();
        self.stack.bytes() + largest + self.repeats.bytes() + self.scale.bytes() + buckets
    }
}

/// Hits of one phase by stack distance, with 2^precision buckets for each doubling of the distance; exact for small
/// distances.
#[derive(Clone, Debug)]
struct Buckets {
    precision: u32,
    /// Weighted number of all sampled references of the phase, hits or not.
    all: Weights,
    hits: Vec<Weights>,
}

/// Limit on the memory of the buckets of all phases together, in bytes.
const BUCKETS_BYTES_MAX: usize = 8 << 20;

impl Buckets {
    /// Returns the precision for this number of phases: the number of buckets for each doubling of the distance, as a
    /// power of two, is as large as memory permits, from 2 to 512.
    fn precision(phases: usize) -> u32 {
        let fit = BUCKETS_BYTES_MAX / (64 * size_of::<Weights>() * phases.max(1));
        fit.max(2).ilog2().min(9)
    }

    fn new(precision: u32) -> Self {
        Self { precision, all: Weights::default(), hits: Vec::new() }
    }

    fn count(&mut self, distance: Option<u64>, weight: f64, square: f64) {
        self.all.add(weight, square);
        let Some(distance) = distance else { return };
        let bucket = self.bucket(distance);
        if bucket >= self.hits.len() {
            self.hits.reserve_exact(bucket + 1 - self.hits.len());
            self.hits.resize(bucket + 1, Weights::default());
        }
        self.hits[bucket].add(weight, square);
    }

    fn bucket(&self, distance: u64) -> usize {
        let doublings = (distance.max(1).ilog2()).saturating_sub(self.precision);
        ((u64::from(doublings) << self.precision) + (distance >> doublings)) as usize
    }

    /// Returns the stack distance in the middle of the bucket with this index, in bytes.
    fn distance(&self, bucket: usize) -> u64 {
        let (bucket, width) = (bucket as u64, 1 << self.precision);
        let doublings = (bucket / width).saturating_sub(1);
        let first = (bucket - doublings * width) << doublings;
        first + ((1 << doublings) - 1) / 2
    }

    /// Returns the corrected steps of a phase with `references` references; their distances are multiplied by `scale`.
    /// If no reference was sampled, the hits are unknown, and there are no steps.
    fn steps(&self, references: u64, scale: f64) -> Steps {
        let references = references as f64;
        let (mut sum, mut hits) = (Weights::default(), 0.0f64);
        let mut steps = Steps::default();
        for (bucket, counted) in self.hits.iter().enumerate() {
            if counted.references > 0.0 {
                sum.references += counted.references;
                sum.squares += counted.squares;
                // Cumulative hits must not decrease from one step to the next.
                hits = sum.adjusted(self.all, references).clamp(hits, references);
                let distance = (self.distance(bucket) as f64 * scale).round() as u64;
                steps.step(distance.max(1), hits);
            }
        }
        steps
    }

    fn bytes(&self) -> usize {
        self.hits.capacity() * size_of::<Weights>()
    }
}

#[cfg(test)]
mod tests;

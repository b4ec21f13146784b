//! Computes curves of hits for policies without stack distances: a simulation at each capacity, scaled down by
//! sampling keys.
//!
//! A cache of `C` bytes referenced by all keys is simulated by one of `C × rate` bytes referenced by the share `rate`
//! of the keys, selected by their hash (Waldspurger et al., USENIX ATC 2017). Time advances also with the references
//! that are left out. A hit counts as `1 / rate`, and hits are corrected to the true number of references: see the
//! module `repeats`. The error is that of the sample, so the smallest capacity times the rate should hold some hundreds
//! of entries.
//!
//! The policies are those of Redis 7 (`redis`), no eviction, and two by which other caches evict (`queues`).

mod queues;
mod redis;
mod table;

use rand::Rng;

use super::curve::{Phase, Steps};
use super::hashed::{KeyMap, scattered};
use super::repeats::{Repeats, Scale, Weights};
use super::{Curve, Phases, Reference, Start};
use queues::{First, S3Fifo, Sieve};
use redis::Cache;

/// The eviction policy of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// `allkeys-lru`: evicts the least recently used of some sampled entries.
    SampledLru {
        /// `maxmemory-samples`: number of entries sampled for each eviction; Redis's default is 5.
        samples: u32,
        /// References per second, which drive Redis's clock of seconds; `None` for a clock that tells all references apart.
        references_per_s: Option<f64>,
    },
    /// `allkeys-lfu`: evicts the least frequently used of some sampled entries, by a counter of 8 bits that grows with
    /// the logarithm of the uses and decays with time.
    SampledLfu {
        /// `maxmemory-samples`: number of entries sampled for each eviction; Redis's default is 5.
        samples: u32,
        /// `lfu-log-factor`: the larger it is, the more uses a counter needs to grow; Redis's default is 10.
        log_factor: u32,
        /// `lfu-decay-time`: minutes after which an unused counter decreases by one; 0 for never; Redis's default is 1.
        decay_minutes: u32,
        /// References per second, which drive the clock of minutes.
        references_per_s: f64,
    },
    /// `noeviction`: keeps what came first, and takes nothing more when it is full.
    NoEviction,
    /// SIEVE: a queue in the order of arrival, whose hand passes over entries that were used since it last came by (Zhang et
    /// al., "SIEVE is Simpler than LRU", NSDI 2024). No Redis has it.
    Sieve,
    /// S3-FIFO: a small queue for new entries, a main one for those that were used again, and a queue of the keys that were
    /// evicted (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023). No Redis has it.
    S3Fifo,
}

impl Policy {
    fn samples(self) -> u32 {
        match self {
            Self::SampledLru { samples, .. } | Self::SampledLfu { samples, .. } => samples,
            Self::NoEviction | Self::Sieve | Self::S3Fifo => 1,
        }
    }
}

/// Simulates a cache with this policy at each of the given capacities, in bytes, and returns its curve of hits.
/// Between two capacities the curve has the hits of the smaller one, below the smallest it has none. A capacity of 0
/// has no hits. `rate` is the share of keys that are simulated; 1 simulates the cache in full.
///
/// # Panics
/// If the rate is not above 0 and at most 1, or if the policy samples no entries.
#[must_use]
pub fn simulated(
    phases: &Phases,
    start: Start,
    policy: Policy,
    capacities_bytes: &[u64],
    rate: f64,
    rng: &mut impl Rng,
) -> Curve {
    assert!(rate > 0.0 && rate <= 1.0, "a rate of {rate} is not a share of keys");
    assert!(policy.samples() > 0, "a policy that looks at no entries evicts none");
    let (sample, distinct_bytes) = Sample::of(phases, rate, rng.next_u64());
    let mut capacities: Vec<u64> = capacities_bytes.to_vec();
    capacities.sort_unstable();
    capacities.dedup();
    let mut steps = vec![Steps::default(); phases.len()];
    let mut held = Vec::with_capacity(capacities.len());
    for capacity in capacities {
        let cache = Simulated::new(policy, sample.down(capacity));
        let (hits, held_bytes) = sample.simulate(phases, start, cache, rng);
        held.push((capacity, sample.up(held_bytes).min(capacity)));
        for (steps, hits) in steps.iter_mut().zip(hits) {
            steps.step(capacity, hits);
        }
    }
    let references = phases.iter().map(|references| references.len() as u64);
    let counted =
        references.zip(steps).map(|(references, hits)| Phase { references, hits }).collect();
    Curve::new(counted, held, distinct_bytes)
}

/// A simulated cache.
#[derive(Debug)]
enum Simulated {
    Redis(Cache),
    NoEviction(First),
    Sieve(Sieve),
    S3Fifo(S3Fifo),
}

impl Simulated {
    fn new(policy: Policy, capacity: u64) -> Self {
        match policy {
            Policy::SampledLru { .. } | Policy::SampledLfu { .. } => {
                Self::Redis(Cache::new(policy, capacity))
            }
            Policy::NoEviction => Self::NoEviction(First::new(capacity)),
            Policy::Sieve => Self::Sieve(Sieve::new(capacity)),
            Policy::S3Fifo => Self::S3Fifo(S3Fifo::new(capacity)),
        }
    }

    /// Looks the key up and stores its entry; `time` is the number of references so far. Returns true for a hit.
    fn refer(&mut self, reference: Reference, time: u64, rng: &mut impl Rng) -> bool {
        match self {
            Self::Redis(cache) => cache.refer(reference, time, rng),
            Self::NoEviction(cache) => cache.refer(reference),
            Self::Sieve(cache) => cache.refer(reference),
            Self::S3Fifo(cache) => cache.refer(reference),
        }
    }

    fn held_bytes(&self) -> u64 {
        match self {
            Self::Redis(cache) => cache.held_bytes(),
            Self::NoEviction(cache) => cache.held_bytes(),
            Self::Sieve(cache) => cache.held_bytes(),
            Self::S3Fifo(cache) => cache.held_bytes(),
        }
    }
}

/// The selection of the keys that are simulated.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seed: u64,
    rate: f64,
    /// Correction factor: the true bytes of all keys divided by those estimated from the rate alone.
    scale: f64,
}

impl Sample {
    /// Creates the sample of keys, and estimates from it the bytes of all keys of the trace.
    fn of(phases: &Phases, rate: f64, seed: u64) -> (Self, u64) {
        let mut sample = Self { seed, rate, scale: 1.0 };
        let mut last = KeyMap::default();
        let mut scale = Scale::default();
        for references in phases {
            scale.pass(references.len() as u64);
            for Reference { key, bytes } in references {
                if sample.contains(*key) {
                    scale.count(*key, *bytes, 1.0 / rate);
                    last.insert(*key, *bytes);
                }
            }
        }
        let bytes = last.into_values().map(u64::from).sum();
        sample.scale = scale.factor(bytes as f64 / rate);
        (sample, sample.up(bytes))
    }

    fn contains(self, key: u64) -> bool {
        // The cast saturates, so that a rate of 1 would leave out a single hash, which the first condition covers.
        self.rate >= 1.0 || scattered(key, self.seed) < (self.rate * u64::MAX as f64) as u64
    }

    fn down(self, bytes: u64) -> u64 {
        if self.rate >= 1.0 {
            bytes
        } else {
            (bytes as f64 * self.rate / self.scale).round() as u64
        }
    }

    fn up(self, bytes: u64) -> u64 {
        if self.rate >= 1.0 {
            bytes
        } else {
            (bytes as f64 / self.rate * self.scale).round() as u64
        }
    }

    /// Simulates the sample, and returns the hits of each phase and the bytes that the sample's cache holds at the end.
    fn simulate(
        self,
        phases: &Phases,
        start: Start,
        mut cache: Simulated,
        rng: &mut impl Rng,
    ) -> (Vec<f64>, u64) {
        let mut time = 0;
        let mut counted = Vec::with_capacity(phases.len());
        for counts in start.passes() {
            let mut repeats = Repeats::default();
            for (number, references) in phases.iter().enumerate() {
                let (mut all, mut found) = (Weights::default(), Weights::default());
                for reference in references {
                    time += 1;
                    if !self.contains(reference.key) {
                        continue;
                    }
                    let is_hit = cache.refer(*reference, time, rng);
                    if *counts {
                        let square = repeats.square(number, reference.key);
                        all.add(1.0 / self.rate, square);
                        if is_hit {
                            found.add(1.0 / self.rate, square);
                        }
                    }
                }
                if *counts {
                    counted.push(self.hits(found, all, references.len()));
                }
            }
        }
        (counted, cache.held_bytes())
    }

    /// Returns the corrected number of hits among `references` references, from the sampled hits and the sampled
    /// references; 0 if none was sampled.
    fn hits(self, found: Weights, all: Weights, references: usize) -> f64 {
        let references = references as f64;
        if all.references == 0.0 {
            0.0
        } else {
            found.adjusted(all, references).clamp(0.0, references)
        }
    }
}

#[cfg(test)]
mod tests;

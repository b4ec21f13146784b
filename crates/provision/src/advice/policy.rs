//! The eviction policies of a cache that a plan compares.

use std::fmt;

use imago_plan::provision::reuse::{Curve, Policy, Reference, Start, exact, sampled, simulated};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::trace::Trace;

/// Maximum number of references (reads that found a document) for which the hits of exact LRU are computed exactly; for a
/// longer trace, they are estimated from a sample of its keys.
const EXACT_MAX: u64 = 10_000_000;
/// Number of references that one simulation of a cache makes at most; of a longer trace, it makes those of a sample of the keys.
const SIMULATED_MAX: u64 = 2_000_000;
/// `maxmemory-samples` of Redis.
const SAMPLES: u32 = 5;
/// Seed of the samples of keys and of evictions.
const SEED: u64 = 1;

/// The eviction policy of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CachePolicy {
    /// Redis's `allkeys-lru`: the least recently used of five sampled entries.
    #[default]
    AllkeysLru,
    /// Redis's `allkeys-lfu`: the least frequently used of five sampled entries.
    AllkeysLfu,
    /// Redis's `noeviction`: what came first stays.
    Noeviction,
    /// Exact LRU, as of a list ordered by last use.
    Lru,
    /// SIEVE.
    Sieve,
    /// S3-FIFO.
    S3Fifo,
}

impl CachePolicy {
    /// All policies: first those of Redis.
    pub const ALL: [Self; 6] = [
        Self::AllkeysLru,
        Self::AllkeysLfu,
        Self::Noeviction,
        Self::Lru,
        Self::Sieve,
        Self::S3Fifo,
    ];

    /// Returns the setting of Redis by which it has this policy; `None` if it has not.
    #[must_use]
    pub fn setting(self) -> Option<String> {
        let is_of_redis = matches!(self, Self::AllkeysLru | Self::AllkeysLfu | Self::Noeviction);
        is_of_redis.then(|| format!("maxmemory-policy {self}"))
    }

    /// Returns the hits of the references at these capacities, in bytes; `references_per_s` drives the clocks of Redis.
    pub(super) fn curve(
        self,
        references: &[Vec<Reference>],
        start: Start,
        capacities_bytes: &[u64],
        references_per_s: Option<f64>,
    ) -> Curve {
        let number: u64 = references.iter().map(|phase| phase.len() as u64).sum();
        let policy = match self {
            Self::Lru if number <= EXACT_MAX => return exact(references, start),
            Self::Lru => return sampled(references, start, Default::default()),
            Self::AllkeysLru => Policy::SampledLru { samples: SAMPLES, references_per_s },
            Self::AllkeysLfu => Policy::SampledLfu {
                samples: SAMPLES,
                log_factor: 10,
                decay_minutes: 1,
                // Without times the job is taken to end within a minute, so that counters do not fall.
                references_per_s: references_per_s.unwrap_or(number.max(1) as f64),
            },
            Self::Noeviction => Policy::NoEviction,
            Self::Sieve => Policy::Sieve,
            Self::S3Fifo => Policy::S3Fifo,
        };
        let rate = (SIMULATED_MAX as f64 / number.max(1) as f64).min(1.0);
        let dice = &mut StdRng::seed_from_u64(SEED);
        simulated(references, start, policy, capacities_bytes, rate, dice)
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllkeysLru => "allkeys-lru",
            Self::AllkeysLfu => "allkeys-lfu",
            Self::Noeviction => "noeviction",
            Self::Lru => "lru",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
        })
    }
}

/// The share of the reads that the advised shape's cache would answer with one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyReport {
    /// The policy.
    pub policy: CachePolicy,
    /// Share of the reads that the cache answers, from 0 to 1.
    pub hit_ratio: f64,
    /// The setting of Redis; `None` if it does not have the policy.
    pub setting: Option<String>,
}

/// Returns the hits of all policies with a cache of `capacity_bytes` bytes, the most hits first; nothing without a cache.
pub(super) fn policies(
    trace: &Trace,
    references: &[Vec<Reference>],
    start: Start,
    capacity_bytes: u64,
) -> Vec<PolicyReport> {
    if capacity_bytes == 0 {
        return Vec::new();
    }
    let reads = trace.reads().max(1) as f64;
    let report = |policy: CachePolicy| {
        let curve = policy.curve(references, start, &[capacity_bytes], trace.reads_per_s());
        let hits: f64 = (0..references.len()).map(|phase| curve.hits(phase, capacity_bytes)).sum();
        PolicyReport { policy, hit_ratio: hits / reads, setting: policy.setting() }
    };
    let mut all: Vec<PolicyReport> = CachePolicy::ALL.into_iter().map(report).collect();
    all.sort_by(|one, other| other.hit_ratio.total_cmp(&one.hit_ratio));
    all
}

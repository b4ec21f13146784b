//! Beside a true LRU list, and beside themselves in full size.

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::provision::reuse::exact;
use crate::provision::reuse::oracle::{Lru, as_phases, zipf};

const LRU: Policy = Policy::SampledLru { samples: 5, references_per_s: None };
const LFU: Policy = Policy::SampledLfu {
    samples: 5,
    log_factor: 10,
    decay_minutes: 1,
    references_per_s: 20_000.0 / 60.0,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With one candidate: a larger pool has candidates from earlier evictions, which were used meanwhile.
    #[test]
    fn looking_at_all_entries_is_true_lru(
        traces in prop::collection::vec(prop::collection::vec((0..12u64, 1..9u32), 0..40), 0..4),
        capacity in 0..60u64,
        is_warm: bool,
    ) {
        let phases = as_phases(&traces);
        let start = if is_warm { Start::Warm } else { Start::Cold };
        let policy = Policy::SampledLru { samples: u32::MAX, references_per_s: None };
        let cache = Cache::with_pool(policy, capacity, 1);
        let (sample, _) = Sample::of(&phases, 1.0, 5);
        let mut dice = StdRng::seed_from_u64(5);
        let (hits, held) = sample.simulate(&phases, start, Simulated::Redis(cache), &mut dice);
        let mut lru = Lru::new(capacity);
        let expected: Vec<f64> = lru.passes(&phases, start).into_iter().map(|n| n as f64).collect();
        prop_assert_eq!(hits, expected);
        prop_assert_eq!(held, lru.held_bytes());
    }
}

#[test]
fn redis_lru_comes_near_to_true_lru() {
    let phases = zipf(20_000, 0.9, 200_000, 2, 3);
    let exact = exact(&phases, Start::Cold);
    let capacities = [1, 2, 4, 8].map(|n| exact.distinct_bytes() * n / 10);
    let mut dice = StdRng::seed_from_u64(1);
    let curve = |samples, dice: &mut StdRng| {
        let policy = Policy::SampledLru { samples, references_per_s: None };
        simulated(&phases, Start::Cold, policy, &capacities, 1.0, dice)
    };
    let (few, more) = (curve(1, &mut dice), curve(10, &mut dice));
    for capacity in capacities {
        let off = |curve: &Curve| (curve.miss_ratio(capacity) - exact.miss_ratio(capacity)).abs();
        assert!(off(&more) <= 0.01, "{} at {capacity}", off(&more));
        assert!(off(&few) > off(&more), "a single sample is no better than ten at {capacity}");
        let held = more.held_bytes(capacity);
        assert!(held <= capacity && held > capacity - 1_000, "the cache is full");
    }
    assert_eq!(more.distinct_bytes(), exact.distinct_bytes());
    assert_eq!(more.hits(0, capacities[0] - 1), 0.0, "not simulated");
    assert_eq!(more.hits(1, capacities[3] - 1), more.hits(1, capacities[2]));
}

#[test]
fn a_tenth_of_the_keys_errs_by_a_hundredth_and_at_most_by_three() {
    let mut errors = vec![];
    for (skew, seed) in [0.0, 0.7, 1.0, 1.3].into_iter().zip(20..) {
        let phases = zipf(50_000, skew, 200_000, 2, seed);
        let bytes = exact(&phases, Start::Cold).distinct_bytes();
        let capacities = [1, 3, 6, 9].map(|n| bytes * n / 10);
        for policy in [LRU, LFU, Policy::NoEviction, Policy::Sieve, Policy::S3Fifo] {
            let mut dice = StdRng::seed_from_u64(seed);
            let mut of =
                |rate| simulated(&phases, Start::Cold, policy, &capacities, rate, &mut dice);
            let (full, tenth) = (of(1.0), of(0.1));
            for capacity in capacities {
                let off = (full.miss_ratio(capacity) - tenth.miss_ratio(capacity)).abs();
                assert!(off <= 0.03, "{skew} {policy:?} at {capacity}: {off}");
                errors.push(off);
                let held = tenth.held_bytes(capacity) as f64 / full.held_bytes(capacity) as f64;
                assert!((0.98..=1.002).contains(&held), "{skew} {policy:?} at {capacity}: {held}");
            }
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean <= 0.01, "{mean}: {errors:?}");
}

#[test]
fn lfu_beats_lru_where_scans_pass_by() {
    // Every 2,000 references of a skewed load a scan reads 1,500 keys once.
    let mut trace = Vec::new();
    let popular = zipf(5_000, 0.9, 100_000, 1, 6);
    for (scan, part) in (0u64..).zip(popular[0].chunks(2_000)) {
        trace.extend_from_slice(part);
        let scanned = |n| Reference { key: scattered(1_000_000 + scan * 1_500 + n, 1), bytes: 500 };
        trace.extend((0..1_500).map(scanned));
    }
    let phases = [trace];
    let mut dice = StdRng::seed_from_u64(2);
    let capacities = [400_000];
    let of = |policy, dice: &mut StdRng| {
        simulated(&phases, Start::Cold, policy, &capacities, 1.0, dice).miss_ratio(400_000)
    };
    let (lru, lfu) = (of(LRU, &mut dice), of(LFU, &mut dice));
    assert!(lfu < lru - 0.05, "{lfu} beside {lru}");
}

#[test]
fn no_cache_has_no_hits_and_a_large_one_misses_each_key_once() {
    let phases = zipf(1_000, 0.8, 10_000, 2, 6);
    let exact = exact(&phases, Start::Cold);
    for policy in [LRU, LFU, Policy::NoEviction, Policy::Sieve, Policy::S3Fifo] {
        let mut dice = StdRng::seed_from_u64(2);
        let curve = simulated(&phases, Start::Cold, policy, &[u64::MAX, 0], 1.0, &mut dice);
        assert_eq!(curve.miss_ratio(0), 1.0);
        assert_eq!(curve.miss_ratio(u64::MAX), exact.miss_ratio(u64::MAX));
        assert_eq!(curve.held_bytes(u64::MAX), exact.distinct_bytes());
    }
}

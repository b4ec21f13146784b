//! Beside the exact curve, and within its memory.

use super::*;
use crate::provision::reuse::exact;
use crate::provision::reuse::oracle::zipf;

/// The mean absolute error of the miss ratio, over a hundred capacities up to all bytes.
fn error(one: &Curve, exact: &Curve) -> f64 {
    let capacity = |n: u64| exact.distinct_bytes() * n / 100;
    let errors = (1..=100).map(|n| one.miss_ratio(capacity(n)) - exact.miss_ratio(capacity(n)));
    errors.map(f64::abs).sum::<f64>() / 100.0
}

/// The same for each phase's share of hits, the mean of phases.
fn phases_error(one: &Curve, exact: &Curve) -> f64 {
    let mut sum = 0.0;
    for phase in 0..exact.phases() {
        for n in 1..=100 {
            let capacity = exact.distinct_bytes() * n / 100;
            let hits = one.hits(phase, capacity) - exact.hits(phase, capacity);
            sum += hits.abs() / exact.references(phase) as f64;
        }
    }
    sum / (100 * exact.phases()) as f64
}

#[test]
fn eight_thousand_samples_err_by_a_hundredth() {
    let mut told = String::new();
    let mut errors = Vec::new();
    // And keys that are alike and referenced ten times as often.
    let traces = [0.0, 0.6, 0.8, 1.0, 1.2, 1.5].map(|skew| (skew, 100_000)).into_iter();
    for ((skew, keys), seed) in traces.chain([(0.0, 25_000)]).zip(10..) {
        let phases = zipf(keys, skew, 400_000, 4, seed);
        for start in [Start::Cold, Start::Warm] {
            let exact = exact(&phases, start);
            for seed in 0..4 {
                let sampling = Sampling { seed, ..Sampling::default() };
                let sampled = sampled(&phases, start, sampling);
                let (error, by_phase) = (error(&sampled, &exact), phases_error(&sampled, &exact));
                let held = sampled.distinct_bytes() as f64 / exact.distinct_bytes() as f64 - 1.0;
                told += &format!(
                    "{skew} {keys} {start:?} {seed}: {error:.4} {by_phase:.4} {held:+.4}\n"
                );
                errors.push((error, by_phase, held));
            }
        }
    }
    assert!(errors.iter().all(|(error, ..)| *error <= 0.01), "{told}");
    assert!(errors.iter().all(|(_, by_phase, _)| *by_phase <= 0.02), "{told}");
    assert!(errors.iter().all(|(.., held)| held.abs() <= 0.05), "{told}");
}

/// The published adjustment (SHARDS-adj): the whole difference is hits at the shortest distance.
fn published(sampler: &Sampler, phases: &Phases, capacity: u64) -> f64 {
    let mut misses = 0.0;
    for (buckets, references) in sampler.buckets.iter().zip(phases) {
        let references = references.len() as f64;
        let steps = buckets.hits.iter().enumerate();
        let hits: f64 = steps
            .filter(|(bucket, _)| buckets.distance(*bucket) <= capacity)
            .map(|(_, counted)| counted.references)
            .sum();
        misses += references - (hits + references - buckets.all.references).clamp(0.0, references);
    }
    misses / phases.iter().map(Vec::len).sum::<usize>() as f64
}

#[test]
fn the_adjustment_errs_less_than_the_published_one() {
    let mut sums = vec![];
    for skew in [0.0, 0.6, 0.8, 1.0, 1.2] {
        let phases = zipf(100_000, skew, 400_000, 4, 31);
        let exact = exact(&phases, Start::Cold);
        let (mut ours, mut theirs) = (0.0, 0.0);
        for seed in 0..6 {
            let sampling = Sampling { keys: 2_048, seed };
            ours += error(&sampled(&phases, Start::Cold, sampling), &exact);
            let mut sampler = Sampler::new(sampling, phases.len());
            for (number, references) in phases.iter().enumerate() {
                sampler.phase(number, references, true);
            }
            for n in 1..=100 {
                let capacity = exact.distinct_bytes() * n / 100;
                let told = published(&sampler, &phases, capacity);
                theirs += (told - exact.miss_ratio(capacity)).abs() / 100.0;
            }
        }
        sums.push((skew, ours / 6.0, theirs / 6.0));
    }
    // Much less where keys are alike, and hardly more where some are popular.
    assert!(
        sums.iter().all(|(skew, ours, theirs)| *skew > 0.5 || *ours < 0.7 * theirs),
        "{sums:?}"
    );
    assert!(sums.iter().all(|(_, ours, theirs)| *ours < theirs + 0.002), "{sums:?}");
}

#[test]
fn a_trace_of_fewer_keys_than_samples_is_exact_but_for_the_buckets() {
    let phases = zipf(5_000, 0.9, 60_000, 3, 4);
    let exact = exact(&phases, Start::Cold);
    let sampled = sampled(&phases, Start::Cold, Sampling::default());
    for n in 1..=200 {
        let capacity = exact.distinct_bytes() * n / 200;
        let (low, high) = (capacity - capacity / 500, capacity + capacity / 500);
        for phase in 0..3 {
            let hits = sampled.hits(phase, capacity);
            assert!(exact.hits(phase, low) <= hits && hits <= exact.hits(phase, high));
        }
        assert_eq!(sampled.held_bytes(capacity), exact.held_bytes(capacity));
    }
    assert_eq!(sampled.distinct_bytes(), exact.distinct_bytes());
}

#[test]
fn the_same_seed_samples_the_same_keys() {
    let phases = zipf(30_000, 0.7, 50_000, 2, 4);
    let sampling = |seed| Sampling { keys: 500, seed };
    let one = sampled(&phases, Start::Cold, sampling(3));
    assert_eq!(one, sampled(&phases, Start::Cold, sampling(3)));
    assert_ne!(one, sampled(&phases, Start::Cold, sampling(4)));
}

#[test]
fn memory_stays_within_16_mb() {
    // A million different keys of very different sizes, in eight phases.
    let mut sampler = Sampler::new(Sampling::default(), 8);
    let (mut most, mut sampled) = (0, 0);
    for n in 0..3_000_000u64 {
        let key = scattered(n % 1_000_000, 9);
        let reference = Reference { key, bytes: 1 << (key % 24) };
        sampler.phase((n % 8) as usize, &[reference], true);
        if n % 97 == 0 {
            most = most.max(sampler.bytes());
            sampled = sampled.max(sampler.stack.len());
        }
    }
    assert_eq!(sampled, 8_192, "the sample is full");
    assert!(most <= 16 << 20, "{most} bytes");
    // Not more for more phases, or for the longest distances that there are.
    for phases in [1, 8, 100, 1_000] {
        let mut buckets = Buckets::new(Buckets::precision(phases));
        buckets.count(Some(u64::MAX), 2.0, 1.0);
        assert!(phases * buckets.bytes() <= BUCKETS_BYTES_MAX, "{phases} phases");
    }
}

#[test]
fn a_bucket_holds_distances_that_are_almost_its_own() {
    for precision in [1, 4, 9] {
        let buckets = Buckets::new(precision);
        let mut last = 0;
        for distance in (0..5_000)
            .chain((13..64).flat_map(|bit| [1 << bit, (1 << bit) + 1, u64::MAX >> (63 - bit)]))
        {
            let bucket = buckets.bucket(distance);
            assert!(bucket >= last, "buckets ascend");
            last = bucket;
            let off = buckets.distance(bucket).abs_diff(distance);
            assert!(off <= distance >> precision, "{distance} is off by {off}");
        }
    }
}

#[test]
fn a_phase_without_references_has_no_hits() {
    let phases = [vec![], vec![Reference { key: 7, bytes: 100 }; 3]];
    let curve = sampled(&phases, Start::Cold, Sampling::default());
    assert_eq!((curve.references(0), curve.hits(0, u64::MAX)), (0, 0.0));
    assert_eq!((curve.references(1), curve.hits(1, 100), curve.hits(1, 99)), (3, 2.0, 0.0));
}

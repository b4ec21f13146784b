//! Beside a literal LRU list, simulated at each capacity.

use proptest::prelude::*;

use super::super::Reference;
use super::*;
use crate::provision::reuse::oracle::{Lru, as_phases};

fn of(trace: &[(u64, u32)]) -> Vec<Reference> {
    trace.iter().map(|&(key, bytes)| Reference { key, bytes }).collect()
}

/// Each capacity at which something may change, and those beside it.
fn capacities(phases: &Phases) -> Vec<u64> {
    let all: u64 = phases.iter().flatten().map(|one| u64::from(one.bytes)).sum();
    (0..=all.min(120)).chain([all / 2, all, all + 1, u64::MAX]).collect()
}

fn check(phases: &Phases, start: Start) -> Result<(), TestCaseError> {
    let curve = exact(phases, start);
    prop_assert_eq!(curve.phases(), phases.len());
    for capacity in capacities(phases) {
        let mut lru = Lru::new(capacity);
        let hits = lru.passes(phases, start);
        for (phase, hits) in hits.into_iter().enumerate() {
            let told = curve.hits(phase, capacity);
            prop_assert_eq!(told, hits as f64, "phase {} at {}", phase, capacity);
            prop_assert_eq!(curve.references(phase), phases[phase].len() as u64);
        }
        prop_assert_eq!(curve.held_bytes(capacity), lru.held_bytes(), "held at {}", capacity);
    }
    let mut lru = Lru::new(u64::MAX);
    lru.passes(phases, start);
    prop_assert_eq!(curve.distinct_bytes(), lru.held_bytes());
    Ok(())
}

/// Traces of several phases: few keys, so that most are read again.
fn traces(bytes: std::ops::Range<u32>) -> impl Strategy<Value = Vec<Vec<(u64, u32)>>> {
    let reference = (0..12u64, bytes);
    prop::collection::vec(prop::collection::vec(reference, 0..40), 0..4)
}

fn starts() -> impl Strategy<Value = Start> {
    prop_oneof![Just(Start::Cold), Just(Start::Warm)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn entries_of_one_size_hit_as_in_a_list(traces in traces(1..2), start in starts()) {
        check(&as_phases(&traces), start)?;
    }

    #[test]
    fn each_key_of_its_own_size_hits_as_in_a_list(traces in traces(1..2), start in starts()) {
        let sized = |&(key, _): &(u64, u32)| (key, [1, 7, 3, 20, 1, 60][key as usize % 6]);
        let traces: Vec<Vec<_>> =
            traces.iter().map(|phase| phase.iter().map(sized).collect()).collect();
        check(&as_phases(&traces), start)?;
    }

    #[test]
    fn entries_whose_sizes_change_hit_as_in_a_list(traces in traces(0..9), start in starts()) {
        check(&as_phases(&traces), start)?;
    }
}

#[test]
fn a_distance_is_the_bytes_of_the_keys_between_and_its_own() {
    let ann = of(&[(1, 100), (2, 30), (3, 5), (2, 30), (1, 100)]);
    let curve = exact(&[ann], Start::Cold);
    let hits = [34, 35, 134, 135].map(|capacity| curve.hits(0, capacity));
    assert_eq!(hits, [0.0, 1.0, 1.0, 2.0]);
    assert_eq!(curve.distinct_bytes(), 135);
    // The newest entry has 100 bytes, the next one 30.
    let held = [99, 100, 129, 130, 1_000].map(|capacity| curve.held_bytes(capacity));
    assert_eq!(held, [0, 100, 100, 130, 135]);
}

#[test]
fn an_entry_larger_than_the_cache_is_never_a_hit() {
    let curve = exact(&[of(&[(1, 500); 4])], Start::Warm);
    assert_eq!((curve.hits(0, 499), curve.hits(0, 500)), (0.0, 4.0));
}

#[test]
fn a_warm_cache_hits_from_the_first_reference() {
    let phases = [of(&[(1, 10), (2, 10)]), of(&[(3, 10), (1, 10)])];
    let hits = |start| {
        let curve = exact(&phases, start);
        [(0, 20), (0, 30), (1, 30)].map(|(phase, capacity)| curve.hits(phase, capacity))
    };
    assert_eq!(hits(Start::Cold), [0.0, 0.0, 1.0]);
    assert_eq!(hits(Start::Warm), [1.0, 2.0, 2.0]);
}

#[test]
fn an_entry_that_shrinks_brings_nothing_back() {
    // 1 grows and evicts 2 from a cache of 100; it shrinks, and 2 is not there.
    let grown = of(&[(2, 60), (1, 10), (1, 70), (1, 10), (2, 60)]);
    let curve = exact(&[grown], Start::Cold);
    assert_eq!(curve.hits(0, 100), 2.0);
    assert_eq!(curve.hits(0, 130), 3.0, "in a larger one it never left");
}

#[test]
fn a_long_trace_hits_as_in_a_list() {
    // Far more references than slots at first, so that the row is moved together and doubled; keys come in runs.
    let key = |n: u64| if n.is_multiple_of(3) { n % 1_500 } else { n % 40 };
    let trace: Vec<_> = (0..12_000).map(|n| (key(n), 1 + key(n) as u32 % 5)).collect();
    let phases = [of(&trace[..4_000]), of(&trace[4_000..])];
    let curve = exact(&phases, Start::Cold);
    for capacity in [1, 60, 100, 150, 400, 1_000, 3_000, 5_000] {
        let hits = Lru::new(capacity).passes(&phases, Start::Cold);
        assert_eq!(
            [curve.hits(0, capacity), curve.hits(1, capacity)],
            [hits[0] as f64, hits[1] as f64]
        );
    }
}

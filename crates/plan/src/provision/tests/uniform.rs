//! The paper's case: uniform keys, whose hits have a closed form.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::{Shares, Workload, predict};
use super::{costs, job, machine, shape};
use crate::provision::reuse::uniform::{Chain, Mapping};
use crate::provision::reuse::{Reference, Start, exact};

/// A chain whose phases read distinct keys, each of which leads to a key that is drawn anew.
fn chain(chain: Chain, rng: &mut StdRng) -> Vec<Vec<Reference>> {
    let documents = chain.documents as u64;
    let mut keys = BTreeSet::new();
    while keys.len() < chain.first_keys as usize {
        keys.insert(rng.random_range(0..documents));
    }
    let mut phases = Vec::new();
    for _ in 0..chain.phases {
        // Hashes of all 64 bits, as a trace has them.
        let hash = |key: &u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let reference = |key| Reference { key: hash(key), bytes: 200 };
        phases.push(keys.iter().map(reference).collect());
        keys = keys.iter().map(|_| rng.random_range(0..documents)).collect();
    }
    phases
}

#[test]
fn hits_of_uniform_keys_are_within_three_deviations_of_the_closed_form() {
    let uniform = Chain {
        documents: 400_000.0,
        first_keys: 20_000.0,
        phases: 8,
        mapping: Mapping::Independent,
    };
    let expected = uniform.expected();
    let mut rng = StdRng::seed_from_u64(106);
    let references = chain(uniform, &mut rng);
    let curve = exact(&references, Start::Cold);
    let phases: Vec<u64> = references.iter().map(|phase| phase.len() as u64).collect();
    let workload = Workload { phases: &phases, hits: &curve };
    let of = |cache_bytes| {
        predict(workload, &costs(), &machine(1.0), &job(), shape(2, cache_bytes), &Shares::even())
    };
    let all = of(1 << 30);
    assert!(expected.hits.off(all.hits()).abs() <= 3.0, "{} of {:?}", all.hits(), expected.hits);
    for (phase, expected) in all.phases.iter().zip(&expected.phases).skip(1) {
        let off = expected.hits.off(phase.hits);
        assert!(off.abs() <= 3.0, "{} of {:?}", phase.hits, expected.hits);
    }
    assert_eq!(all.cache_held_bytes, curve.distinct_bytes());
    // Without a cache none, and with a small one nearly none.
    assert_eq!(of(0).hits(), 0.0);
    assert!(of(1 << 20).hits() < 0.1 * all.hits());
}

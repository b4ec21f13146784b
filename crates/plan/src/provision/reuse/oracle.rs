//! Helpers shared by the tests: a literal LRU list as the oracle, and Zipf-distributed traces.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::hashed::scattered;
use super::{Phases, Reference, Start};

/// Converts traces of (key, bytes) into phases of references.
pub(super) fn as_phases(traces: &[Vec<(u64, u32)>]) -> Vec<Vec<Reference>> {
    let reference = |&(key, bytes): &(u64, u32)| Reference { key, bytes };
    traces.iter().map(|phase| phase.iter().map(reference).collect()).collect()
}

/// An LRU cache as a list of entries, the most recently used first.
pub(super) struct Lru {
    capacity: u64,
    entries: Vec<Reference>,
}

impl Lru {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, entries: Vec::new() }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.bytes)).sum()
    }

    /// References a key, and returns true for a hit.
    pub(super) fn refer(&mut self, reference: Reference) -> bool {
        if self.capacity == 0 {
            return false;
        }
        let found = self.entries.iter().position(|entry| entry.key == reference.key);
        if let Some(place) = found {
            self.entries.remove(place);
        }
        self.entries.insert(0, reference);
        while self.held_bytes() > self.capacity {
            self.entries.pop();
        }
        found.is_some()
    }

    /// Runs all passes over the phases, and returns the hits of each phase in the last pass.
    pub(super) fn passes(&mut self, phases: &Phases, start: Start) -> Vec<u64> {
        let mut hits = Vec::new();
        for _ in start.passes() {
            hits = phases
                .iter()
                .map(|phase| phase.iter().filter(|one| self.refer(**one)).count() as u64)
                .collect();
        }
        hits
    }
}

/// Draws references in phases, to keys whose ranks are Zipf-distributed (uniform for a skew of 0).
pub(super) fn zipf(
    keys: usize,
    skew: f64,
    references: usize,
    phases: usize,
    seed: u64,
) -> Vec<Vec<Reference>> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut sums: Vec<f64> = Vec::with_capacity(keys);
    let mut sum = 0.0;
    for rank in 1..=keys {
        sum += (rank as f64).powf(-skew);
        sums.push(sum);
    }
    let mut draw = |_| {
        let chance = dice.random::<f64>() * sum;
        let rank = sums.partition_point(|to| *to < chance) as u64;
        // A user's comment: from 100 bytes to 1 KB, always the same size for the same key.
        Reference { key: scattered(rank, 77), bytes: 100 + (scattered(rank, 5) % 900) as u32 }
    };
    (0..phases).map(|_| (0..references / phases).map(&mut draw).collect()).collect()
}

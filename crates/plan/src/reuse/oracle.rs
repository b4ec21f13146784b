//! What the tests share: a literal LRU list as their oracle, and traces by Zipf's law.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::hashed::scattered;
use super::{Phases, Reference, Start};

/// Traces as phases of references.
pub(super) fn as_phases(traces: &[Vec<(u64, u32)>]) -> Vec<Vec<Reference>> {
    let reference = |&(key, bytes): &(u64, u32)| Reference { key, bytes };
    traces.iter().map(|phase| phase.iter().map(reference).collect()).collect()
}

/// Entries in the order of use, the newest first.
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

    /// True for a hit.
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

    /// Hits of each phase, of the last pass over them.
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

/// References to keys of a rank that is drawn by Zipf's law (uniformly for a skew of 0), in phases.
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
        // A comment of a user: from 100 bytes to 1 KB, always the same for the same key.
        Reference { key: scattered(rank, 77), bytes: 100 + (scattered(rank, 5) % 900) as u32 }
    };
    (0..phases).map(|_| (0..references / phases).map(&mut draw).collect()).collect()
}

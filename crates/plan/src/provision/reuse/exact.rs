//! The exact curve of hits of an LRU cache, at every capacity at once.
//!
//! The distance of a reference is the depth of its key in the LRU [`Stack`]: the total size in bytes of the distinct
//! keys since the key's last reference, including its own (and of holes, if sizes changed). The reference is a hit in
//! every cache of at least that capacity (Mattson et al. 1970, there in pages).

use super::curve::{Phase, Steps};
use super::stack::Stack;
use super::{Curve, Phases, Start};

/// Computes the exact curve of hits of an LRU cache for a trace. Time per reference grows with the logarithm of the
/// number of distinct keys.
///
/// # Panics
/// If there are more than 2^31 distinct keys.
#[must_use]
pub fn exact(phases: &Phases, start: Start) -> Curve {
    let mut stack = Stack::new();
    let mut counted = Vec::new();
    for counts in start.passes() {
        for references in phases {
            let distances = references.iter().map(|one| stack.refer(one.key, one.bytes));
            if *counts {
                let hits = Steps::from_distances(distances.flatten().collect());
                counted.push(Phase { references: references.len() as u64, hits });
            } else {
                distances.for_each(drop);
            }
        }
    }
    let held = stack.held();
    let distinct_bytes = held.last().map_or(0, |(_, held)| *held);
    Curve::new(counted, held, distinct_bytes)
}

#[cfg(test)]
mod tests;

//! Expected hits of a chain with an LRU cache that holds a limited number of entries.
//!
//! Keys are distinguished by the number of phases since they were last read, their *gap*. A key of gap `g` is found if
//! the distinct keys read since then, and the key itself, fit: those that later phases read, those after it in the
//! phase that read it last, and those before it in the current phase. The last two depend on the position within the
//! phase at which keys are read: see [`Order`]. Only means are propagated, not deviations, so the result is for phases
//! of many keys.

use super::occupancy::{Estimate, share};
use super::{Chain, Expected, Mapping};

/// The order in which a phase of a chain reads its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order is random, independently in each phase.
    Shuffled,
    /// Keys are sorted, as after the sort of a reduce: a key is read at about the same position in each phase. So a
    /// cache with fewer entries than a phase has keys has no hits.
    Sorted,
}

/// Number of positions in a phase at which the probability of a hit is evaluated.
const PLACES: u32 = 400;

impl Chain {
    /// Returns the expected values of the chain with an LRU cache of at most `entries` entries. Variances are
    /// approximate.
    ///
    /// # Panics
    /// As [`Chain::expected`].
    #[must_use]
    pub fn limited(&self, entries: f64, order: Order) -> Expected {
        let mut expected = self.expected();
        // By gap, from 1: distinct keys, hits of the last phase, and the keys that the phase at that gap read.
        let (mut keys_of, mut hits_of, mut read): (Vec<f64>, Vec<f64>, Vec<f64>) =
            Default::default();
        let (mut sum, mut unlimited) = (0.0, 0.0);
        let mut before: Option<super::Phase> = None;
        for phase in &mut expected.phases {
            if let Some(before) = before {
                let draws = match self.mapping {
                    Mapping::Independent => before.keys.mean,
                    Mapping::Function => before.keys.mean - before.hits.mean,
                };
                self.hit(&keys_of, &mut hits_of, &read, draws);
                // The hits of an unlimited cache are known more exactly, since they include keys that map to the same
                // key.
                let sum: f64 = hits_of.iter().sum();
                hits_of.iter_mut().for_each(|hits| *hits *= phase.hits.mean / sum);
            }
            before = Some(*phase);
            let keys = phase.keys.mean;
            let fits = |gap: usize| found(&keys_of, &hits_of, gap, keys, entries, order);
            let hits: f64 = hits_of.iter().enumerate().map(|(gap, hits)| hits * fits(gap)).sum();
            sum += hits;
            unlimited += phase.hits.mean;
            phase.hits = thinned(phase.hits, hits);
            // Keys that were just read have gap 1 in the next phase; the gap of all others grows by one.
            keys_of.iter_mut().zip(&hits_of).for_each(|(keys, hits)| *keys -= hits);
            keys_of.insert(0, keys);
            read.insert(0, keys);
        }
        debug_assert!(sum <= unlimited * (1.0 + 1e-9), "a limit adds no hits");
        expected.hits = thinned(expected.hits, sum);
        expected
    }

    /// Computes the hits of the next phase by gap. With [`Mapping::Function`], a hit of the last phase is followed by
    /// one of the same gap, or of a smaller gap if a later phase also read the key; the remaining draws hit any key
    /// that was read.
    fn hit(&self, keys_of: &[f64], hits_of: &mut Vec<f64>, read: &[f64], draws: f64) {
        let share = share(draws, self.documents);
        let mut older: f64 = hits_of.iter().sum();
        let mut not_later = 1.0;
        hits_of.resize(keys_of.len(), 0.0);
        for (gap, hits) in hits_of.iter_mut().enumerate() {
            older -= *hits;
            let again = read[gap] / self.documents;
            let led = match self.mapping {
                Mapping::Independent => 0.0,
                Mapping::Function => not_later * (*hits + older * again).min(keys_of[gap]),
            };
            not_later *= 1.0 - again;
            *hits = led + (keys_of[gap] - led) * share;
        }
    }
}

/// Returns the probability that a key of this gap (counted from 0 here) is found in a cache of `entries` entries.
fn found(
    keys_of: &[f64],
    hits_of: &[f64],
    gap: usize,
    keys: f64,
    entries: f64,
    order: Order,
) -> f64 {
    // Keys read by the phases in between, each counted once; and those of them that this phase reads again.
    let between: f64 = keys_of[..gap].iter().sum();
    let again: f64 = hits_of[..gap].iter().sum();
    let (behind, own) = (keys_of[gap], hits_of[gap]);
    let distance = |left: f64, place: f64| {
        1.0 + between + left * behind + place * (keys - again - left * own).max(0.0)
    };
    let places = (0..PLACES).map(|n| (f64::from(n) + 0.5) / f64::from(PLACES));
    let chances = places.map(|place| match order {
        Order::Sorted => f64::from(u8::from(distance(1.0 - place, place) <= entries)),
        Order::Shuffled => {
            // The part of this phase in which a key is found that had the share `place` of its last phase after it.
            let (first, last) = (distance(place, 0.0), distance(place, 1.0));
            if last <= entries { 1.0 } else { ((entries - first) / (last - first)).clamp(0.0, 1.0) }
        }
    });
    chances.sum::<f64>() / f64::from(PLACES)
}

/// Returns the estimate of a count reduced to the mean `left`. The variance is the larger of two: items removed
/// independently, or in the groups in which they came.
fn thinned(all: Estimate, left: f64) -> Estimate {
    if all.mean <= 0.0 {
        return all;
    }
    let share = (left / all.mean).min(1.0);
    let alone = share * share * all.variance + share * (1.0 - share) * all.mean;
    Estimate { mean: left, variance: alone.max(share * all.variance) }
}

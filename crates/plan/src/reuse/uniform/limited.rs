//! The same with an LRU cache that holds so many entries.
//!
//! The keys that were read are told apart by the number of phases since they were last read, their *gap*. A key of gap
//! `g` is found if the distinct keys read since then, and itself, fit: those that later phases read, those behind it in
//! the phase that read it last, and those before it in this one. Where in their phases keys are read decides the last
//! two: see [`Order`]. Means are followed without their deviations, so the account is for phases of many keys.

use super::occupancy::{Estimate, share};
use super::{Chain, Expected, Mapping};

/// Where in a phase a key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Anywhere, each time anew.
    Shuffled,
    /// Phases read their keys sorted, as behind the sort of a reduce: a key is read at about the same place each time.
    /// So a cache of fewer entries than a phase has keys finds nothing.
    Sorted,
}

/// Places in a phase at which a key is looked for.
const PLACES: u32 = 400;

impl Chain {
    /// What is expected with an LRU cache that holds at most so many entries. Variances are approximate.
    ///
    /// # Panics
    /// As [`Chain::expected`].
    #[must_use]
    pub fn limited(&self, entries: f64, order: Order) -> Expected {
        let mut expected = self.expected();
        // By gap, from 1: distinct keys, the hits of the last phase, and the keys that the phase of that time read.
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
                // The hits of a cache without limit are known better: keys that are mapped alike are in them.
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
            // Those that were read are one phase old in the next, all others one phase older.
            keys_of.iter_mut().zip(&hits_of).for_each(|(keys, hits)| *keys -= hits);
            keys_of.insert(0, keys);
            read.insert(0, keys);
        }
        debug_assert!(sum <= unlimited * (1.0 + 1e-9), "a limit adds no hits");
        expected.hits = thinned(expected.hits, sum);
        expected
    }

    /// The hits of the next phase by gap. Those of the last phase are followed by one of the same gap, if the next key
    /// is a function of the document, or of a smaller one, if a later phase read that key too; the rest fall on any key
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

/// The chance that a key of this gap (from 0 here) is found in a cache of so many entries.
fn found(
    keys_of: &[f64],
    hits_of: &[f64],
    gap: usize,
    keys: f64,
    entries: f64,
    order: Order,
) -> f64 {
    // Read by the phases between, each key counted once; and read again among those of this phase.
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
            // The part of this phase in which a key that had `place` of its last phase behind it is found.
            let (first, last) = (distance(place, 0.0), distance(place, 1.0));
            if last <= entries { 1.0 } else { ((entries - first) / (last - first)).clamp(0.0, 1.0) }
        }
    });
    chances.sum::<f64>() / f64::from(PLACES)
}

/// A number of which only so many are left: each by itself, or in groups as they came, whichever varies more.
fn thinned(all: Estimate, left: f64) -> Estimate {
    if all.mean <= 0.0 {
        return all;
    }
    let share = (left / all.mean).min(1.0);
    let alone = share * share * all.variance + share * (1.0 - share) * all.mean;
    Estimate { mean: left, variance: alone.max(share * all.variance) }
}

//! How the difference between the references that a sample of keys stands for and the true number, which is known, is shared
//! out among hits and misses.
//!
//! SHARDS-adj (Waldspurger et al., FAST 2015, §3.4) takes all of the difference for hits at the shortest distance, because most of it
//! comes from keys that are referenced very often. That errs where no key is: for uniform keys it is as large as the
//! sample's noise. So it is taken where the sample says that it comes from, by regression: sampling a key with `c`
//! references, of which `h` are hits, changes the one sum by `c` and the other by `h`, so the hits are off by `Σch / Σc²` of
//! the difference (Cochran, "Sampling Techniques", 1977, chapter 7). With often referenced keys that is the
//! paper's adjustment, without them it is the ratio of hits among the references sampled.
//!
//! The sums are kept reference by reference: the `c`-th one of a key adds `c² − (c−1)²` to `Σc²`, and to `Σch` if it is a
//! hit. Each phase has sums of its own, so `c` counts from its beginning.

use super::hashed::KeyMap;

/// By key: the phase of its last reference, and its references in that phase so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeats(KeyMap<(usize, u64)>);

impl Repeats {
    /// What a further reference to the key adds to the square of its references in this phase.
    pub(super) fn square(&mut self, phase: usize, key: u64) -> f64 {
        let repeats = self.0.entry(key).or_insert((phase, 0));
        if repeats.0 != phase {
            *repeats = (phase, 0);
        }
        repeats.1 += 1;
        (2 * repeats.1 - 1) as f64
    }

    /// Forgets a key that left the sample.
    pub(super) fn remove(&mut self, key: u64) {
        self.0.remove(&key);
    }

    /// The bytes that the map takes.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * 8 / 7 * (size_of::<(u64, usize, u64)>() + 1)
    }
}

/// What sampled references stand for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weights {
    /// Their number.
    pub(super) references: f64,
    /// The sum of what they add to the squares of their keys' references.
    pub(super) squares: f64,
}

impl Weights {
    pub(super) fn add(&mut self, weight: f64, square: f64) {
        self.references += weight;
        self.squares += weight * square;
    }

    /// The number, of all that were sampled, if those stand for so many more or fewer.
    pub(super) fn adjusted(self, all: Self, references: f64) -> f64 {
        self.references + (references - all.references) * self.squares / all.squares
    }
}

//! How the difference between the references that a sample of keys stands for and the true number, which is known, is
//! shared out among hits and misses.
//!
//! SHARDS-adj (Waldspurger et al., FAST 2015) takes all of the difference for hits at the shortest distance,
//! because most of it comes from keys that are referenced very often. That errs where no key is: for uniform keys it is
//! as large as the sample's noise. So it is taken where the sample says that it comes from, by regression: sampling a
//! key with `c` references, of which `h` are hits, changes the one sum by `c` and the other by `h`, so the hits are off
//! by `Σch / Σc²` of the difference (Cochran, "Sampling Techniques", 1977, chapter 7). With often referenced keys that
//! is the paper's adjustment, without them it is the ratio of hits among the references sampled.
//!
//! The sums are kept reference by reference: the `c`-th one of a key adds `c² − (c−1)²` to `Σc²`, and to `Σch` if it is
//! a hit. Each phase has sums of its own, so `c` counts from its beginning. A reference that stands for `w` has a part
//! in the sample's noise of `w (w − 1)`: none while all keys are sampled.
//!
//! The bytes that the sample stands for are adjusted in the same way ([`Scale`]). That matters where keys are alike:
//! the share of references that were sampled then tells the share of keys better than the threshold does.

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
        self.squares += noise(weight) * square;
    }

    /// The number, of all that were sampled, if those stand for so many more or fewer.
    pub(super) fn adjusted(self, all: Self, references: f64) -> f64 {
        let difference = references - all.references;
        let share = if all.squares > 0.0 { self.squares / all.squares } else { 0.0 };
        self.references + difference * share
    }
}

/// The part in the sample's noise of a reference that stands for so many.
fn noise(weight: f64) -> f64 {
    weight * (weight - 1.0)
}

/// By how much the bytes that the sample stands for are too few, over the whole trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Scale {
    repeats: Repeats,
    /// True references, and those that the sample stands for.
    references: (u64, f64),
    /// The sums of `c` times a key's bytes, and of `c²`.
    sums: (f64, f64),
}

impl Scale {
    /// Counts references, of which none is sampled yet.
    pub(super) fn pass(&mut self, references: u64) {
        self.references.0 += references;
    }

    /// Counts one that is sampled.
    pub(super) fn count(&mut self, key: u64, bytes: u32, weight: f64) {
        let square = self.repeats.square(0, key);
        self.references.1 += weight;
        self.sums.0 += noise(weight) * f64::from(bytes);
        self.sums.1 += noise(weight) * square;
    }

    /// Forgets a key that left the sample.
    pub(super) fn remove(&mut self, key: u64) {
        self.repeats.remove(key);
    }

    /// The factor by which to multiply bytes, of which the sample stands for so many in all. A sample of very few keys
    /// may say anything, so it is bounded.
    pub(super) fn factor(&self, bytes: f64) -> f64 {
        let difference = self.references.0 as f64 - self.references.1;
        let (products, squares) = self.sums;
        let more = if squares > 0.0 { difference * products / squares } else { 0.0 };
        if bytes > 0.0 { (1.0 + more / bytes).clamp(0.5, 2.0) } else { 1.0 }
    }

    /// The bytes that the map takes.
    pub(super) fn bytes(&self) -> usize {
        self.repeats.bytes()
    }
}

//! Corrects sampled counts: distributes the difference between the estimated and the true number of references, which
//! is known, among hits and misses.
//!
//! SHARDS-adj (Waldspurger et al., FAST 2015) attributes the whole difference to hits at the shortest distance, because
//! most of it comes from keys that are referenced very often. That is wrong if there are no such keys: for uniform keys
//! the error is as large as the sampling noise. So the difference is attributed by regression to the keys that cause it
//! according to the sample. Sampling a key with `c` references, of which `h` are hits, changes the one sum by `c` and
//! the other by `h`, so the error of the hits is `Σch / Σc²` of the difference (Cochran, "Sampling Techniques", 1977,
//! chapter 7). With frequently referenced keys this is the paper's adjustment, without them it is the ratio of hits
//! among the sampled references.
//!
//! The sums are maintained reference by reference: the `c`-th reference of a key adds `c² − (c−1)²` to `Σc²`, and to
//! `Σch` if it is a hit. Each phase has sums of its own, so `c` counts from the start of the phase. A reference with
//! weight `w` contributes `w (w − 1)` to the sampling noise: nothing while all keys are sampled.
//!
//! The bytes that the sample represents are corrected in the same way ([`Scale`]). That matters if keys are alike: the
//! share of sampled references then estimates the share of sampled keys better than the threshold does.

use super::hashed::KeyMap;

/// For each sampled key, the phase of its last reference, and the number of its references in that phase so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeats(KeyMap<(usize, u64)>);

impl Repeats {
    /// Counts a reference to a key in a phase, and returns its contribution to the square of the number of the key's
    /// references in that phase.
    pub(super) fn square(&mut self, phase: usize, key: u64) -> f64 {
        let repeats = self.0.entry(key).or_insert((phase, 0));
        if repeats.0 != phase {
            *repeats = (phase, 0);
        }
        repeats.1 += 1;
        (2 * repeats.1 - 1) as f64
    }

    /// Removes a key that is no longer in the sample.
    pub(super) fn remove(&mut self, key: u64) {
        self.0.remove(&key);
    }

    /// Returns the memory that the map uses, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * 8 / 7 * (size_of::<(u64, usize, u64)>() + 1)
    }
}

/// Weighted sums over a set of sampled references.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weights {
    /// Estimated number of references that the set represents: the sum of the weights.
    pub(super) references: f64,
    /// Sum of the contributions to the squares, each multiplied by its sampling noise.
    pub(super) squares: f64,
}

impl Weights {
    pub(super) fn add(&mut self, weight: f64, square: f64) {
        self.references += weight;
        self.squares += noise(weight) * square;
    }

    /// Returns the corrected number of references of this subset of the set `all`, if `references` is the true number
    /// that `all` represents.
    pub(super) fn adjusted(self, all: Self, references: f64) -> f64 {
        let difference = references - all.references;
        let share = if all.squares > 0.0 { self.squares / all.squares } else { 0.0 };
        self.references + difference * share
    }
}

/// Returns the contribution of a reference with this weight to the sampling noise; 0 for a weight of 1.
fn noise(weight: f64) -> f64 {
    weight * (weight - 1.0)
}

/// The factor that corrects the bytes that a sample represents, over the whole trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Scale {
    repeats: Repeats,
    /// True number of references, and number of references that the sample represents.
    references: (u64, f64),
    /// The sums of `c` times a key's bytes, and of `c²`, both weighted by the sampling noise.
    sums: (f64, f64),
}

impl Scale {
    /// Adds `references` to the true number of references.
    pub(super) fn pass(&mut self, references: u64) {
        self.references.0 += references;
    }

    /// Counts a sampled reference to `key`, of `bytes` bytes, which represents `weight` references.
    pub(super) fn count(&mut self, key: u64, bytes: u32, weight: f64) {
        let square = self.repeats.square(0, key);
        self.references.1 += weight;
        self.sums.0 += noise(weight) * f64::from(bytes);
        self.sums.1 += noise(weight) * square;
    }

    /// Removes a key that is no longer in the sample.
    pub(super) fn remove(&mut self, key: u64) {
        self.repeats.remove(key);
    }

    /// Returns the factor that corrects `bytes`, the bytes that the sample represents in total. It is bounded, because
    /// a sample of very few keys may yield any value.
    pub(super) fn factor(&self, bytes: f64) -> f64 {
        let difference = self.references.0 as f64 - self.references.1;
        let (products, squares) = self.sums;
        let more = if squares > 0.0 { difference * products / squares } else { 0.0 };
        if bytes > 0.0 { (1.0 + more / bytes).clamp(0.5, 2.0) } else { 1.0 }
    }

    /// Returns the memory that the map uses, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.repeats.bytes()
    }
}

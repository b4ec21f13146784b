//! Expected hits of a chain whose keys are uniform hashes, without a trace.
//!
//! A chain reads some documents; the hash of each, modulo the number of documents, is a key of the next phase, which
//! reads each key once ("Database Caching and Sharding Strategies in Chained MR Jobs", §4.1). The paper uses `1/N` as
//! the probability of a hit. It is `d/N`, with `d` the number of distinct keys read before, and `d` grows by the misses
//! of each phase: see [`phase`].
//!
//! **Hits cause further hits.** If the next key is a function of the document alone ([`Mapping::Function`]), a document
//! that is read again leads to a key that was read before. So a hit is followed by one in every later phase: the
//! probability of a first hit is as above, and a chain of `P` phases of `n` keys has about `n²/N · Σ k(P−k)` hits,
//! while independent phases have `n²/N · P(P−1)/2`. For eight phases the factors are 84 and 28.
//!
//! Means follow phase by phase from the occupancy of random cells ([`occupancy`]). Each step is exact given the state
//! before it, with one exception: the probability that two keys map to the same key is assumed equal for keys that are
//! read again and for all others. Variances are those of the linearised recursion (the delta method), so they are valid
//! while deviations are small compared with the mean numbers of keys.

pub mod occupancy;

mod implied;
mod limited;

pub use implied::{Implied, implied};
pub use limited::Order;
pub use occupancy::Estimate;

/// The derivation of the keys of a phase from the documents of the phase before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Each document leads to a key drawn independently: the hash covers more than the document, such as the phase
    /// number.
    Independent,
    /// The next key is a function of the document alone, so that the same document always leads to the same key.
    Function,
}

/// A chain of jobs whose keys are uniform hashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Number of documents of the database, at least 3. Fractional if it is itself an estimate.
    pub documents: f64,
    /// Number of distinct keys that the first phase reads, at most `documents`.
    pub first_keys: f64,
    /// Number of phases of the chain.
    pub phases: usize,
    /// The derivation of the keys of a phase from the documents of the phase before.
    pub mapping: Mapping,
}

/// The expected values of one phase of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Number of keys that the phase reads, each once: hits and misses.
    pub keys: Estimate,
    /// Number of those keys that were read before.
    pub hits: Estimate,
    /// Number of distinct keys that the chain has read up to the end of the phase.
    pub distinct: Estimate,
}

/// The expected values of a whole chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Expected values of each phase, in order.
    pub phases: Vec<Phase>,
    /// Number of hits of all phases together.
    pub hits: Estimate,
    /// Number of keys that all phases read together.
    pub keys: Estimate,
}

/// Returns the hits of a phase that reads `keys` distinct uniform keys, if `distinct` of `documents` keys have been
/// read before and are cached: the hypergeometric distribution, with the mean `keys · distinct / documents`.
#[must_use]
pub fn phase(keys: f64, distinct: f64, documents: f64) -> Estimate {
    let share = distinct / documents;
    let without = (documents - keys) / (documents - 1.0);
    Estimate { mean: keys * share, variance: keys * share * (1.0 - share) * without }
}

impl Chain {
    /// Returns the expected values of the chain with an unlimited cache.
    ///
    /// # Panics
    /// If there are fewer than three documents, or fewer documents than first keys.
    #[must_use]
    pub fn expected(&self) -> Expected {
        assert!(self.documents >= 3.0, "{} documents are too few", self.documents);
        assert!(self.first_keys <= self.documents, "there are more first keys than documents");
        let mut state = State::first(self.first_keys);
        let mut phases = Vec::with_capacity(self.phases);
        for number in 0..self.phases {
            if number > 0 {
                state = state.next(self.documents, self.mapping);
            }
            phases.push(state.phase());
        }
        let none = Estimate { mean: 0.0, variance: 0.0 };
        let total = |of| if self.phases == 0 { none } else { state.sum(&[of]) };
        Expected { hits: total(ALL_HITS), keys: total(ALL_KEYS), phases }
    }
}

/// Indexes of the expected numbers in a [`State`].
const MISSES: usize = 0;
const DISTINCT: usize = 1;
const HITS: usize = 2;
const ALL_HITS: usize = 3;
const ALL_KEYS: usize = 4;
const NUMBERS: usize = 5;

type Matrix = [[f64; NUMBERS]; NUMBERS];

/// The state of a chain after a phase: means and covariances of the numbers with the indexes above.
#[derive(Clone, Copy, Debug)]
struct State {
    mean: [f64; NUMBERS],
    covariance: Matrix,
}

impl State {
    /// Returns the state after the first phase, in which all keys miss.
    fn first(keys: f64) -> Self {
        Self { mean: [keys, keys, 0.0, 0.0, keys], covariance: [[0.0; NUMBERS]; NUMBERS] }
    }

    /// Returns the estimate of the sum of the numbers with these indexes.
    fn sum(&self, of: &[usize]) -> Estimate {
        let mean = of.iter().map(|one| self.mean[*one]).sum();
        let pairs = of.iter().flat_map(|row| of.iter().map(move |column| (row, column)));
        let variance: f64 = pairs.map(|(row, column)| self.covariance[*row][*column]).sum();
        Estimate { mean, variance: variance.max(0.0) }
    }

    fn phase(&self) -> Phase {
        Phase {
            keys: self.sum(&[MISSES, HITS]),
            hits: self.sum(&[HITS]),
            distinct: self.sum(&[DISTINCT]),
        }
    }

    /// Returns the state after the next phase.
    ///
    /// Documents that were not read before draw keys. A draw of a key not read before is a miss, any other a hit. With
    /// [`Mapping::Function`], the documents that were hits lead to hits again, without a draw.
    fn next(&self, documents: f64, mapping: Mapping) -> Self {
        let [misses, distinct, hits, all_hits, all_keys] = self.mean;
        let (draws, images) = match mapping {
            Mapping::Independent => (misses + hits, Estimate { mean: 0.0, variance: 0.0 }),
            Mapping::Function => (misses, occupancy::unique(hits, documents)),
        };
        let (new, old) = (documents - distinct, distinct - images.mean);
        let share = occupancy::share(draws, documents);
        let missed = occupancy::of(new, draws, documents);
        let hit = occupancy::of(old, draws, documents);
        let next_hits = images.mean + hit.mean;
        let mean = [
            missed.mean,
            distinct + missed.mean,
            next_hits,
            all_hits + next_hits,
            all_keys + missed.mean + next_hits,
        ];

        // The derivatives by one more draw, and by one more hit that is mapped.
        let by_draw = occupancy::share_by_draw(draws, documents);
        let by_image = occupancy::unique_by_draw(hits, documents) * (1.0 - share);
        let by_hits = |drawn: f64| match mapping {
            Mapping::Independent => drawn,
            Mapping::Function => 0.0,
        };
        let mapped = match mapping {
            Mapping::Independent => 0.0,
            Mapping::Function => by_image,
        };
        let mut slope = [[0.0; NUMBERS]; NUMBERS];
        slope[MISSES] = [new * by_draw, -share, by_hits(new * by_draw), 0.0, 0.0];
        slope[HITS] = [old * by_draw, share, by_hits(old * by_draw) + mapped, 0.0, 0.0];
        slope[DISTINCT] = slope[MISSES];
        slope[DISTINCT][DISTINCT] += 1.0;
        slope[ALL_HITS] = slope[HITS];
        slope[ALL_HITS][ALL_HITS] += 1.0;
        slope[ALL_KEYS] = std::array::from_fn(|from| slope[MISSES][from] + slope[HITS][from]);
        slope[ALL_KEYS][ALL_KEYS] += 1.0;

        let mut covariance = carried(&slope, &self.covariance);
        // The variances added by the draws of this phase: of misses, of hits, and their covariance.
        let both = occupancy::covariance(new, old, draws, documents);
        let hit_variance = hit.variance + (1.0 - share).powi(2) * images.variance;
        let weights = |number: usize| match number {
            MISSES | DISTINCT => (1.0, 0.0),
            HITS | ALL_HITS => (0.0, 1.0),
            _ => (1.0, 1.0),
        };
        for (row, cells) in covariance.iter_mut().enumerate() {
            for (column, cell) in cells.iter_mut().enumerate() {
                let ((a, b), (c, d)) = (weights(row), weights(column));
                *cell += a * c * missed.variance + b * d * hit_variance + (a * d + b * c) * both;
            }
        }
        Self { mean, covariance }
    }
}

/// Returns the covariance of the numbers after a linear step with the given slopes.
fn carried(slope: &Matrix, covariance: &Matrix) -> Matrix {
    let mut carried = [[0.0; NUMBERS]; NUMBERS];
    for (row, cells) in carried.iter_mut().enumerate() {
        for (column, cell) in cells.iter_mut().enumerate() {
            for (i, inner) in covariance.iter().enumerate() {
                for (j, value) in inner.iter().enumerate() {
                    *cell += slope[row][i] * value * slope[column][j];
                }
            }
        }
    }
    carried
}

#[cfg(test)]
mod tests;

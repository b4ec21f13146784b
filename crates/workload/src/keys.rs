//! Key distributions: how operations are distributed over the existing keys.
//!
//! Uniform, Zipf and Latest as in Morphus §5.1 (after YCSB), with the paper's shape 1.5. Keys are numbered in
//! the order of insertion, `0..population`, and the population grows while the load runs. Sampling takes
//! constant time for any population (rejection sampling, without a table), so that growth costs nothing.

use std::fmt;
use std::str::FromStr;

use rand::{Rng, RngExt};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use crate::scatter::Permutation;

/// Default of the exponent of Zipf and Latest: the value of Morphus §5.1.
pub const PAPER_SHAPE: f64 = 1.5;

/// A distribution of operations over the existing keys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Distribution {
    /// Every key has the same probability.
    Uniform,
    /// The `r`-th most popular key has a probability proportional to `r^-shape`. Popularity does not depend
    /// on a key's age or its position in the key order.
    Zipf {
        /// Exponent of the rank, finite and at least 0.
        shape: f64,
    },
    /// Like Zipf, but the most popular key is the one that was inserted last, the next that before it.
    Latest {
        /// Exponent of the rank, finite and at least 0.
        shape: f64,
    },
}

/// The reason why a distribution could not be made of a name and a shape.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeysError {
    /// The name is not that of a distribution.
    #[error("`{0}` is no key distribution; use uniform, zipf or latest")]
    Name(String),
    /// The shape is negative or not a finite number.
    #[error("the shape {0} must be a finite number of at least 0")]
    Shape(f64),
}

impl Distribution {
    /// Returns the distribution named `name` (`uniform`, `zipf`, `latest`); `shape` is the exponent of the last two.
    ///
    /// # Errors
    /// Returns an error if the name is unknown, or if the shape is negative or not finite.
    pub fn named(name: &str, shape: f64) -> Result<Self, KeysError> {
        if !shape.is_finite() || shape < 0.0 {
            return Err(KeysError::Shape(shape));
        }
        match name {
            "uniform" => Ok(Self::Uniform),
            "zipf" => Ok(Self::Zipf { shape }),
            "latest" => Ok(Self::Latest { shape }),
            other => Err(KeysError::Name(other.to_owned())),
        }
    }
}

impl FromStr for Distribution {
    type Err = KeysError;

    fn from_str(name: &str) -> Result<Self, KeysError> {
        Self::named(name, PAPER_SHAPE)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { shape } => write!(f, "zipf (shape {shape})"),
            Self::Latest { shape } => write!(f, "latest (shape {shape})"),
        }
    }
}

/// Draws keys from a growing population of keys according to a [`Distribution`].
#[derive(Debug, Clone)]
pub struct Chooser {
    distribution: Distribution,
    popularity: Permutation,
    ranks: Option<(u64, Zipf<f64>)>,
}

impl Chooser {
    /// Returns a chooser for a population that starts with the keys `0..initial`. With Zipf, `seed` scatters the
    /// popularity over these keys; it does not change while the population grows, and later keys are the least
    /// popular ones.
    #[must_use]
    pub fn new(distribution: Distribution, initial: u64, seed: u64) -> Self {
        Self { distribution, popularity: Permutation::new(initial, seed), ranks: None }
    }

    /// Draws one of the keys `0..population`, or returns `None` if `population` is 0.
    pub fn choose(&mut self, population: u64, rng: &mut impl Rng) -> Option<u64> {
        if population == 0 {
            return None;
        }
        Some(match self.distribution {
            Distribution::Uniform => rng.random_range(0..population),
            Distribution::Zipf { shape } => {
                let rank = self.rank(population, shape, rng);
                let scattered = rank < self.popularity.len().min(population)
                    && self.popularity.len() <= population;
                if scattered { self.popularity.at(rank) } else { rank }
            }
            Distribution::Latest { shape } => population - 1 - self.rank(population, shape, rng),
        })
    }

    /// Draws a rank of popularity in `0..population` by Zipf's law with the exponent `shape`; rank 0 is the most
    /// popular.
    fn rank(&mut self, population: u64, shape: f64, rng: &mut impl Rng) -> u64 {
        let zipf = match self.ranks {
            Some((known, zipf)) if known == population => zipf,
            _ => {
                let zipf = Zipf::new(population as f64, shape)
                    .expect("the population is at least 1 and the shape was checked");
                self.ranks = Some((population, zipf));
                zipf
            }
        };
        (zipf.sample(rng) as u64).clamp(1, population) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const DRAWS: u32 = 200_000;

    fn frequencies(chooser: &mut Chooser, population: u64) -> Vec<f64> {
        let mut rng = StdRng::seed_from_u64(11);
        let mut counts = vec![0.0; population as usize];
        for _ in 0..DRAWS {
            counts[chooser.choose(population, &mut rng).unwrap() as usize] += 1.0;
        }
        counts
    }

    /// Expected counts by rank, straight from the definition.
    fn expected(population: u64, shape: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=population).map(|r| (r as f64).powf(-shape)).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total * f64::from(DRAWS)).collect()
    }

    /// Pearson's statistic over ranks, the thin tail pooled so that every cell expects at least
    /// 20, compared with the 99.99 % point of its normal approximation.
    fn assert_follows(observed: &[f64], expected: &[f64]) {
        let (mut statistic, mut cells) = (0.0, 0.0);
        let (mut pool_observed, mut pool_expected) = (0.0, 0.0);
        for (o, e) in observed.iter().zip(expected) {
            pool_observed += o;
            pool_expected += e;
            if pool_expected >= 20.0 {
                statistic += (pool_observed - pool_expected).powi(2) / pool_expected;
                cells += 1.0;
                (pool_observed, pool_expected) = (0.0, 0.0);
            }
        }
        let freedom: f64 = cells - 1.0;
        let limit = freedom + 3.72 * (2.0 * freedom).sqrt() + 6.0;
        assert!(statistic < limit, "chi-square {statistic:.1} over {freedom} exceeds {limit:.1}");
    }

    #[test]
    fn uniform_treats_all_keys_alike() {
        let mut chooser = Chooser::new(Distribution::Uniform, 500, 3);
        let observed = frequencies(&mut chooser, 500);
        assert_follows(&observed, &vec![f64::from(DRAWS) / 500.0; 500]);
    }

    #[test]
    fn latest_prefers_what_was_inserted_last() {
        for shape in [0.5, 1.0, 1.5] {
            let mut chooser = Chooser::new(Distribution::Latest { shape }, 100, 3);
            let mut observed = frequencies(&mut chooser, 1000);
            observed.reverse();
            assert_follows(&observed, &expected(1000, shape));
        }
    }

    #[test]
    fn zipf_by_popularity_follows_the_law() {
        for shape in [0.0, 0.99, 1.5] {
            let mut chooser = Chooser::new(Distribution::Zipf { shape }, 1000, 3);
            let observed = frequencies(&mut chooser, 1000);
            let popularity = Permutation::new(1000, 3);
            let by_rank: Vec<f64> =
                (0..1000).map(|rank| observed[popularity.at(rank) as usize]).collect();
            assert_follows(&by_rank, &expected(1000, shape));
        }
    }

    #[test]
    fn the_most_popular_key_stays_so_while_the_population_grows() {
        let mut chooser = Chooser::new(Distribution::Zipf { shape: 1.5 }, 1000, 3);
        let hottest = |counts: Vec<f64>| {
            (0..counts.len()).max_by(|a, b| counts[*a].total_cmp(&counts[*b])).unwrap()
        };
        let before = hottest(frequencies(&mut chooser, 1000));
        let after = hottest(frequencies(&mut chooser, 1777));
        assert_eq!(before, after);
    }

    #[test]
    fn hot_keys_are_spread_over_the_key_space() {
        let popularity = Permutation::new(100_000, 3);
        let quarters: std::collections::HashSet<u64> =
            (0..32).map(|rank| popularity.at(rank) / 25_000).collect();
        assert_eq!(quarters.len(), 4);
    }

    #[test]
    fn an_empty_population_has_no_key() {
        let mut chooser = Chooser::new(Distribution::Uniform, 0, 3);
        assert_eq!(chooser.choose(0, &mut StdRng::seed_from_u64(1)), None);
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        assert_eq!(Distribution::named("zipf", -1.0), Err(KeysError::Shape(-1.0)));
        assert_eq!(Distribution::named("zeta", 1.0), Err(KeysError::Name("zeta".into())));
    }
}

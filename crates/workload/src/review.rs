//! Reviews: documents with the ten fields of the Amazon data set that Morphus §5.1 loads.
//!
//! A review is a pure function of the generator's parameters and the number of the key, so that any document
//! can be generated again, for inserting it and for checking it. `productID` is the old shard key and
//! `userID` the new one. Their correlation is a parameter: 0 is the paper's uncorrelated case, 1 its
//! correlated one, in which the new key runs in the reverse order of the old (Morphus §5.4, Fig. 7).

use serde::{Deserialize, Serialize};

use crate::scatter::{Stream, mix_pair, unit};

/// One review, the document of a load. Field names in a database are those of the data set, in camel case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    /// Id of the product, `B` and nine digits; the old shard key.
    #[serde(rename = "productID")]
    pub product_id: String,
    /// Name of the product.
    pub title: String,
    /// Price in dollars, a multiple of 0.01; it follows from the `seq` of the write that set it.
    pub price: f64,
    /// Id of the author, `A` and nine digits; the new shard key.
    #[serde(rename = "userID")]
    pub user_id: String,
    /// Name of the author.
    pub profile_name: String,
    /// Number of readers that found the review helpful, of all that voted, as in `3/5`.
    pub helpfulness: String,
    /// Rating, a whole number from 1 to 5.
    pub score: f64,
    /// Time of writing, in seconds since 1970 UTC.
    pub time: i64,
    /// Headline of the review.
    pub summary: String,
    /// Body of the review; its length gives the document the requested size.
    pub text: String,
}

/// Parameters of the generator of reviews.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reviews {
    /// Seed from which all content of the reviews follows.
    pub seed: u64,
    /// Size of a stored document in bytes, including field names. Accurate to eight bytes, from
    /// [`Reviews::SIZE_BYTES_MIN`] on.
    pub size_bytes: u32,
    /// Number of different products, 1 to 999,999,999.
    pub products: u64,
    /// Number of different authors, 1 to 999,999,999.
    pub users: u64,
    /// Share of reviews whose author follows from the product, in reverse order; 0 to 1.
    pub correlation: f64,
}

/// The reason why parameters of the generator are invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReviewsError {
    /// This document size in bytes is not between [`Reviews::SIZE_BYTES_MIN`] and [`Reviews::SIZE_BYTES_MAX`].
    #[error("a document of {0} bytes cannot be made; use {min} to {max}",
        min = Reviews::SIZE_BYTES_MIN, max = Reviews::SIZE_BYTES_MAX)]
    Size(u32),
    /// This number of products or of authors is zero, or greater than nine digits can represent.
    #[error("the number of products and of users must lie between 1 and 999999999, not {0}")]
    Cardinality(u64),
    /// This correlation is not between 0 and 1.
    #[error("the correlation {0} does not lie between 0 and 1")]
    Correlation(f64),
}

/// Bytes of a stored document other than its texts: field names, types, lengths, numbers, `_id`, `seq` and the
/// counter, in a binary format like BSON. It is the mean for the longest form of `_id`, a text of 19 bytes, and the
/// shortest, an integer: both differ from it by eight bytes.
const FIXED_BYTES: usize = 216;
const FIRST_TIME_S: i64 = 1_104_537_600;
const SECONDS_OF_TEN_YEARS: u64 = 315_360_000;

impl Default for Reviews {
    fn default() -> Self {
        Self { seed: 1, size_bytes: 1000, products: 50_000, users: 50_000, correlation: 0.0 }
    }
}

impl Reviews {
    /// Smallest document size that may be requested, in bytes.
    pub const SIZE_BYTES_MIN: u32 = 400;
    /// Largest document size that may be requested, in bytes; it leaves room below MongoDB's 16 MiB.
    pub const SIZE_BYTES_MAX: u32 = 16_000_000;

    /// Checks that each parameter is in its range.
    ///
    /// # Errors
    /// Returns an error that names the parameter out of range.
    pub fn validate(&self) -> Result<(), ReviewsError> {
        if !(Self::SIZE_BYTES_MIN..=Self::SIZE_BYTES_MAX).contains(&self.size_bytes) {
            return Err(ReviewsError::Size(self.size_bytes));
        }
        for cardinality in [self.products, self.users] {
            if !(1..=999_999_999).contains(&cardinality) {
                return Err(ReviewsError::Cardinality(cardinality));
            }
        }
        if !(0.0..=1.0).contains(&self.correlation) {
            return Err(ReviewsError::Correlation(self.correlation));
        }
        Ok(())
    }

    /// Returns the `productID` and the `userID` of the review under `key`, without generating the rest.
    #[must_use]
    pub fn shard_keys(&self, key: u64) -> (String, String) {
        let (product, user) = self.pair(&mut Stream::new(self.seed, key));
        (product_id(product), user_id(user))
    }

    /// Returns the review under the key number `key`, with the price that the write `seq` sets.
    #[must_use]
    pub fn review(&self, key: u64, seq: u64) -> Review {
        let mut stream = Stream::new(self.seed, key);
        let (product, user) = self.pair(&mut stream);
        let votes = stream.below(20);
        let mut review = Review {
            product_id: product_id(product),
            title: words(&mut Stream::new(self.seed ^ 1, product), 24, 56),
            price: self.price(seq),
            user_id: user_id(user),
            profile_name: words(&mut Stream::new(self.seed ^ 2, user), 8, 20),
            helpfulness: format!("{}/{votes}", stream.below(votes + 1)),
            score: (1 + stream.below(5)) as f64,
            time: FIRST_TIME_S + stream.below(SECONDS_OF_TEN_YEARS) as i64,
            summary: words(&mut stream, 16, 48),
            text: String::new(),
        };
        let taken = FIXED_BYTES
            + review.title.len()
            + review.profile_name.len()
            + review.helpfulness.len()
            + review.summary.len();
        let text_bytes = (self.size_bytes as usize).saturating_sub(taken);
        review.text = words(&mut stream, text_bytes, text_bytes);
        review
    }

    /// Returns the price that the write with the number `seq` sets, in dollars.
    #[must_use]
    pub fn price(&self, seq: u64) -> f64 {
        (mix_pair(self.seed ^ 3, seq) % 49_900 + 100) as f64 / 100.0
    }

    /// Returns the numbers of a review's product and author, drawn from the first three values of its stream.
    fn pair(&self, stream: &mut Stream) -> (u64, u64) {
        let product = stream.below(self.products);
        let (coin, independent) = (unit(stream.next_bits()), stream.below(self.users));
        if coin >= self.correlation {
            return (product, independent);
        }
        let along = u128::from(product) * u128::from(self.users) / u128::from(self.products);
        (product, self.users - 1 - along as u64)
    }
}

fn product_id(number: u64) -> String {
    format!("B{number:09}")
}

fn user_id(number: u64) -> String {
    format!("A{number:09}")
}

/// Returns words of the vocabulary separated by spaces, cut at a random length of `min..=max` bytes.
fn words(stream: &mut Stream, min: usize, max: usize) -> String {
    let len = min + stream.below((max - min + 1) as u64) as usize;
    let mut text = String::with_capacity(len + 16);
    while text.len() < len {
        // One random value selects eight words: filling a document must cost less than sending it.
        let mut bits = stream.next_bits();
        for _ in 0..8 {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(VOCABULARY[(bits & 127) as usize]);
            bits >>= 8;
        }
    }
    text.truncate(len);
    text
}

/// 128 words, all in ASCII, so that a text can be cut anywhere.
const VOCABULARY: [&str; 128] = [
    "about",
    "after",
    "again",
    "album",
    "almost",
    "also",
    "always",
    "amazing",
    "another",
    "arrived",
    "author",
    "awful",
    "bad",
    "battery",
    "beautiful",
    "because",
    "before",
    "best",
    "better",
    "book",
    "bought",
    "box",
    "bright",
    "broke",
    "but",
    "buy",
    "cable",
    "camera",
    "chapter",
    "cheap",
    "child",
    "classic",
    "clear",
    "color",
    "cover",
    "daughter",
    "day",
    "delivery",
    "design",
    "different",
    "disc",
    "easy",
    "edition",
    "ending",
    "enjoyed",
    "every",
    "excellent",
    "expected",
    "family",
    "fast",
    "favorite",
    "feel",
    "few",
    "film",
    "fine",
    "first",
    "fit",
    "for",
    "found",
    "fresh",
    "friend",
    "from",
    "game",
    "gift",
    "good",
    "great",
    "guitar",
    "happy",
    "hard",
    "have",
    "heavy",
    "help",
    "hope",
    "however",
    "instead",
    "kitchen",
    "late",
    "learn",
    "light",
    "like",
    "listen",
    "little",
    "long",
    "love",
    "material",
    "money",
    "month",
    "more",
    "movie",
    "music",
    "never",
    "new",
    "nice",
    "noise",
    "of",
    "old",
    "only",
    "order",
    "page",
    "paper",
    "perfect",
    "picture",
    "piece",
    "plastic",
    "play",
    "price",
    "problem",
    "product",
    "quality",
    "quick",
    "read",
    "really",
    "recommend",
    "return",
    "screen",
    "size",
    "slow",
    "small",
    "sound",
    "story",
    "the",
    "thin",
    "time",
    "use",
    "very",
    "well",
    "work",
    "year",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_review_is_the_same_each_time() {
        let reviews = Reviews::default();
        assert_eq!(reviews.review(42, 7), reviews.review(42, 7));
        assert_ne!(reviews.review(42, 7).text, reviews.review(43, 7).text);
        assert_ne!(Reviews { seed: 2, ..reviews }.review(42, 7), reviews.review(42, 7));
    }

    #[test]
    fn shard_keys_are_those_of_the_review() {
        let reviews = Reviews { correlation: 0.5, ..Reviews::default() };
        for key in 0..100 {
            let review = reviews.review(key, key);
            assert_eq!(reviews.shard_keys(key), (review.product_id, review.user_id));
        }
    }

    #[test]
    fn only_the_price_depends_on_the_write() {
        let reviews = Reviews::default();
        let (first, second) = (reviews.review(42, 7), reviews.review(42, 8));
        assert_ne!(first.price, second.price);
        assert_eq!(Review { price: 0.0, ..first }, Review { price: 0.0, ..second });
    }

    #[test]
    fn the_correlated_new_key_runs_in_reverse() {
        let reviews = Reviews { correlation: 1.0, ..Reviews::default() };
        let mut pairs: Vec<_> = (0..500).map(|key| reviews.review(key, key)).collect();
        pairs.sort_by(|a, b| a.product_id.cmp(&b.product_id));
        assert!(pairs.windows(2).all(|pair| pair[0].user_id >= pair[1].user_id));
    }

    /// Pearson's correlation of old and new key as numbers.
    fn correlation(reviews: Reviews) -> f64 {
        let number = |text: &str| text[1..].parse::<f64>().unwrap();
        let pairs: Vec<(f64, f64)> = (0..4000)
            .map(|key| reviews.review(key, key))
            .map(|review| (number(&review.product_id), number(&review.user_id)))
            .collect();
        let mean = |pick: fn(&(f64, f64)) -> f64| pairs.iter().map(pick).sum::<f64>() / 4000.0;
        let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
            pairs.iter().map(|(x, y)| f(x - mx, y - my)).sum()
        };
        sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
    }

    #[test]
    fn correlation_follows_the_parameter() {
        for wanted in [0.0, 0.5, 1.0] {
            let got = correlation(Reviews { correlation: wanted, ..Reviews::default() });
            assert!((got + wanted).abs() < 0.06, "{got} for {wanted}");
        }
    }

    #[test]
    fn keys_use_the_cardinality_that_was_asked_for() {
        let reviews = Reviews { products: 7, users: 3, ..Reviews::default() };
        let made: Vec<_> = (0..1000).map(|key| reviews.review(key, key)).collect();
        assert_eq!(made.iter().map(|r| &r.product_id).collect::<HashSet<_>>().len(), 7);
        assert_eq!(made.iter().map(|r| &r.user_id).collect::<HashSet<_>>().len(), 3);
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let base = Reviews::default();
        let size = Reviews { size_bytes: 10, ..base };
        assert_eq!(size.validate(), Err(ReviewsError::Size(10)));
        let products = Reviews { products: 0, ..base };
        assert_eq!(products.validate(), Err(ReviewsError::Cardinality(0)));
        let correlation = Reviews { correlation: 1.5, ..base };
        assert_eq!(correlation.validate(), Err(ReviewsError::Correlation(1.5)));
        assert_eq!(base.validate(), Ok(()));
    }
}

//! The next key: drawn from all keys of the collection by the SHA-256 of a document.
//!
//! The hash covers the whole document, its BSON as the collection has it: `sha256(document)`, as one big-endian
//! integer, modulo the number of keys, is a *rank*; in Python `int.from_bytes(sha256(raw).digest(), "big") % n`. A rank
//! identifies a key: the rank itself if the `_id`s are `0..n`, or a line of a list.
//!
//! For a Zipf distribution of shape s, the first 53 bits of the hash are a number u in [0, 1), and the popularity drawn
//! is the least k with H(k) ≥ u · H(n), where H(k) = Σ_{i ≤ k} i^-s. A fixed permutation scatters popular keys over all
//! ranks.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use imago_workload::scatter::Permutation;
use sha2::{Digest, Sha256};

use super::Job;
use super::error::{Error, Result};
use super::key::Key;

/// Maximum number of keys in a list file, whose lines are held in memory.
const LISTED_MAX: usize = 50_000_000;
/// Seed of the permutation that scatters the popular keys of a Zipf distribution over all ranks. Another seed would
/// make other keys popular.
const SCATTER_SEED: u64 = 0x1a6;

/// All keys of a collection, by rank.
#[derive(Clone, Debug)]
pub enum Keys {
    /// The keys are the integers from 0 up to, but not including, this number.
    Numbers(u64),
    /// The keys are the lines of a list file, as text; the rank is the index of the line.
    Listed(Arc<Vec<String>>),
}

impl Keys {
    /// Reads a list of keys from the file `path`, one key per line.
    ///
    /// # Errors
    /// The file cannot be read, is empty, has too many keys, or a line is not a key.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |cause| Error::Read { what: path.display().to_string(), cause };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut listed = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(failed)?;
            let number = listed.len() as u64 + 1;
            Key::parse(&line).map_err(|problem| Error::Input { line: number, problem })?;
            if listed.len() == LISTED_MAX {
                let what = format!("{} has more than {LISTED_MAX} keys", path.display());
                return Err(Error::Usage(what));
            }
            listed.push(line);
        }
        if listed.is_empty() {
            return Err(Error::Usage(format!("{} has no key", path.display())));
        }
        Ok(Self::Listed(Arc::new(listed)))
    }

    /// Returns the number of keys, which is the number of ranks; a key that a list contains twice counts twice.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Numbers(count) => *count,
            Self::Listed(listed) => listed.len() as u64,
        }
    }

    /// Returns the key of a rank below [`Keys::count`].
    #[must_use]
    pub fn key(&self, rank: u64) -> Key {
        match self {
            Self::Numbers(_) => Key::of_number(i64::try_from(rank).unwrap_or(i64::MAX)),
            Self::Listed(listed) => {
                Key::parse(&listed[place(rank)]).expect("each line was read as a key")
            }
        }
    }

    /// Returns true if the keys of the ranks `one` and `other` are written alike: a list may contain a key twice.
    #[must_use]
    pub fn is_same(&self, one: u64, other: u64) -> bool {
        match self {
            Self::Numbers(_) => one == other,
            Self::Listed(listed) => one == other || listed[place(one)] == listed[place(other)],
        }
    }

    /// Appends the key of a rank to `line`, in the text form that a map reads as its input, without a line break.
    pub fn write(&self, rank: u64, line: &mut Vec<u8>) {
        match self {
            Self::Numbers(_) => {
                use std::io::Write as _;
                write!(line, "{rank}").expect("into memory");
            }
            Self::Listed(listed) => line.extend_from_slice(listed[place(rank)].as_bytes()),
        }
    }
}

/// Converts a rank into an index of the list of keys.
fn place(rank: u64) -> usize {
    usize::try_from(rank).expect("a rank is below the length of a list in memory")
}

/// The rule that computes the next key from a document: a uniform or a Zipf-distributed draw by the document's
/// SHA-256.
#[derive(Clone, Debug)]
pub struct Next {
    /// All keys of the collection, from which the next key is drawn.
    keys: Keys,
    /// The Zipf distribution of the draw, and the permutation that scatters its popular keys; `None` for a uniform
    /// draw.
    zipf: Option<(Zipf, Permutation)>,
}

impl Next {
    /// Makes the rule by which `job` draws its next keys from `keys`. `shape` is the exponent s of the Zipf
    /// distribution; only [`Job::Zipf`] uses it.
    ///
    /// # Errors
    /// There are no keys or more than 2^63 - 1; or the shape is not above 0 and at most 10.
    pub fn new(job: Job, keys: Keys, shape: f64) -> Result<Self> {
        let count = keys.count();
        if count == 0 || i64::try_from(count).is_err() {
            return Err(Error::Usage(format!("{count} keys: it must be 1 to 2^63 - 1")));
        }
        let zipf = match job {
            Job::Zipf => {
                if !(shape > 0.0 && shape <= 10.0) {
                    return Err(Error::Usage(format!(
                        "the shape {shape}: it must be above 0, at most 10"
                    )));
                }
                Some((Zipf::new(count, shape), Permutation::new(count, SCATTER_SEED)))
            }
            Job::Hash | Job::Merkle => None,
        };
        Ok(Self { keys, zipf })
    }

    /// Returns all keys of the collection.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the rank of the key that follows from a document; `document` is the whole document as BSON.
    #[must_use]
    pub fn rank(&self, document: &[u8]) -> u64 {
        match &self.zipf {
            None => rank_of(document, self.keys.count()),
            Some((zipf, scattered)) => {
                let digest = Sha256::digest(document);
                let first = digest.first_chunk::<8>().expect("a digest has 32 bytes");
                let unit = (u64::from_be_bytes(*first) >> 11) as f64 / (1_u64 << 53) as f64;
                scattered.at(zipf.popularity(unit) - 1)
            }
        }
    }
}

/// Returns the SHA-256 of the document's bytes, as one big-endian integer, modulo `count`.
///
/// # Panics
/// If `count` is 0.
#[must_use]
pub fn rank_of(document: &[u8], count: u64) -> u64 {
    let words = Sha256::digest(document);
    let (words, _) = words.as_chunks::<8>();
    words.iter().fold(0, |rest, word| {
        let value = (u128::from(rest) << 64) | u128::from(u64::from_be_bytes(*word));
        (value % u128::from(count)) as u64
    })
}

/// The inverse of a Zipf distribution's cumulative sum H(k). The first [`EXACT`] sums are computed term by term, the
/// others by the Euler–Maclaurin formula, whose error is below 1e-12 there. So the memory does not grow with the n
/// values.
#[derive(Clone, Debug)]
struct Zipf {
    /// Number of values n of the distribution: the number of keys.
    count: u64,
    /// Exponent s of the distribution: the value k has the weight k^-s.
    shape: f64,
    /// The cumulative sums H(1), H(2), … up to H([`EXACT`]).
    sums: Vec<f64>,
    /// The sum of all weights, H(n).
    total: f64,
}

/// Number of cumulative sums H(k) that are computed term by term.
const EXACT: u64 = 1_024;

impl Zipf {
    fn new(count: u64, shape: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count.min(EXACT)).map(|rank| {
            sum += (rank as f64).powf(-shape);
            sum
        });
        let mut zipf = Self { count, shape, sums: sums.collect(), total: 0.0 };
        zipf.total = zipf.sum(count);
        zipf
    }

    /// Returns the cumulative sum H(k) of the first k weights; k is at least 1.
    fn sum(&self, k: u64) -> f64 {
        if let Some(sum) = usize::try_from(k - 1).ok().and_then(|at| self.sums.get(at)) {
            return *sum;
        }
        let (s, m, k) = (self.shape, EXACT as f64, k as f64);
        let integral = if (s - 1.0).abs() < 1e-9 {
            (k / m).ln()
        } else {
            (k.powf(1.0 - s) - m.powf(1.0 - s)) / (1.0 - s)
        };
        let slope = |x: f64| -s * x.powf(-s - 1.0);
        let ends = f64::midpoint(k.powf(-s), -m.powf(-s));
        self.sums[self.sums.len() - 1] + integral + ends + (slope(k) - slope(m)) / 12.0
    }

    /// Returns the value drawn by `unit`, a number in [0, 1): the least k, from 1 on, with H(k) ≥ `unit` · H(n).
    fn popularity(&self, unit: f64) -> u64 {
        let wanted = unit * self.total;
        let (mut below, mut enough) = (0, self.count);
        while enough - below > 1 {
            let middle = below + (enough - below) / 2;
            if self.sum(middle) >= wanted { enough = middle } else { below = middle }
        }
        enough
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Byte by byte, as one divides by hand.
    fn modulo_by_hand(document: &[u8], count: u64) -> u64 {
        let digest = Sha256::digest(document);
        let step = |rest: u128, byte: &u8| (rest * 256 + u128::from(*byte)) % u128::from(count);
        digest.iter().fold(0, step) as u64
    }

    #[test]
    fn a_known_hash_has_a_known_rank() {
        // sha256("abc") = ba7816bf…f20015ad: its last byte, and its last decimal digits.
        assert_eq!(rank_of(b"abc", 256), 0xad);
        assert_eq!(rank_of(b"abc", 1), 0);
        assert_eq!(rank_of(b"abc", 1 << 32), 0xf200_15ad);
    }

    proptest! {
        #[test]
        fn a_rank_is_the_hash_modulo_the_count(document: Vec<u8>, count in 1..=u64::MAX) {
            prop_assert_eq!(rank_of(&document, count), modulo_by_hand(&document, count));
        }

        #[test]
        fn a_popularity_is_that_of_the_added_up_sums(
            count in 1_u64..5_000, shape in 0.2_f64..3.0, unit in 0.0_f64..1.0,
        ) {
            let mut sums = vec![0.0];
            (1..=count).for_each(|k| sums.push(sums[sums.len() - 1] + (k as f64).powf(-shape)));
            let found = Zipf::new(count, shape).popularity(unit);
            let wanted = unit * sums[sums.len() - 1];
            // The least k, but for the last digits of the sums.
            let at = usize::try_from(found).unwrap();
            prop_assert!(sums[at] >= wanted - 1e-9);
            prop_assert!(found == 1 || sums[at - 1] < wanted + 1e-9);
        }
    }

    #[test]
    fn popular_keys_are_drawn_in_their_proportions() {
        let (count, shape, draws) = (1_000_000, 1.1, 40_000_u32);
        let next = Next::new(Job::Zipf, Keys::Numbers(count), shape).unwrap();
        let (_, scattered) = next.zipf.as_ref().unwrap();
        let most_popular = scattered.at(0);
        let ranks = (0..draws).map(|number| next.rank(&number.to_le_bytes()));
        let drawn = ranks.filter(|rank| *rank == most_popular).count() as f64;
        let total: f64 = (1..=count).map(|k| (k as f64).powf(-shape)).sum();
        let expected = f64::from(draws) / total;
        assert!((drawn - expected).abs() < 4.0 * expected.sqrt(), "{drawn} of {expected}");
    }

    #[test]
    fn what_cannot_be_drawn_from_is_refused() {
        assert!(Next::new(Job::Hash, Keys::Numbers(0), 1.0).is_err());
        assert!(Next::new(Job::Zipf, Keys::Numbers(5), 0.0).is_err());
        assert!(Next::new(Job::Zipf, Keys::Numbers(5), f64::NAN).is_err());
        let one = Next::new(Job::Zipf, Keys::Numbers(1), 1.0).unwrap();
        assert_eq!(one.rank(b"a document"), 0);
    }
}

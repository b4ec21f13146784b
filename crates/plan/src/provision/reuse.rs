//! Miss-ratio curves: how many references of a chain of jobs a cache of each size serves.
//!
//! A chain reads its keys in bursts, one for each phase. A [`Curve`] gives, for each phase and each capacity in bytes,
//! the number of references that find their key in the cache. There are three ways to compute one:
//!
//! - [`exact()`]: stack distances (Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal
//!   1970) of an LRU cache, at every capacity at once; memory grows with the distinct keys.
//! - [`sampled()`]: the same from a fixed number of sampled keys (Waldspurger et al., "Efficient MRC Construction with
//!   SHARDS", FAST 2015); memory does not grow.
//! - [`simulated()`]: for policies without stack distances, those of Redis, by a simulation at each capacity, scaled
//!   down by sampling keys (Waldspurger et al., "Cache Modeling and Optimization using Miniature Simulations", USENIX
//!   ATC 2017).
//!
//! [`pages`] tells the reads of shards whose storage caches are too small.
//!
//! [`uniform`] needs no trace: it computes the expectation for a chain whose keys are uniform hashes.
//!
//! **The cache.** Entries are looked up by key. A reference that finds its key is a hit. Then, hit or miss, the entry
//! becomes the newest one and takes the reference's size, and the oldest entries are evicted until all fit. An entry
//! that is larger than the cache therefore empties it and is evicted itself: it is never a hit. An entry whose size
//! changed since its last reference is a hit if the old one was still cached: a cache does not know that the document
//! was written. A cache of zero bytes has no hits, not even of entries of zero bytes.
//!
//! Invariant: all three count hits by the same rules; without sampling, the counts are exactly those of a list ordered
//! by last use.

mod curve;
mod exact;
mod hashed;
#[cfg(test)]
mod oracle;
pub mod pages;
mod repeats;
mod sampled;
mod simulated;
mod stack;
pub mod uniform;

pub use curve::{Curve, Point};
pub use exact::exact;
pub use sampled::{Sampling, sampled, sampled_with_bytes};
pub use simulated::{Policy, simulated};

/// One reference to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Hash of the key, over all 64 bits; equal for equal keys only.
    pub key: u64,
    /// Size of the key's entry in a cache after this reference, overhead included, in bytes.
    pub bytes: u32,
}

/// The references of a chain of jobs, phase by phase, each phase in the order of its references.
pub type Phases = [Vec<Reference>];

/// The content of the cache before the first counted reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The cache is empty.
    Cold,
    /// The cache has served the whole trace once before.
    Warm,
}

impl Start {
    /// Returns, for each pass over the trace, whether the references of that pass are counted.
    fn passes(self) -> &'static [bool] {
        match self {
            Self::Cold => &[true],
            Self::Warm => &[false, true],
        }
    }
}

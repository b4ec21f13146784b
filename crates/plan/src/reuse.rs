//! Miss-ratio curves: how many references of a chain of jobs a cache of each size serves.
//!
//! A chain reads its keys in bursts, one for each phase. A [`Curve`] tells, for each phase and each capacity in bytes,
//! the number of references that find their key in the cache. There are three ways to one:
//!
//! - [`exact()`]: stack distances (Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal
//!   1970) of an LRU cache, at every capacity at once; memory grows with the distinct keys.
//! - [`sampled()`]: the same from a fixed number of sampled keys (Waldspurger et al., "Efficient MRC Construction with
//!   SHARDS", FAST 2015); memory does not grow.
//! - [`simulated()`]: for policies that have no stack distances, those of Redis, by a simulation at each capacity, made
//!   smaller by sampling keys (Waldspurger et al., "Cache Modeling and Optimization using Miniature Simulations",
//!   USENIX ATC 2017).
//!
//! [`uniform`] needs no trace: it is the expectation for a chain whose keys are uniform hashes.
//!
//! **The cache.** It is looked up by key. A reference that finds its key is a hit. Then, hit or miss, the entry becomes
//! the newest one and takes the reference's bytes, and the oldest entries leave until all fit. An entry that is larger
//! than the cache therefore empties it and leaves, too: it is never a hit. An entry whose size changed since its last
//! reference is a hit where the old one was still there: a cache does not know that the document was written. A cache
//! of zero bytes has no hits, also of entries that take none.
//!
//! Invariant: all ways count the same hits by the same rules; where nothing is sampled, exactly those of a list that is
//! kept in the order of use.

mod curve;
mod exact;
mod hashed;
#[cfg(test)]
mod oracle;
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
    /// A hash of the key, of all 64 bits; equal for equal keys only.
    pub key: u64,
    /// The bytes that the key's entry takes in a cache after this reference, its overhead included.
    pub bytes: u32,
}

/// A chain's references, phase by phase, in order.
pub type Phases = [Vec<Reference>];

/// The content of the cache before the first reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The cache is empty.
    Cold,
    /// The cache has seen the whole trace once before.
    Warm,
}

impl Start {
    /// Whether each pass over the trace counts, pass by pass.
    fn passes(self) -> &'static [bool] {
        match self {
            Self::Cold => &[true],
            Self::Warm => &[false, true],
        }
    }
}

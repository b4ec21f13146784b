//! A chain of MapReduce jobs over a MongoDB collection: each map fetches the documents of its keys and makes the next
//! keys of them, each reduce leaves every key once.
//!
//! The idea (Wong and others, *Database Caching and Sharding Strategies in Chained MR Jobs*, §4): the keys of a phase are
//! known at once, so they are read in batches, several of them under way; a cache in front takes one MGET a batch, and
//! what it does not hold comes by one `find {_id: {$in: […]}}`, as raw documents.
//!
//! Invariants:
//! - the output depends on the keys and the documents alone: not on the cache, the batches, the number of workers, the
//!   shards or the engine that runs map and reduce;
//! - it is never silently incomplete: a key without a document is an error that names it, or counted;
//! - memory is bounded by the batches under way (map), by one line (reduce), by the keys of one phase ([`run`]).
//!
//! [`map`] and [`reduce`] are the two programs that a user's engine runs; [`run`] is a whole chain in one process;
//! [`proxy`] is the cache beside the router instead of the worker.

pub mod cache;
mod draw;
mod error;
mod fetch;
mod input;
mod key;
pub mod map;
pub mod merkle;
pub mod proxy;
pub mod recorder;
pub mod reduce;
pub mod run;
mod source;

use std::fmt;
use std::str::FromStr;

pub use draw::{Keys, Next, rank_of};
pub use error::{Error, Result};
pub use fetch::{Counts, Fetched, Fetcher};
pub use key::Key;
pub use source::{Namespace, PHASE_COMMENT, Reads, Source, options as source_options};

/// What a phase makes of its documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// The next key is the document's SHA-256 modulo the number of keys: uniform (§4.1).
    Hash,
    /// The same hash, drawn through a Zipf distribution: some keys are asked for again and again.
    Zipf,
    /// The root of a Merkle tree over the documents (§4.3).
    Merkle,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hash => "hash",
            Self::Zipf => "zipf",
            Self::Merkle => "merkle",
        })
    }
}

impl FromStr for Job {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "hash" => Ok(Self::Hash),
            "zipf" => Ok(Self::Zipf),
            "merkle" => Ok(Self::Merkle),
            other => Err(format!("`{other}` is no job; there are hash, zipf and merkle")),
        }
    }
}

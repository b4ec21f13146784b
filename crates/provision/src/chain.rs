//! A chain of MapReduce jobs over a MongoDB collection: each map fetches the documents of its keys and computes the
//! next keys from them, each reduce removes repeated keys.
//!
//! The design follows Wong and others, *Database Caching and Sharding Strategies in Chained MR Jobs*, §4: the keys of a
//! phase are known at once, so they are read in batches, several of them in flight. A batch is one MGET to the cache;
//! the keys that the cache lacks are one `find {_id: {$in: […]}}`, whose replies are raw documents.
//!
//! Invariants:
//! - the output depends on the keys and the documents alone: not on the cache, the batches, the number of workers, the
//!   shards or the engine that runs map and reduce;
//! - the output is never silently incomplete: a key without a document is either an error that names it, or counted;
//! - memory is bounded by the batches in flight (map), by one line (reduce), by the keys of one phase ([`run`]).
//!
//! [`map`] and [`reduce`] are the two programs for a user's MapReduce engine; [`run`] is a whole chain in one process;
//! [`proxy`] places the cache at the router instead of at the worker.

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

/// The computation of a chain's phases: how the keys of the next phase follow from the documents of the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// The next key is the document's SHA-256 modulo the number of keys: uniformly distributed (§4.1).
    Hash,
    /// The next key is drawn from a Zipf distribution by the document's SHA-256: some keys are read repeatedly.
    Zipf,
    /// The phases compute the root of a Merkle tree over the documents (§4.3).
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
            other => Err(format!("`{other}` is not a job: the jobs are hash, zipf and merkle")),
        }
    }
}

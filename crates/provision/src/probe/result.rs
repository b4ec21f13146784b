//! The parts of a probe's file.

use serde::{Deserialize, Serialize};

use super::fit::Measured;

/// Processor time of requests and keys at each station, in seconds. `None`: the probed cluster did not have the
/// station.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCosts {
    /// Cost of the worker: parsing keys, hashing documents, and writing the output.
    pub client: Measured,
    /// Cost of an MGET in the process that sends it to the cache.
    pub client_get: Option<Measured>,
    /// Cost of a pipeline of SETs in the process that sends it to the cache.
    pub client_set: Option<Measured>,
    /// Cost of a `find` in the process that sends it to the router.
    pub client_find: Measured,
    /// Cost of the proxy at the router, less its requests to the cache and the router.
    pub proxy: Option<Measured>,
    /// Cost of an MGET in the cache.
    pub cache_get: Option<Measured>,
    /// Cost of a pipeline of SETs in the cache.
    pub cache_set: Option<Measured>,
    /// Cost of a `find` in the router; `None` for a replica set, which has no router.
    pub router: Option<Measured>,
    /// Cost, in a shard, of its part of a `find`.
    pub shard: Measured,
}

/// The round trip to an idle server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// Median time of a ping, in seconds.
    pub ping_s: f64,
    /// Part of the median in which no processor of either side works, in seconds.
    pub wait_s: f64,
    /// Standard error of the median, relative to the median.
    pub relative_error: f64,
}

/// The round trips to one server of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Round trip from this machine to the cache; `None` without a cache.
    pub cache: Option<RoundTrip>,
    /// Round trip from this machine to the router; `None` without a router.
    pub router: Option<RoundTrip>,
    /// Round trip from this machine to a member of a shard.
    pub shard: RoundTrip,
}

/// Size of the collection, and bytes of documents, indexes, cache entries and server processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// Number of documents in the collection.
    pub documents: u64,
    /// Mean bytes of a document, over the collection.
    pub document_bytes: f64,
    /// Mean bytes of a document, over the keys that were read.
    pub sampled_document_bytes: f64,
    /// Bytes of the collection's files.
    pub storage_bytes: u64,
    /// Bytes of all indexes of the collection.
    pub index_bytes: u64,
    /// Mean bytes of a cache entry (`MEMORY USAGE`) in excess of its document; `None` without a cache.
    pub entry_bytes: Option<f64>,
    /// Resident memory of a database server without its storage engine's cache, in bytes; the minimum over all members.
    pub server_bytes: f64,
    /// Resident memory of the cache server without its entries, in bytes; `None` without a cache.
    pub cache_server_bytes: Option<f64>,
}

/// The share of the collection on one shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the shard.
    pub shard: String,
    /// Number of members of the shard.
    pub members: u32,
    /// The shard's share of the collection's documents, from 0 to 1.
    pub documents: f64,
    /// The shard's share of the keys that were read, from 0 to 1.
    pub keys: f64,
}

/// Number and origin of the keys that were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysFrom {
    /// Number of keys.
    pub count: u64,
    /// Origin of the keys in words: a sample of the collection, or a trace.
    pub from: String,
    /// State of the servers' storage caches: `warm`, since all keys were read once before.
    pub storage: String,
}

/// Number of processors of each station.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// Processors of all workers together.
    pub client: f64,
    /// Processors of the cache.
    pub cache: f64,
    /// Processors of the router.
    pub router: f64,
    /// Processors of each member of a shard.
    pub shard: f64,
}

/// The kind of request that a window makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A `find` of a batch of keys, sent to the router.
    Find,
    /// A batch of the whole job, without a cache.
    Map,
    /// An MGET whose keys are all in the cache.
    Get,
    /// A pipeline of SETs.
    Set,
    /// A `find` that the proxy answers from the cache.
    Proxy,
}

/// One measurement window. Its processor times are in seconds, without the stations' idle rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The kind of request that the window made.
    pub kind: Kind,
    /// Length of the window, in seconds.
    pub seconds: f64,
    /// Number of requests that were answered.
    pub requests: u64,
    /// Number of keys in these requests.
    pub keys: u64,
    /// Processor time of this process, in seconds.
    pub client_s: f64,
    /// Processor time of the cache, in seconds; `None` without a cache.
    pub cache_s: Option<f64>,
    /// Processor time of the router, in seconds; `None` without a router.
    pub router_s: Option<f64>,
    /// Processor time of all members of all shards, in seconds.
    pub shards_s: f64,
}

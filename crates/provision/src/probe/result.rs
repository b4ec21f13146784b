//! The parts of a probe's file.

use serde::{Deserialize, Serialize};

use super::fit::Measured;

/// Processor time at each station.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCosts {
    /// The worker: its keys, its documents' hashes, its output.
    pub client: Measured,
    /// The asking of the cache.
    pub client_get: Option<Measured>,
    /// The filling of the cache.
    pub client_set: Option<Measured>,
    /// The asking of the router.
    pub client_find: Measured,
    /// The proxy at the router.
    pub proxy: Option<Measured>,
    /// The cache, for an MGET.
    pub cache_get: Option<Measured>,
    /// The cache, for a pipeline of SETs.
    pub cache_set: Option<Measured>,
    /// The router; none before a replica set.
    pub router: Option<Measured>,
    /// A shard, for its part of a `find`.
    pub shard: Measured,
}

/// A round trip to an idle server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The median time of a ping, in seconds.
    pub ping_s: f64,
    /// The part of it in which neither side's processor works, in seconds.
    pub wait_s: f64,
    /// The standard error of the median, relative to it.
    pub relative_error: f64,
}

/// The round trips.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// To the cache.
    pub cache: Option<RoundTrip>,
    /// To the router.
    pub router: Option<RoundTrip>,
    /// To a member of a shard, from here.
    pub shard: RoundTrip,
}

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// Documents of the collection.
    pub documents: u64,
    /// A document, in the mean over the collection.
    pub document_bytes: f64,
    /// A document, in the mean over the keys that were read.
    pub sampled_document_bytes: f64,
    /// The collection's files.
    pub storage_bytes: u64,
    /// All its indexes.
    pub index_bytes: u64,
    /// A cache's entry (`MEMORY USAGE`) beyond its document.
    pub entry_bytes: Option<f64>,
    /// Resident memory of a database server without its cache of the collection; the least of the members.
    pub server_bytes: f64,
    /// Resident memory of the cache's server without its entries.
    pub cache_server_bytes: Option<f64>,
}

/// A shard's part of the collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The shard.
    pub shard: String,
    /// Its members.
    pub members: u32,
    /// Its share of the documents, from 0 to 1.
    pub documents: f64,
    /// Its share of the keys that were read, from 0 to 1.
    pub keys: f64,
}

/// The keys that were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysFrom {
    /// Their number.
    pub count: u64,
    /// Where they are from: a sample of the collection, or a trace.
    pub from: String,
    /// The servers' storage caches: `warm`, since all keys were read once before.
    pub storage: String,
}

/// Processors of each station.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// Of all workers together.
    pub client: f64,
    /// Of the cache.
    pub cache: f64,
    /// Of the router.
    pub router: f64,
    /// Of each member of a shard.
    pub shard: f64,
}

/// The requests of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Batches of keys to the router.
    Find,
    /// The whole job without a cache.
    Map,
    /// MGETs that all hit.
    Get,
    /// Pipelines of SETs.
    Set,
    /// Finds that the proxy answers.
    Proxy,
}

/// One window. Processor times are without the stations' idle rates, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its requests.
    pub kind: Kind,
    /// Its length, in seconds.
    pub seconds: f64,
    /// Requests that were answered.
    pub requests: u64,
    /// Their keys.
    pub keys: u64,
    /// Of this process.
    pub client_s: f64,
    /// Of the cache.
    pub cache_s: Option<f64>,
    /// Of the router.
    pub router_s: Option<f64>,
    /// Of all members of all shards.
    pub shards_s: f64,
}

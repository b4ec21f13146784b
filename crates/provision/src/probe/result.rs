//! The parts of a probe's result, as its file stores them.

use serde::{Deserialize, Serialize};

use super::fit::Measured;

/// Processor time of a request and of each key at each station, in seconds. `None`: the probed cluster did not have
/// the station.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCosts {
    /// Cost of a batch in the worker: parsing keys, hashing documents, and writing the output, without the find.
    pub client: Measured,
    /// Cost of an MGET in the client process that sends it to the cache.
    pub client_get: Option<Measured>,
    /// Cost of a pipeline of SETs in the client process that sends it to the cache.
    pub client_set: Option<Measured>,
    /// Cost of a `find` in the client process that sends it to the router.
    pub client_find: Measured,
    /// Cost of the proxy at the router, less its requests to the cache and the router.
    pub proxy: Option<Measured>,
    /// Cost of an MGET in the cache's server.
    pub cache_get: Option<Measured>,
    /// Cost of a pipeline of SETs in the cache's server.
    pub cache_set: Option<Measured>,
    /// Cost of a `find` in the router; `None` for a replica set, which has no router.
    pub router: Option<Measured>,
    /// Cost, in a shard, of the shard's part of a `find`.
    pub shard: Measured,
    /// Cost, in a shard, of a page that it reads from disk; `None` if too few were read, because the collection is in memory.
    #[serde(default)]
    pub page: Option<MeasuredPage>,
}

/// The cost of a page that a shard reads from disk into its storage cache, besides that of the request for a key on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPage {
    /// Processor time of the shard's member, in seconds.
    pub processor_s: f64,
    /// Time waiting for the disk, in seconds.
    pub wait_s: f64,
    /// Mean size of a page in the storage cache, in bytes.
    pub bytes: f64,
    /// Number of pages from which the cost was measured.
    pub pages: u64,
}

/// The time of a round trip from this machine to an idle server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// Median time of a ping, in seconds.
    pub ping_s: f64,
    /// Part of the median ping time in which no processor of either side works, in seconds.
    pub wait_s: f64,
    /// Standard error of the median ping time, relative to the median.
    pub relative_error: f64,
}

/// The round trips to one server of each kind: cache, router, and member of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Round trip from this machine to the cache; `None` if the probe had no cache.
    pub cache: Option<RoundTrip>,
    /// Round trip from this machine to the router; `None` if the database has no router.
    pub router: Option<RoundTrip>,
    /// Round trip from this machine to one member of a shard.
    pub shard: RoundTrip,
}

/// Size of the collection, and mean sizes of its documents, of cache entries and of server processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// Number of documents in the collection.
    pub documents: u64,
    /// Mean size of a document of the collection, in bytes.
    pub document_bytes: f64,
    /// Mean size of the documents of the keys that the probe read, in bytes.
    pub sampled_document_bytes: f64,
    /// Size of the collection's files on disk, in bytes.
    pub storage_bytes: u64,
    /// Total size of all indexes of the collection, in bytes.
    pub index_bytes: u64,
    /// Mean memory of a cache entry (`MEMORY USAGE`) in excess of its document, in bytes; `None` without a cache.
    pub entry_bytes: Option<f64>,
    /// Size of the storage cache of a database server, in bytes, the minimum over all members; `None` if it is unknown.
    #[serde(default)]
    pub storage_cache_bytes: Option<u64>,
    /// Resident memory of a database server without its storage engine's cache, in bytes; the minimum over all members.
    pub server_bytes: f64,
    /// Resident memory of the cache server without its entries, in bytes; `None` without a cache.
    pub cache_server_bytes: Option<f64>,
}

/// The share of the probed collection that is on one shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the shard.
    pub shard: String,
    /// Number of members of the shard.
    pub members: u32,
    /// The shard's share of the collection's documents, from 0 to 1.
    pub documents: f64,
    /// The shard's share of the keys that the probe read, from 0 to 1.
    pub keys: f64,
}

/// Number and origin of the keys that a probe read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysFrom {
    /// Number of distinct keys.
    pub count: u64,
    /// Origin of the keys in words: `a sample` of the collection, or the file of a trace.
    pub from: String,
    /// State of the servers' storage caches during the windows: `warm`, since all keys were read once before.
    pub storage: String,
}

/// Number of processors of each station of the probed cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// Number of processors of all workers of the job together.
    pub client: f64,
    /// Number of processors of the cache's server.
    pub cache: f64,
    /// Number of processors of the router.
    pub router: f64,
    /// Number of processors of each member of a shard.
    pub shard: f64,
}

/// The kind of request that a measurement window makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A `find` of a batch of keys, sent to the router (or, without one, to the replica set).
    Find,
    /// A batch of the whole map: parse keys, find their documents without a cache, and hash them.
    Map,
    /// An MGET whose keys are all in the cache.
    Get,
    /// A pipeline of SETs to the cache.
    Set,
    /// A `find` that the proxy at the router answers from the cache.
    Proxy,
}

/// One measurement window: requests of one kind and batch size. Its processor times are in seconds, without those of
/// the idle stations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The kind of request that was made in the window.
    pub kind: Kind,
    /// Length of the window, in seconds.
    pub seconds: f64,
    /// Number of requests that were answered in the window.
    pub requests: u64,
    /// Number of keys in the answered requests.
    pub keys: u64,
    /// Processor time of this process, the client, in the window, in seconds.
    pub client_s: f64,
    /// Processor time of the cache's server in the window, in seconds; `None` without a cache.
    pub cache_s: Option<f64>,
    /// Processor time of the router in the window, in seconds; `None` without a router.
    pub router_s: Option<f64>,
    /// Processor time of all members of all shards in the window, in seconds.
    pub shards_s: f64,
}

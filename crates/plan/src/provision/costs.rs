//! The cost of a request at each station, and the processors of the stations.
//!
//! All times are seconds of one processor, or of waiting without one; all sizes are bytes.

/// The processor time of a request: `request_s` for the request itself, and `key_s` for each of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Processor time of a request without its keys, in seconds.
    pub request_s: f64,
    /// Processor time of each key of a request, in seconds.
    pub key_s: f64,
}

impl Cost {
    /// Returns the processor time of `requests` requests with `keys` keys in all, in seconds.
    #[must_use]
    pub fn of(self, requests: f64, keys: f64) -> f64 {
        self.request_s * requests + self.key_s * keys
    }
}

/// What a page that a member of a shard reads from disk costs, besides the request for a key on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PageCost {
    /// Processor time of the member, to decompress the page and to evict another one, in seconds.
    pub processor_s: f64,
    /// Time waiting for the disk, in seconds.
    pub wait_s: f64,
}

/// Processor time of requests at each station, waits between the stations, and sizes, as measured by a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Cost of a batch in a worker, independent of the source of its documents: parsing its keys, and hashing each
    /// document.
    pub client: Cost,
    /// Cost of an MGET and each of its keys in the process that sends it: the worker, or the proxy at the router.
    pub client_get: Cost,
    /// Cost of a pipeline of SETs and each of its keys in the process that sends it.
    pub client_set: Cost,
    /// Cost of a `find` and each document that it returns in the process that sends it.
    pub client_find: Cost,
    /// Cost of a batch and each of its documents in the proxy at the router, less the cost of its requests to the cache
    /// and the router.
    pub proxy: Cost,
    /// Cost of an MGET and each of its keys in the cache.
    pub cache_get: Cost,
    /// Cost of a pipeline of SETs and each of its keys in the cache.
    pub cache_set: Cost,
    /// Cost of a `find` and each of its keys in the router.
    pub router: Cost,
    /// Cost, in a member of a shard, of its part of a `find` and each of its keys.
    pub shard: Cost,
    /// Cost of a page that a member of a shard reads from disk into its storage cache.
    pub page: PageCost,
    /// Time waiting for a reply of the cache, processor time excluded, in seconds.
    pub round_trip_cache_s: f64,
    /// Time waiting for a reply of the router or the proxy there, processor time excluded, in seconds.
    pub round_trip_router_s: f64,
    /// Time waiting for a reply of a shard, processor time excluded, in seconds.
    pub round_trip_shard_s: f64,
    /// Bytes of a cache entry (`MEMORY USAGE`) in excess of its document.
    pub entry_bytes: f64,
    /// Mean bytes of a document, as the server stores it.
    pub document_bytes: f64,
    /// Bytes of all indexes per document.
    pub index_bytes: f64,
    /// Number of documents in the collection.
    pub documents: u64,
    /// Resident memory of an idle database server, in bytes.
    pub server_bytes: f64,
    /// Resident memory of an empty cache, in bytes.
    pub cache_server_bytes: f64,
}

/// Relative standard errors of measured costs; 0 if an error is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Relative standard error of all costs in the client.
    pub client: f64,
    /// Relative standard error of the costs in the cache.
    pub cache: f64,
    /// Relative standard error of the costs in the router.
    pub router: f64,
    /// Relative standard error of the costs in a shard.
    pub shard: f64,
    /// Relative standard error of the round trips.
    pub round_trips: f64,
    /// Relative standard error that all costs have in common: that of costs which were measured on another machine.
    pub all: f64,
}

/// Number of processors of each station; any number above 0: a control group may grant 0.3 of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Processors of all workers together.
    pub client_cores: f64,
    /// Processors of the cache, which uses at most one (Redis runs commands in one thread).
    pub cache_cores: f64,
    /// Processors of the router, including the proxy.
    pub router_cores: f64,
    /// Processors of each member of a shard.
    pub shard_cores: f64,
}

/// The settings of the chained job whose shape is predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// Limit on the number of batches in flight at once, one for each worker.
    pub workers: u32,
    /// Number of keys in a batch; the last batch of a phase may have fewer.
    pub batch: u32,
    /// Squared coefficient of variation of a request's processor time, in excess of the variation by its number of
    /// keys: 0 if equal requests take equal times, 1 if their times are exponentially distributed.
    pub variation: f64,
}

/// Prices per hour, in any currency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Price of a processor for an hour.
    pub core: f64,
    /// Price of 10⁹ bytes of memory for an hour.
    pub gb: f64,
}

//! What a request costs each station, and what the stations have.
//!
//! All times are seconds of one processor, or of waiting without one; all sizes are bytes.

/// The processor time of a request: `request_s` for itself, and `key_s` for each of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds for each request.
    pub request_s: f64,
    /// Seconds for each key of it.
    pub key_s: f64,
}

impl Cost {
    /// The processor time of so many requests with so many keys, in seconds.
    #[must_use]
    pub fn of(self, requests: f64, keys: f64) -> f64 {
        self.request_s * requests + self.key_s * keys
    }
}

/// Processor time at each station, waits between them, and sizes; by a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// A worker, for a batch wherever its documents come from: taking its keys, and hashing each document.
    pub client: Cost,
    /// Who asks the cache, for an MGET and each of its keys: the worker, or the proxy at the router.
    pub client_get: Cost,
    /// Who fills the cache, for a pipeline of SETs and each of its keys.
    pub client_set: Cost,
    /// Who asks the router, for a `find` and each document that comes back.
    pub client_find: Cost,
    /// The proxy at the router, for a batch and each of its documents; besides what asking the cache and the router costs.
    pub proxy: Cost,
    /// The cache, for an MGET and each of its keys.
    pub cache_get: Cost,
    /// The cache, for a pipeline of SETs and each of its keys.
    pub cache_set: Cost,
    /// The router, for a `find` and each of its keys.
    pub router: Cost,
    /// A member of a shard, for its part of a `find` and each of its keys.
    pub shard: Cost,
    /// Waiting without a processor for an answer of the cache.
    pub round_trip_cache_s: f64,
    /// Waiting without a processor for an answer of the router, or of the proxy there.
    pub round_trip_router_s: f64,
    /// Waiting without a processor for an answer of a shard.
    pub round_trip_shard_s: f64,
    /// A cache's entry (`MEMORY USAGE`) beyond its document.
    pub entry_bytes: f64,
    /// A document as the server holds it.
    pub document_bytes: f64,
    /// The indexes' part of a document.
    pub index_bytes: f64,
    /// Documents of the collection.
    pub documents: u64,
    /// Resident memory of an idle database server.
    pub server_bytes: f64,
    /// Resident memory of an empty cache.
    pub cache_server_bytes: f64,
}

/// Relative standard errors of measured costs; 0 where none is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of all costs of the client.
    pub client: f64,
    /// Of the cache's.
    pub cache: f64,
    /// Of the router's.
    pub router: f64,
    /// Of a shard's.
    pub shard: f64,
    /// Of the round trips.
    pub round_trips: f64,
}

/// Processors of each station. Any number above 0: a control group gives 0.3 of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Of all workers together.
    pub client_cores: f64,
    /// Of the cache, which uses at most one (Redis runs commands in one thread).
    pub cache_cores: f64,
    /// Of the router, with the proxy.
    pub router_cores: f64,
    /// Of each member of a shard.
    pub shard_cores: f64,
}

/// The job's own settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// Batches in flight at once.
    pub workers: u32,
    /// Keys of a batch.
    pub batch: u32,
    /// The squared coefficient of variation of a request's processor time beyond what its number of keys explains: 0 if
    /// equal requests take equal times, 1 if they are as irregular as an exponential distribution.
    pub variation: f64,
}

/// Prices for an hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Of a processor.
    pub core: f64,
    /// Of 10⁹ bytes of memory.
    pub gb: f64,
}

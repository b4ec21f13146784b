//! A probe: the cost of a request at each station of a chained job, measured on the user's own servers.
//!
//! By the utilisation law, the cost of a request at a station is the station's processor time in a window, less its
//! idle rate, divided by the requests of the window. Windows of two batch sizes separate the cost of a request from the
//! cost of its keys ([`fit`]). The job's own code makes the requests ([`crate::chain`]). Each kind of window measures
//! these costs:
//!
//! | windows | client | cache | router | shards |
//! |---|---|---|---|---|
//! | `find`: batches of keys to the router | `client_find` | | `router` | `shard` |
//! | `map`: the whole job without a cache | `client`, without `client_find` | | | |
//! | `get`: MGETs that all hit | `client_get` | `cache_get` | | |
//! | `set`: pipelines of SETs | `client_set` | `cache_set` | | |
//! | `proxy`: finds that the proxy answers from the cache | `proxy`, without `client_find` and `client_get` | | | |
//!
//! Where the collection exceeds the storage caches, the cost of a page that is read from disk is measured besides, by reading
//! the same keys twice (`pages`); the windows read keys whose pages are in the caches.
//!
//! Invariants:
//! - the database is only read;
//! - in the cache, only entries under the probe's own name are written, and they are deleted at the end, also after an
//!   interruption;
//! - a cost that was not measured has no value in the file.

mod cluster;
mod error;
pub mod fit;
mod keys;
mod load;
mod measure;
mod pages;
mod result;
mod scratch;
mod sizes;
mod stations;
mod trips;

use std::fs;
use std::path::Path;

use imago_plan::provision::{Cost, Costs, Errors, Machine, PageCost};
use serde::{Deserialize, Serialize};

pub use error::Error;
pub use fit::Measured;
pub use measure::{Request, run};
pub use result::{Cores, KeysFrom, MeasuredCosts, MeasuredPage, RoundTrip, Share, Sizes, Window};

/// Version of the format of probe files: the one that is written, and the only one that is read.
const VERSION: u32 = 1;
/// Size of a page in a storage cache if no probe has measured it, in bytes.
const PAGE_BYTES: f64 = 32_768.0;
/// The built-in probe as JSON: the result of a measurement on the machine on which Imago is developed.
const BUILT_IN: &str = include_str!("probe/built_in.json");

/// The result of a probe: measured costs of requests at each station, as the probe's JSON file stores them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Version of the file format; only version 1 can be read.
    pub version: u32,
    /// The measured servers and the method of the measurement, in words.
    pub about: String,
    /// Time at which the probe was made (RFC 3339, UTC).
    pub when: String,
    /// The collection that was read, as `database.collection`.
    pub namespace: String,
    /// Total length of all measurement windows, in seconds.
    pub seconds: f64,
    /// Number of batches that were in flight at once during the windows.
    pub workers: u32,
    /// The sizes of the batches that the windows requested, in keys.
    pub batches: Vec<u32>,
    /// Number of members, and share of documents and keys, of each shard; one entry for a replica set.
    pub shards: Vec<Share>,
    /// Number and origin of the keys that the probe read.
    pub keys: KeysFrom,
    /// Processor time of requests and keys at each station, in seconds.
    pub costs: MeasuredCosts,
    /// Round-trip times to idle servers, in seconds.
    pub round_trips: result::RoundTrips,
    /// Sizes of the collection's documents and indexes, of cache entries and of server processes, in bytes.
    pub sizes: Sizes,
    /// Number of processors of each station (client, cache, router, member of a shard).
    pub cores: Cores,
    /// The measurement windows from which the costs were computed.
    pub windows: Vec<Window>,
}

impl Probe {
    /// Returns the probe that ships with the program, for a first estimate. It was made on the machine on which Imago
    /// is developed.
    ///
    /// # Panics
    /// Never: a test parses the built-in probe.
    #[must_use]
    pub fn built_in() -> Self {
        serde_json::from_str(BUILT_IN).expect("the built-in probe is read by a test")
    }

    /// Reads the result of a probe from a JSON file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a probe of this version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { doing: "read", path: path.to_owned(), source };
        let foreign = |what: String| Error::Foreign { path: path.to_owned(), what };
        let text = fs::read_to_string(path).map_err(io)?;
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| foreign(format!("it is no JSON ({error})")))?;
        match json.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) if version > u64::from(VERSION) => {
                return Err(foreign(format!(
                    "it has version {version}; use the newer imago that wrote it"
                )));
            }
            _ => return Err(foreign("it has no version".into())),
        }
        serde_json::from_value(json).map_err(|error| foreign(error.to_string()))
    }

    /// Writes the probe to a JSON file, and replaces an existing file at `path`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let io = |source| Error::Io { doing: "write", path: path.to_owned(), source };
        let json = serde_json::to_string_pretty(self).map_err(|error| io(error.into()))?;
        fs::write(path, json + "\n").map_err(io)
    }

    /// Returns the costs that a prediction needs. A cost that this probe did not measure ([`Probe::borrowed`]) is
    /// taken from the built-in probe.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let lent = Self::built_in();
        let cost = |own: Option<Measured>, lent: Option<Measured>| {
            let cost = own.or(lent).unwrap_or_default();
            Cost { request_s: cost.request_s, key_s: cost.key_s }
        };
        let (own, other) = (&self.costs, &lent.costs);
        let wait = |own: Option<RoundTrip>, lent: Option<RoundTrip>| {
            own.or(lent).map_or(0.0, |trip| trip.wait_s)
        };
        let (trips, other_trips) = (&self.round_trips, &lent.round_trips);
        let (sizes, other_sizes) = (&self.sizes, &lent.sizes);
        let per_document = self.sizes.documents.max(1) as f64;
        Costs {
            client: cost(Some(own.client), None),
            client_get: cost(own.client_get, other.client_get),
            client_set: cost(own.client_set, other.client_set),
            client_find: cost(Some(own.client_find), None),
            proxy: cost(own.proxy, other.proxy),
            cache_get: cost(own.cache_get, other.cache_get),
            cache_set: cost(own.cache_set, other.cache_set),
            router: cost(own.router, other.router),
            shard: cost(Some(own.shard), None),
            page: own.page.or(other.page).map_or_else(PageCost::default, |page| PageCost {
                processor_s: page.processor_s,
                wait_s: page.wait_s,
            }),
            round_trip_cache_s: wait(trips.cache, other_trips.cache),
            round_trip_router_s: wait(trips.router, other_trips.router),
            round_trip_shard_s: trips.shard.wait_s,
            entry_bytes: sizes.entry_bytes.or(other_sizes.entry_bytes).unwrap_or(0.0),
            document_bytes: sizes.document_bytes,
            index_bytes: sizes.index_bytes as f64 / per_document,
            documents: sizes.documents,
            server_bytes: sizes.server_bytes,
            cache_server_bytes: sizes
                .cache_server_bytes
                .or(other_sizes.cache_server_bytes)
                .unwrap_or(0.0),
        }
    }

    /// Returns the mean size of a page in a storage cache, in bytes: that which was measured, or else the built-in probe's.
    #[must_use]
    pub fn page_bytes(&self) -> f64 {
        let page = self.costs.page.or_else(|| Self::built_in().costs.page);
        page.map_or(PAGE_BYTES, |page| page.bytes)
    }

    /// Returns the names of the stations (`cache`, `router`, `proxy`) that the probed cluster did not have, so that
    /// their costs are taken from the built-in probe.
    #[must_use]
    pub fn borrowed(&self) -> Vec<&'static str> {
        let borrowed = [
            ("cache", self.costs.cache_get.is_none()),
            ("router", self.costs.router.is_none()),
            ("proxy", self.costs.proxy.is_none()),
        ];
        borrowed.into_iter().filter(|(_, is)| *is).map(|(station, _)| station).collect()
    }

    /// Returns the standard errors of the costs, each relative to its cost. For a borrowed cost ([`Probe::borrowed`])
    /// the error is that of the built-in probe; it does not include the difference between the two machines.
    #[must_use]
    pub fn errors(&self) -> Errors {
        let lent = Self::built_in().costs;
        let greatest = |costs: &[Option<Measured>]| {
            costs.iter().flatten().map(|cost| cost.relative_error).fold(0.0, f64::max)
        };
        let costs = &self.costs;
        let trips = [self.round_trips.cache, self.round_trips.router, Some(self.round_trips.shard)];
        Errors {
            // The proxy's cost is left out: it is so small that its error is a multiple of it, and does not matter.
            client: greatest(&[
                Some(costs.client),
                costs.client_get.or(lent.client_get),
                costs.client_set.or(lent.client_set),
                Some(costs.client_find),
            ]),
            cache: greatest(&[
                costs.cache_get.or(lent.cache_get),
                costs.cache_set.or(lent.cache_set),
            ]),
            router: greatest(&[costs.router.or(lent.router)]),
            shard: greatest(&[Some(costs.shard)]),
            round_trips: trips.iter().flatten().map(|trip| trip.relative_error).fold(0.0, f64::max),
            all: 0.0,
        }
    }

    /// Returns the number of processors of each station for a prediction; the cache has at most 1, since Redis uses
    /// one.
    #[must_use]
    pub fn machine(&self) -> Machine {
        Machine {
            client_cores: self.cores.client,
            cache_cores: self.cores.cache.min(1.0),
            router_cores: self.cores.router,
            shard_cores: self.cores.shard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_probe_has_all_costs() {
        let probe = Probe::built_in();
        assert_eq!(probe.version, VERSION);
        assert_eq!(probe.borrowed(), [""; 0]);
        let costs = probe.costs();
        for cost in [costs.client_get, costs.cache_get, costs.cache_set, costs.router, costs.shard]
        {
            assert!(cost.of(1.0, 100.0) > 0.0);
        }
        assert!(costs.entry_bytes > 0.0 && costs.server_bytes > 1e6);
        assert!(costs.page.processor_s > 0.0 && probe.page_bytes() > 4_096.0);
    }

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.json");
        let probe = Probe::built_in();
        probe.write(&path).unwrap();
        assert_eq!(Probe::read(&path).unwrap(), probe);
    }

    #[test]
    fn a_file_that_is_none_is_refused_by_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.json");
        for (text, reason) in
            [("phase,key", "no JSON"), ("{}", "no version"), ("{\"version\": 9}", "newer imago")]
        {
            std::fs::write(&path, text).unwrap();
            let error = Probe::read(&path).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn costs_that_were_not_measured_are_the_built_in_ones_and_said_to_be() {
        let mut probe = Probe::built_in();
        let whole = probe.costs();
        probe.costs.cache_get = None;
        probe.costs.router = None;
        assert_eq!(probe.borrowed(), ["cache", "router"]);
        assert_eq!(probe.costs(), whole);
    }
}

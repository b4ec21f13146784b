//! The service time of a batch of keys at each station: its mean and variance over the batches of a phase.
//!
//! Misses fall on the keys of a batch independently, and a miss lies on a shard with the probability of the shard's
//! share. So the number of a batch's keys on a shard is approximately Poisson distributed: of 100 misses over four even
//! shards, the largest part is not 25 but 30, which is the part that the batch waits for. (The parts of a multinomial
//! distribution differ from each other as independent Poisson numbers do.) A batch without misses sends no request to
//! the router, and a shard receives a request only if it has a key of the batch.
//!
//! Where storage caches are smaller than the collection, a page is read from disk for some of the keys. That takes the shard's
//! processor, and a wait in which the processor serves other requests.
//!
//! Invariant: the means times the number of batches are the phase's total costs.

use super::costs::{Cost, Costs, Job, Machine};
use super::shape::{CacheAt, Shape, Station};

/// The service that a mean batch of keys needs at one station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// The station that serves the batch.
    pub station: Station,
    /// Number of processors of the station; if the station has several members, of each member.
    pub servers: f64,
    /// Number of members of the station, one of which is chosen at random for each request.
    pub members: u32,
    /// Probability that a batch sends a request to this station, from 0 to 1.
    pub request_probability: f64,
    /// Mean service time of a batch, in seconds of one processor.
    pub mean_s: f64,
    /// Variance of the service time over batches, in square seconds.
    pub variance: f64,
    /// Mean time of a batch at the station in which no processor works for it, because it waits for the disk, in seconds.
    pub wait_s: f64,
    /// Variance of that time over batches, in square seconds.
    pub wait_variance: f64,
}

impl Load {
    /// Returns the mean time that a batch takes at a member of this station without queueing, in seconds.
    pub fn alone_s(&self) -> f64 {
        self.mean_s / self.servers.min(1.0) + self.wait_s
    }

    /// Returns the mean time between the ends of two batches if this station is saturated, in seconds.
    pub fn saturated_s(&self) -> f64 {
        self.mean_s / (self.servers * f64::from(self.members))
    }

    /// Returns the queueing time at this station as a share of that under exponential service: from 0, if all batches
    /// take equally long, to 1. With m members of which one is chosen at random, a member has either no service or all
    /// of it, so that even constant service varies there: by m (1 + cv²) − 1, compared with 2 m − 1 for exponential
    /// service.
    pub fn irregularity(&self) -> f64 {
        if self.mean_s == 0.0 {
            return 0.0;
        }
        let members = f64::from(self.members);
        let variation = self.variance / self.mean_s.powi(2);
        ((members * (1.0 + variation) - 1.0) / (2.0 * members - 1.0)).min(1.0)
    }
}

/// How many of a phase's keys the cache answers, and how many pages the shards read from disk for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Served {
    pub hits: f64,
    pub pages: f64,
}

/// The mean batch of a phase: its keys, and its service at all stations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    /// Number of batches in the phase.
    pub batches: u64,
    /// Mean number of keys per batch.
    pub keys: f64,
    /// Mean number of keys per batch that are not in the cache.
    pub misses: f64,
    /// Probability that a batch sends a request to any shard, from 0 to 1.
    pub find_probability: f64,
    /// Service of a batch at the client, the cache if there is one, and the router.
    pub single: Vec<Load>,
    /// Service of a batch at each shard; the batch waits for the slowest shard.
    pub shards: Vec<Load>,
    /// Mean total time of a batch's round trips, in seconds.
    pub delay_s: f64,
}

impl Batch {
    /// Iterates over the loads of all stations with processors: first the single ones, then the shards.
    pub fn loads(&self) -> impl Iterator<Item = &Load> {
        self.single.iter().chain(&self.shards)
    }

    /// Computes the mean batch of a phase of `keys` keys (at least one). `shares` are the shards' shares of the keys.
    pub fn new(
        keys: u64,
        served: Served,
        costs: &Costs,
        machine: &Machine,
        job: &Job,
        shape: Shape,
        shares: &[f64],
    ) -> Self {
        let batches = keys.div_ceil(u64::from(job.batch));
        Self::of((keys, batches), served, costs, machine, job.variation, shape, shares)
    }

    /// Computes the mean batch of a phase of `keys` keys in `batches` batches (at least one of each): see [`Batch::new`].
    pub fn of(
        (keys, batches): (u64, u64),
        Served { hits, pages }: Served,
        costs: &Costs,
        machine: &Machine,
        variation: f64,
        shape: Shape,
        shares: &[f64],
    ) -> Self {
        let per_batch = keys as f64 / batches as f64;
        let has_cache = shape.cache_bytes > 0;
        let miss_ratio = if has_cache { (1.0 - hits / keys as f64).clamp(0.0, 1.0) } else { 1.0 };
        let misses = per_batch * miss_ratio;
        let all_misses = keys as f64 * miss_ratio;
        let page_ratio = if all_misses > 0.0 { (pages / all_misses).clamp(0.0, 1.0) } else { 0.0 };
        let any = |ratio: f64| 1.0 - (1.0 - ratio).powf(per_batch);
        // Share of the batches with a request to the router.
        let finds = any(miss_ratio);
        let gets = if has_cache { 1.0 } else { 0.0 };
        let sets = if has_cache { finds } else { 0.0 };
        let cache_client = costs.client_get.of(gets, gets * per_batch)
            + costs.client_set.of(sets, gets * misses)
            + costs.client_find.of(finds, misses);
        let at_router = has_cache && shape.cache_at == CacheAt::Router;
        let client = costs.client.of(1.0, per_batch);
        let router = costs.router.of(finds, misses);
        let (client, router) = if at_router {
            // The worker sends the whole batch to the proxy, as it would to the router.
            let ask = costs.client_find.of(1.0, per_batch);
            (client + ask, router + cache_client + costs.proxy.of(1.0, per_batch))
        } else {
            (client + cache_client, router)
        };
        let cache =
            costs.cache_get.of(gets, gets * per_batch) + costs.cache_set.of(sets, gets * misses);
        let single = |station, servers, request_probability, mean_s, variance| {
            let variance = varied(mean_s, variance, variation);
            let (wait_s, wait_variance) = (0.0, 0.0);
            Load {
                station,
                servers,
                members: 1,
                request_probability,
                mean_s,
                variance,
                wait_s,
                wait_variance,
            }
        };
        let binomial = misses * (1.0 - miss_ratio);
        let mut stations = vec![
            single(Station::Client, machine.client_cores, 1.0, client, 0.0),
            single(
                Station::Router,
                machine.router_cores,
                if at_router { 1.0 } else { finds },
                router,
                compound(costs.router, finds, misses, binomial),
            ),
        ];
        if has_cache {
            let variance = compound(costs.cache_set, finds, misses, binomial);
            stations.insert(
                1,
                single(Station::Cache, machine.cache_cores.min(1.0), 1.0, cache, variance),
            );
        }
        let shard = |(number, share): (u32, &f64)| {
            let request_probability = any(miss_ratio * share);
            let keys = misses * share;
            // A page is read for a share of the keys, each by itself.
            let pages = keys * page_ratio;
            let cost = Cost {
                key_s: costs.shard.key_s + page_ratio * costs.page.processor_s,
                ..costs.shard
            };
            let mean_s = cost.of(request_probability, keys);
            let variance = compound(cost, request_probability, keys, keys)
                + pages * (1.0 - page_ratio) * costs.page.processor_s.powi(2);
            let variance = varied(mean_s, variance, variation);
            let members = shape.read_members();
            let station = Station::Shard(number);
            Load {
                station,
                servers: machine.shard_cores,
                members,
                request_probability,
                mean_s,
                variance,
                wait_s: pages * costs.page.wait_s,
                wait_variance: pages * costs.page.wait_s.powi(2),
            }
        };
        let cache_trips = if has_cache { 1.0 + sets } else { 0.0 };
        let router_trips = if at_router { 1.0 } else { finds };
        Self {
            batches,
            keys: per_batch,
            misses,
            find_probability: finds,
            single: stations,
            shards: (0..).zip(shares).map(shard).collect(),
            delay_s: cache_trips * costs.round_trip_cache_s
                + router_trips * costs.round_trip_router_s
                + finds * costs.round_trip_shard_s,
        }
    }
}

/// Returns the variance of the cost of a batch's request at a station, which is sent with the probability
/// `request_probability`; `keys` and `variance` are the mean and the variance of the request's number of keys.
fn compound(cost: Cost, request_probability: f64, keys: f64, variance: f64) -> f64 {
    let requests = cost.request_s.powi(2) * request_probability * (1.0 - request_probability);
    // Keys exist only if the request is sent.
    let both = 2.0 * cost.request_s * cost.key_s * keys * (1.0 - request_probability);
    requests + cost.key_s.powi(2) * variance + both
}

/// Returns the variance of a service that is also multiplied by a random factor of mean 1 and variance `variation`.
fn varied(mean_s: f64, variance: f64, variation: f64) -> f64 {
    variance * (1.0 + variation) + variation * mean_s.powi(2)
}

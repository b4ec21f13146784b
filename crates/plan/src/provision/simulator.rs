//! A simulation of a chained job, batch by batch and key by key: the oracle of [`predict`](super::predict()).
//!
//! Each key of a batch is a hit or a miss, each miss lies on a shard, each shard's part of a `find` goes to one of its
//! members, and the next step waits for the slowest part. Nothing is averaged or merged: a batch uses the client's
//! processors as often as in a real job. A phase ends with its last batch.

use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt as _};

use super::Workload;
use super::costs::{Cost, Costs, Job, Machine};
use super::shape::{CacheAt, Shape};
use crate::provision::queueing::simulator::{Step, simulate};

/// The outcome of one simulated phase of a chained job.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedPhase {
    /// Simulated time of the phase, from its start to the end of its last batch, in seconds.
    pub time_s: f64,
    /// Processor times that client, cache and router used in the phase, in seconds.
    pub single_s: [f64; 3],
    /// Processor time that each member of each shard used in the phase, in seconds.
    pub members_s: Vec<Vec<f64>>,
}

/// Index of the client among the simulated servers.
const CLIENT: usize = 0;
/// Index of the cache among the simulated servers.
const CACHE: usize = 1;
/// Index of the router among the simulated servers.
const ROUTER: usize = 2;
/// Index of the first shard's first member among the simulated servers.
const MEMBERS: usize = 3;

/// Simulates the whole job on one shape, and returns its phases in order; `shares` are the shards' shares of the keys.
///
/// Each service takes its cost times a random factor of mean 1 whose variance is the job's variation. The factor has a
/// shifted exponential distribution: a variation of 0 is constant service, and 1 is exponential.
pub fn simulate_job<R: Rng>(
    workload: Workload<'_>,
    costs: &Costs,
    machine: &Machine,
    job: &Job,
    shape: Shape,
    shares: &[f64],
    rng: &mut R,
) -> Vec<SimulatedPhase> {
    let (shards, members) = (shares.len(), shape.replicas as usize);
    let mut servers =
        vec![machine.client_cores, machine.cache_cores.min(1.0), machine.router_cores];
    servers.extend(vec![machine.shard_cores; shards * members]);
    let mut played = Vec::new();
    for (phase, keys) in workload.phases.iter().enumerate() {
        let hits =
            if shape.cache_bytes > 0 { workload.hits.hits(phase, shape.cache_bytes) } else { 0.0 };
        let misses = *keys as f64 - hits;
        let page_ratio =
            if misses > 0.0 { workload.hits.pages(phase, shape) / misses } else { 0.0 };
        let mut is_hit: Vec<bool> = (0..*keys).map(|key| (key as f64) < hits.round()).collect();
        is_hit.shuffle(rng);
        let batches: Vec<&[bool]> = is_hit.chunks(job.batch as usize).collect();
        let run = simulate(&servers, job.workers, batches.len() as u64, |number| {
            let batch = batches[number as usize];
            let mut parts = vec![0.0; shards];
            batch.iter().filter(|hit| !**hit).for_each(|_| parts[drawn(shares, rng)] += 1.0);
            let mut steps = Steps { steps: Vec::new(), rng, deviation: job.variation.sqrt() };
            steps.batch(batch.len() as f64, &parts, page_ratio, costs, shape);
            steps.steps
        });
        let of = |shard: usize| run.served_s[MEMBERS + shard * members..][..members].to_vec();
        played.push(SimulatedPhase {
            time_s: run.elapsed_s,
            single_s: [run.served_s[CLIENT], run.served_s[CACHE], run.served_s[ROUTER]],
            members_s: (0..shards).map(of).collect(),
        });
    }
    played
}

/// Draws the index of a shard with the probabilities `shares`.
fn drawn(shares: &[f64], rng: &mut impl Rng) -> usize {
    let mut left = rng.random::<f64>();
    let mut before = |share: &f64| {
        left -= share;
        left < 0.0
    };
    shares.iter().position(&mut before).unwrap_or(shares.len() - 1)
}

/// The steps of one batch, while they are generated.
struct Steps<'a, R> {
    /// The steps that are generated so far, in order.
    steps: Vec<Step>,
    rng: &'a mut R,
    /// Standard deviation of the random factor of a service time, whose mean is 1.
    deviation: f64,
}

impl<R: Rng> Steps<'_, R> {
    /// Draws the service time of a request of `keys` keys with the mean `cost`, in seconds.
    fn service_s(&mut self, cost: Cost, keys: f64) -> f64 {
        let exponential = -(1.0 - self.rng.random::<f64>()).ln();
        cost.of(1.0, keys) * (1.0 - self.deviation + self.deviation * exponential)
    }

    /// Adds the service of a request of `keys` keys at a station.
    fn visit(&mut self, station: usize, cost: Cost, keys: f64) {
        let service_s = self.service_s(cost, keys);
        self.steps.push(Step::Visit(station, service_s));
    }

    /// Adds a delay of `s` seconds.
    fn wait(&mut self, s: f64) {
        self.steps.push(Step::Delay(s));
    }

    /// Adds the steps of a batch of `keys` keys; `parts` is the number of its misses on each shard, for each of which a page is
    /// read with the probability `page_ratio`.
    fn batch(&mut self, keys: f64, parts: &[f64], page_ratio: f64, costs: &Costs, shape: Shape) {
        let misses: f64 = parts.iter().sum();
        let cached = shape.cache_bytes > 0;
        let at_router = cached && shape.cache_at == CacheAt::Router;
        // The station that sends requests to the cache and the router.
        let asks = if at_router { ROUTER } else { CLIENT };
        if at_router {
            self.visit(CLIENT, costs.client_find, keys);
            self.wait(costs.round_trip_router_s);
            self.visit(ROUTER, costs.proxy, keys);
        }
        if cached {
            self.visit(asks, costs.client_get, keys);
            self.wait(costs.round_trip_cache_s);
            self.visit(CACHE, costs.cache_get, keys);
        }
        if misses > 0.0 {
            self.visit(asks, costs.client_find, misses);
            if !at_router {
                self.wait(costs.round_trip_router_s);
            }
            self.visit(ROUTER, costs.router, misses);
            self.wait(costs.round_trip_shard_s);
            self.fork(parts, page_ratio, costs, shape);
        }
        if cached && misses > 0.0 {
            self.visit(asks, costs.client_set, misses);
            self.wait(costs.round_trip_cache_s);
            self.visit(CACHE, costs.cache_set, misses);
        }
        self.visit(CLIENT, costs.client, keys);
    }

    /// Adds the fork to the shards that have misses; each part goes to a random member.
    fn fork(&mut self, parts: &[f64], page_ratio: f64, costs: &Costs, shape: Shape) {
        let members = shape.replicas as usize;
        let mut fork = Vec::new();
        for (shard, keys) in parts.iter().enumerate().filter(|(_, keys)| **keys > 0.0) {
            let member = self.rng.random_range(0..shape.read_members() as usize);
            let read = (0..*keys as u64).filter(|_| self.rng.random::<f64>() < page_ratio);
            let pages = read.count() as f64;
            let key_s = costs.shard.key_s + pages / keys * costs.page.processor_s;
            let service_s = self.service_s(Cost { key_s, ..costs.shard }, *keys);
            let station = MEMBERS + shard * members + member;
            fork.push((station, service_s, pages * costs.page.wait_s));
        }
        self.steps.push(Step::Fork(fork));
    }
}

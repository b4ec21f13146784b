//! A chained job played through, batch by batch and key by key: the oracle of [`predict`](super::predict).
//!
//! Each key of a batch is a hit or a miss, each miss lies on a shard, each shard's part of a `find` goes to one of its
//! members, and the next step waits for the slowest of them. Nothing is a mean here, nothing is merged: a batch asks the
//! client's processors as often as it really does. A phase ends with its last batch.

use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt as _};

use super::Workload;
use super::costs::{Cost, Costs, Job, Machine};
use super::shape::{CacheAt, Shape};
use crate::queueing::simulator::{Step, simulate};

/// A phase that was played through.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// Its time, in seconds.
    pub time_s: f64,
    /// Processor time of client, cache, router, in seconds.
    pub single_s: [f64; 3],
    /// That of each member of each shard.
    pub members_s: Vec<Vec<f64>>,
}

const CLIENT: usize = 0;
const CACHE: usize = 1;
const ROUTER: usize = 2;
const MEMBERS: usize = 3;

/// The whole job: each of its phases.
///
/// Each service takes its cost times a factor of mean 1 whose variance is the job's variation: a shifted exponential one, so
/// that 0 is constant service and 1 is exponential.
pub fn play<R: Rng>(
    workload: Workload<'_>,
    costs: &Costs,
    machine: &Machine,
    job: &Job,
    shape: Shape,
    shares: &[f64],
    rng: &mut R,
) -> Vec<Played> {
    let (shards, members) = (shares.len(), shape.replicas as usize);
    let mut servers =
        vec![machine.client_cores, machine.cache_cores.min(1.0), machine.router_cores];
    servers.extend(vec![machine.shard_cores; shards * members]);
    let mut played = Vec::new();
    for (phase, keys) in workload.phases.iter().enumerate() {
        let hits =
            if shape.cache_bytes > 0 { workload.hits.hits(phase, shape.cache_bytes) } else { 0.0 };
        let mut is_hit: Vec<bool> = (0..*keys).map(|key| (key as f64) < hits.round()).collect();
        is_hit.shuffle(rng);
        let batches: Vec<&[bool]> = is_hit.chunks(job.batch as usize).collect();
        let run = simulate(&servers, job.workers, batches.len() as u64, |number| {
            let batch = batches[number as usize];
            let mut parts = vec![0.0; shards];
            batch.iter().filter(|hit| !**hit).for_each(|_| parts[drawn(shares, rng)] += 1.0);
            let mut steps = Steps { steps: Vec::new(), rng, deviation: job.variation.sqrt() };
            steps.batch(batch.len() as f64, &parts, costs, shape);
            steps.steps
        });
        let of = |shard: usize| run.served_s[MEMBERS + shard * members..][..members].to_vec();
        played.push(Played {
            time_s: run.elapsed_s,
            single_s: [run.served_s[CLIENT], run.served_s[CACHE], run.served_s[ROUTER]],
            members_s: (0..shards).map(of).collect(),
        });
    }
    played
}

/// A shard, by the shares.
fn drawn(shares: &[f64], rng: &mut impl Rng) -> usize {
    let mut left = rng.random::<f64>();
    let mut before = |share: &f64| {
        left -= share;
        left < 0.0
    };
    shares.iter().position(&mut before).unwrap_or(shares.len() - 1)
}

/// The steps of a batch, as they are put together.
struct Steps<'a, R> {
    steps: Vec<Step>,
    rng: &'a mut R,
    /// Standard deviation of a service's factor.
    deviation: f64,
}

impl<R: Rng> Steps<'_, R> {
    fn service_s(&mut self, cost: Cost, keys: f64) -> f64 {
        let exponential = -(1.0 - self.rng.random::<f64>()).ln();
        cost.of(1.0, keys) * (1.0 - self.deviation + self.deviation * exponential)
    }

    fn visit(&mut self, station: usize, cost: Cost, keys: f64) {
        let service_s = self.service_s(cost, keys);
        self.steps.push(Step::Visit(station, service_s));
    }

    fn wait(&mut self, s: f64) {
        self.steps.push(Step::Delay(s));
    }

    /// A batch of so many keys, whose misses lie on the shards as `parts` says.
    fn batch(&mut self, keys: f64, parts: &[f64], costs: &Costs, shape: Shape) {
        let misses: f64 = parts.iter().sum();
        let cached = shape.cache_bytes > 0;
        let at_router = cached && shape.cache_at == CacheAt::Router;
        // The station that asks the cache and the router.
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
            self.fork(parts, costs.shard, shape);
        }
        if cached && misses > 0.0 {
            self.visit(asks, costs.client_set, misses);
            self.wait(costs.round_trip_cache_s);
            self.visit(CACHE, costs.cache_set, misses);
        }
        self.visit(CLIENT, costs.client, keys);
    }

    fn fork(&mut self, parts: &[f64], cost: Cost, shape: Shape) {
        let members = shape.replicas as usize;
        let mut fork = Vec::new();
        for (shard, keys) in parts.iter().enumerate().filter(|(_, keys)| **keys > 0.0) {
            let member = self.rng.random_range(0..shape.read_members() as usize);
            fork.push((MEMBERS + shard * members + member, self.service_s(cost, *keys)));
        }
        self.steps.push(Step::Fork(fork));
    }
}

//! Predictions beside jobs that are played through, and the plan beside a search of all shapes.

mod against_simulator;
mod plans;
mod recorded;
mod uniform;

use super::{CacheAt, Cost, Costs, Hits, Job, Machine, PageCost, Reads, Shape};

/// No cache, and shards that have all in memory.
struct InMemory;

impl Hits for InMemory {
    fn hits(&self, _: usize, _: u64) -> f64 {
        0.0
    }

    fn held_bytes(&self, _: u64) -> u64 {
        0
    }
}

/// A cache of any size that answers the share `ratio` of each phase's keys. Shards read a page from disk for the share
/// `page_ratio` of the other keys.
struct Constant {
    keys: u64,
    ratio: f64,
    page_ratio: f64,
}

impl Hits for Constant {
    fn hits(&self, _: usize, _: u64) -> f64 {
        (self.keys as f64 * self.ratio).round()
    }

    fn held_bytes(&self, capacity_bytes: u64) -> u64 {
        capacity_bytes
    }

    fn pages(&self, phase: usize, shape: Shape) -> f64 {
        let hits = if shape.cache_bytes > 0 { self.hits(phase, shape.cache_bytes) } else { 0.0 };
        self.page_ratio * (self.keys as f64 - hits)
    }
}

/// A cache that has a share of each phase's keys in proportion to its size.
struct Proportional {
    keys: u64,
    data_bytes: u64,
}

impl Hits for Proportional {
    fn hits(&self, phase: usize, capacity_bytes: u64) -> f64 {
        let held = capacity_bytes.min(self.data_bytes) as f64 / self.data_bytes as f64;
        if phase == 0 { 0.0 } else { self.keys as f64 * held }
    }

    fn held_bytes(&self, capacity_bytes: u64) -> u64 {
        capacity_bytes.min(self.data_bytes)
    }
}

/// About what small servers cost on one machine.
fn costs() -> Costs {
    let us = |request: f64, key: f64| Cost { request_s: request * 1e-6, key_s: key * 1e-6 };
    Costs {
        client: us(30.0, 1.2),
        client_get: us(40.0, 0.8),
        client_set: us(40.0, 1.0),
        client_find: us(150.0, 2.5),
        proxy: us(60.0, 1.5),
        cache_get: us(15.0, 0.6),
        cache_set: us(15.0, 1.1),
        router: us(180.0, 3.0),
        shard: us(120.0, 9.0),
        page: PageCost { processor_s: 60e-6, wait_s: 200e-6 },
        round_trip_cache_s: 60e-6,
        round_trip_router_s: 100e-6,
        round_trip_shard_s: 100e-6,
        entry_bytes: 72.0,
        document_bytes: 150.0,
        index_bytes: 20.0,
        documents: 8_000_000,
        server_bytes: 90e6,
        cache_server_bytes: 3e6,
    }
}

fn machine(cores: f64) -> Machine {
    Machine { client_cores: 2.0, cache_cores: 1.0, router_cores: 1.0, shard_cores: cores }
}

fn job() -> Job {
    Job { workers: 16, batch: 100, variation: 0.0 }
}

fn shape(shards: u32, cache_bytes: u64) -> Shape {
    Shape {
        shards,
        replicas: 1,
        storage_bytes: None,
        cache_bytes,
        cache_at: CacheAt::Worker,
        reads: Reads::Primary,
    }
}

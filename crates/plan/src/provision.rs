//! The number of shards and replicas, and the size of the cache, that a chained job needs (after Wong and others,
//! *Database Caching and Sharding Strategies in Chained MR Jobs*, whose authors tried the shapes by hand).
//!
//! A chain of jobs reads in bursts, its phases: each ends when all its batches have ended, and the next begins then. A
//! worker takes a batch of keys, requests them from the cache by one MGET, requests the misses from the router by one
//! `find {_id: {$in: …}}`, which queries each shard that has some of them and waits for the slowest, puts the misses
//! into the cache, and processes the documents. [`predict()`] computes how long that takes in one [`Shape`] of the
//! cluster and which resources it needs, from the cost of a request at each station ([`Costs`], from a probe) and the
//! number of keys that the cache holds ([`Hits`], from a trace); [`plan()`] compares a grid of shapes.
//!
//! - `batch`: the service that a mean batch takes at each station, and how much that varies.
//! - `fork`: the slowest of the shards that a batch asks.
//! - `phase`: the time of a phase, between the bounds that constant and exponential service give.
//! - `simulator`: the same, played through; the oracle.
//! - [`reuse`]: the share of references that a cache of each size serves, from a trace.
//! - [`queueing`]: closed queueing networks, from which `phase` takes its bounds.
//! - `interval`: the intervals of predicted times, and of their ratios.
//! - `recorded`: the time of a recorded job as it reads now, with its own requests, on each shape.
//! - `grid`, `plan`, `reasons`: all shapes, those worth choosing among, the advice and why not its neighbours.

mod batch;
mod candidate;
mod costs;
mod fork;
mod grid;
mod interval;
mod phase;
mod plan;
mod predict;
pub mod queueing;
mod reasons;
mod recorded;
pub mod reuse;
mod shape;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;

pub use candidate::{Advice, Candidate, Question};
pub use costs::{Cost, Costs, Errors, Job, Machine, PageCost, Prices};
pub use grid::Grid;
pub use interval::{Basis, Interval};
pub use plan::{Neighbour, Plan, Uneven, plan};
pub use predict::{AtStation, PhaseTime, Prediction, Processors, predict};
pub use recorded::{Recorded, RecordedPhase, RecordedTime, Servers};
pub use shape::{CacheAt, Reads, Shape, Shares, SharesError, Station};

use reuse::Curve;

/// The number of a chained job's reads that a cache answers, by phase and by the cache's size.
pub trait Hits {
    /// Returns the number of keys that a cache of `capacity_bytes` bytes answers in the phase with this index: from 0
    /// to the number of the phase's keys.
    fn hits(&self, phase: usize, capacity_bytes: u64) -> f64;
    /// Returns the number of bytes of entries in a cache of `capacity_bytes` bytes when the job ends.
    fn held_bytes(&self, capacity_bytes: u64) -> u64;
    /// Returns the number of pages that all members of all shards together read from disk in the phase, at most one for each
    /// key that the cache does not answer; 0 unless it is known.
    fn pages(&self, _phase: usize, _shape: Shape) -> f64 {
        0.0
    }
}

impl Hits for Curve {
    fn hits(&self, phase: usize, capacity_bytes: u64) -> f64 {
        self.hits(phase, capacity_bytes)
    }

    fn held_bytes(&self, capacity_bytes: u64) -> u64 {
        self.held_bytes(capacity_bytes)
    }
}

/// The reads of a chained job: their numbers, and the hits of a cache.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// Number of keys that are read in each phase of the job.
    pub phases: &'a [u64],
    /// Number of these keys that a cache of each size answers, by phase.
    pub hits: &'a dyn Hits,
}

//! How many shards, replicas and how much cache a chained job needs (after Wong and others, *Database Caching and Sharding
//! Strategies in Chained MR Jobs*, whose authors tried the shapes by hand).
//!
//! A chain of jobs reads in bursts, its phases: each ends when all its batches have, and the next begins then. A worker takes
//! a batch of keys, asks the cache for them by one MGET, asks the router for the misses by one `find {_id: {$in: …}}`, which
//! asks each shard that has some of them and waits for the slowest, puts the misses into the cache, and works on the
//! documents. [`predict`] says how long that takes in one [`Shape`] of the cluster and what it needs, by what a request costs
//! each station ([`Costs`], from a probe) and by how many keys the cache holds ([`Hits`], from a trace); [`plan`] compares a
//! grid of shapes.
//!
//! - `batch`: the service that a mean batch takes at each station, and how much that varies.
//! - `fork`: the slowest of the shards that a batch asks.
//! - `phase`: the time of a phase, between the bounds that constant and exponential service give.
//! - `simulator`: the same, played through; the oracle.
//! - [`reuse`]: the share of references that a cache of each size serves, from a trace.
//! - [`queueing`]: closed queueing networks, from which `phase` takes its bounds.
//! - `grid`, `plan`, `reasons`: all shapes, those worth choosing among, the advice and why not its neighbours.

mod batch;
mod costs;
mod fork;
mod grid;
mod phase;
mod plan;
mod predict;
pub mod queueing;
mod reasons;
pub mod reuse;
mod shape;
pub mod simulator;
#[cfg(test)]
mod tests;

pub use costs::{Cost, Costs, Errors, Job, Machine, Prices};
pub use grid::Grid;
pub use plan::{Advice, Candidate, Neighbour, Plan, Question, Uneven, plan};
pub use predict::{AtStation, Interval, PhaseTime, Prediction, Processors, interval, predict};
pub use shape::{CacheAt, Reads, Shape, Shares, SharesError, Station};

use reuse::Curve;

/// How many of a job's reads a cache answers.
pub trait Hits {
    /// Hits in a phase with a cache of so many bytes, from 0 to the phase's keys.
    fn hits(&self, phase: usize, capacity_bytes: u64) -> f64;
    /// Bytes in a cache of that size when the job ends.
    fn held_bytes(&self, capacity_bytes: u64) -> u64;
}

impl Hits for Curve {
    fn hits(&self, phase: usize, capacity_bytes: u64) -> f64 {
        self.hits(phase, capacity_bytes)
    }

    fn held_bytes(&self, capacity_bytes: u64) -> u64 {
        self.held_bytes(capacity_bytes)
    }
}

/// What a job reads.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// Keys that are read in each phase.
    pub phases: &'a [u64],
    /// Of them, what a cache answers.
    pub hits: &'a dyn Hits,
}

//! The shapes that a plan compares, each with its prediction and its cost, and which of them is advised.

use std::cmp::Ordering;

use super::Workload;
use super::costs::{Costs, Job, Machine, Prices};
use super::grid::Grid;
use super::predict::{Prediction, predict};
use super::shape::{Shape, Shares};

/// The inputs from which a plan is made: the workload, the costs, and the shapes to compare.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The number of keys that each phase reads, and the hits of a cache.
    pub workload: Workload<'a>,
    /// Cost of a request at each station, as a probe measured it.
    pub costs: &'a Costs,
    /// Number of processors of each station.
    pub machine: &'a Machine,
    /// Settings of the chained job.
    pub job: &'a Job,
    /// Share of the keys on each shard, for each number of shards.
    pub shares: &'a Shares,
    /// The shapes to compare.
    pub grid: &'a Grid,
    /// Deadline: the time within which the job has to end, in seconds.
    pub deadline_s: f64,
    /// Prices per hour. Without prices, shapes are ordered by processors, then by memory.
    pub prices: Option<Prices>,
}

/// A shape that is compared, with its prediction and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Prediction of the job's time, and of busy processors and memory, on this shape.
    pub prediction: Prediction,
    /// Number of provisioned processors: those of the client, the router, the cache if there is one, and all members
    /// of the shards.
    pub processors: f64,
    /// Provisioned memory, in bytes: that of all members of the shards, and the cache's limit plus the memory of its
    /// server.
    pub memory_bytes: f64,
    /// Price of the shape per hour, by [`Question::prices`]; `None` without prices.
    pub price_hour: Option<f64>,
}

impl Candidate {
    /// Returns the price of one run of the job on this shape; `None` without prices.
    #[must_use]
    pub fn price_job(&self) -> Option<f64> {
        self.price_hour.map(|price| price * self.prediction.job_s / 3600.0)
    }

    pub(super) fn new(question: &Question<'_>, shares: &Shares, shape: Shape) -> Self {
        let Question { workload, costs, machine, job, prices, .. } = *question;
        let prediction = predict(workload, costs, machine, job, shape, shares);
        let (cache_cores, cache_bytes) = match shape.cache_bytes {
            0 => (0.0, 0.0),
            bytes => (machine.cache_cores, bytes as f64 + costs.cache_server_bytes),
        };
        let members = f64::from(shape.members());
        let processors = machine.client_cores
            + machine.router_cores
            + cache_cores
            + members * machine.shard_cores;
        let memory_bytes = prediction.database_bytes() + cache_bytes;
        let price = |prices: Prices| prices.core * processors + prices.gb * memory_bytes / 1e9;
        Self { prediction, processors, memory_bytes, price_hour: prices.map(price) }
    }

    /// Compares the costs of two candidates: by price, or without prices by processors, then by memory. Relative
    /// differences below 1e-6 count as equal.
    pub(super) fn cmp_cost(&self, other: &Self) -> Ordering {
        match (self.price_hour, other.price_hour) {
            (Some(own), Some(its)) => compared(own, its),
            _ => compared(self.processors, other.processors)
                .then(compared(self.memory_bytes, other.memory_bytes)),
        }
    }

    pub(super) fn cmp_time(&self, other: &Self) -> Ordering {
        compared(self.prediction.job_s, other.prediction.job_s)
    }

    /// Returns true if the other candidate is better in time or in a cost, and worse in none of them.
    pub(super) fn is_dominated_by(&self, other: &Self) -> bool {
        let mut all = vec![self.cmp_time(other)];
        match (self.price_hour, other.price_hour) {
            (Some(own), Some(its)) => all.push(compared(own, its)),
            _ => {
                all.push(compared(self.processors, other.processors));
                all.push(compared(self.memory_bytes, other.memory_bytes));
            }
        }
        !all.contains(&Ordering::Less) && all.contains(&Ordering::Greater)
    }
}

/// Compares two numbers; relative differences below 1e-6 count as equal.
pub(super) fn compared(one: f64, other: f64) -> Ordering {
    if (one - other).abs() <= 1e-6 * one.abs().max(other.abs()) {
        Ordering::Equal
    } else {
        one.total_cmp(&other)
    }
}

/// The advised shape of the cluster, by its index among the candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advice {
    /// The cheapest shape that meets the deadline, by its index among the candidates.
    Meets(usize),
    /// No shape meets the deadline. The fields are the index of the fastest shape, and the seconds by which it exceeds
    /// the deadline.
    Misses(usize, f64),
}

impl Advice {
    /// Returns the index of the advised candidate.
    #[must_use]
    pub fn candidate(self) -> usize {
        match self {
            Self::Meets(number) | Self::Misses(number, _) => number,
        }
    }
}

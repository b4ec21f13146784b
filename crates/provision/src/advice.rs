//! The advice for a trace: the hit curve of the cache by its size, the plan over a grid of shapes, and the report of
//! both.
//!
//! The report is a function of the trace, the costs and the settings alone. It names the origin of the costs, and the
//! figures that rest on a default.

mod policy;
mod recorded;
mod report;
mod shape;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use imago_plan::provision::reuse::Start;
use imago_plan::provision::{
    CacheAt, Costs, Errors, Grid, Job, Machine, Prices, Question, Reads, Shares, Workload, plan,
};

use crate::trace::Trace;
use policy::policies;
pub use policy::{CachePolicy, PolicyReport};
pub use recorded::{AsRecorded, InBatches, RecordedShape};
pub use report::{Advice, NeighbourReport, PhaseReport, Report, StationReport, UnevenReport};
pub use shape::ShapeReport;
pub use storage::Measured;

/// Maximum number of shapes (combinations of shards, replicas, cache and read preference) that one plan compares.
pub const SHAPES_MAX: usize = 20_000;

/// The costs of requests at each station from which a plan is predicted, and the origin of these costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Costs of a request and of a key: processor times in seconds, waits in seconds, and sizes in bytes.
    pub costs: Costs,
    /// Standard error of each cost in `costs`, relative to that cost; 0 for an error that is not known.
    pub errors: Errors,
    /// Origin of the costs in words: the file of the probe, and the machine on which it was made.
    pub from: String,
    /// True if the costs were measured on the user's own cluster. If false, they were measured on another machine with
    /// other documents, and document sizes are taken from the trace.
    pub is_own: bool,
    /// Number of shards of the cluster that the probe measured, on which the job is taken to have been recorded; `None` for
    /// costs of another machine.
    pub shards: Option<u32>,
    /// Size of the storage cache of the members that the probe measured, in bytes; `None` if it is not known.
    pub storage_bytes: Option<u64>,
    /// Mean size of a page in a storage cache, in bytes.
    pub page_bytes: f64,
    /// True if the probe measured what a page from disk costs. If false, that cost is the built-in probe's.
    pub has_pages: bool,
    /// Stations that the user's cluster did not have during the probe; the costs of these stations come from the
    /// built-in probe.
    pub borrowed: Vec<&'static str>,
}

/// The settings of a plan: the deadline, the prices, and the values of each dimension of the grid of shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Deadline: the time within which the job has to end, in seconds.
    pub deadline_s: f64,
    /// Prices of a processor and of a GB of memory per hour. If `None`, shapes are ordered by their number of
    /// processors, then by their memory.
    pub prices: Option<Prices>,
    /// Candidate numbers of shards.
    pub shards: Vec<u32>,
    /// Candidate numbers of members per shard.
    pub replicas: Vec<u32>,
    /// Candidate sizes of the storage cache of each member, in bytes; 0 stands for as much as its documents and indexes. If `None`:
    /// that of the probe, twice and four times as much where the collection exceeds it on some shape, and else 0.
    pub storage_bytes: Option<Vec<u64>>,
    /// Candidate cache sizes, in bytes. If `None`: no cache, and 1/8, 1/4, 1/2 and all of the bytes that an unlimited
    /// cache would hold.
    pub cache_bytes: Option<Vec<u64>>,
    /// Candidate read preferences: the primary alone, or the nearest member.
    pub reads: Vec<Reads>,
    /// Candidate locations of the cache: at the workers, or at the router.
    pub cache_at: Vec<CacheAt>,
    /// The share of the keys on each shard, for each number of shards.
    pub shares: Shares,
    /// Number of processors of each station: client, cache, router, and each member of a shard.
    pub machine: Machine,
    /// Settings of the job: its number of workers, and its number of keys per batch.
    pub job: Job,
    /// Eviction policy of the cache.
    pub policy: CachePolicy,
    /// State of the cache when the job starts: cold or warm.
    pub start: Start,
    /// Number of documents in the collection; `None`: the number in the costs, or, if they come from another machine,
    /// in the trace.
    pub documents: Option<u64>,
}

/// The reasons why no advice can be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace has no reads.
    #[error(
        "the trace has no reads: record a job that reads by _id, or check the columns of the file"
    )]
    Empty,
    /// The deadline is not a finite number of seconds above 0; the field is the given deadline.
    #[error("the deadline of {0} s is not valid: give the time that the job may take, as 60s")]
    Deadline(f64),
    /// A price per hour is negative or not finite; the field is the given price.
    #[error("the price {0} is not valid: give 0 or more")]
    Price(f64),
    /// The grid has no shape, or more than [`SHAPES_MAX`]. The field is its number of shapes.
    #[error("the grid has {0} shapes: give from 1 to {SHAPES_MAX}")]
    Grid(usize),
}

/// Computes the hit curve of a trace and a plan over the grid in `settings`, and returns the report of both. `origin`
/// has the costs of the stations.
///
/// # Errors
/// [`Error`]: the trace has no reads, or a setting is invalid.
pub fn advise(trace: &Trace, origin: &Origin, settings: &Settings) -> Result<Advice, Error> {
    checked(trace, settings)?;
    let costs = costs(trace, origin, settings.documents);
    let references = trace.references(costs.entry_bytes);
    let curve = |capacities: &[u64]| {
        settings.policy.curve(&references, settings.start, capacities, trace.reads_per_s())
    };
    let cache_bytes =
        settings.cache_bytes.clone().unwrap_or_else(|| sizes(curve(&[]).distinct_bytes()));
    let curve = curve(&cache_bytes);
    let grid = Grid::new(
        settings.shards.clone(),
        settings.replicas.clone(),
        storage::sizes(&costs, origin, settings),
        cache_bytes,
        settings.reads.clone(),
        settings.cache_at.clone(),
    );
    let grid = grid.ok_or(Error::Grid(0))?;
    let shapes = grid.shapes().len();
    if shapes > SHAPES_MAX {
        return Err(Error::Grid(shapes));
    }
    let phases: Vec<u64> = trace.phases.iter().map(|phase| phase.len() as u64).collect();
    let start = (settings.start, Start::Warm);
    let hits = Measured::new(trace, &curve, &grid, start, (&costs, origin.page_bytes));
    let question = Question {
        workload: Workload { phases: &phases, hits: &hits },
        costs: &costs,
        machine: &settings.machine,
        job: &settings.job,
        shares: &settings.shares,
        grid: &grid,
        deadline_s: settings.deadline_s,
        prices: settings.prices,
    };
    let plan = plan(&question);
    let capacity_bytes = plan.advised().prediction.shape.cache_bytes;
    let policies = policies(trace, &references, settings.start, capacity_bytes);
    Ok(Advice {
        policy: settings.policy,
        policies,
        ..report::report(&question, &plan, origin, &curve, trace)
    })
}

/// Checks that the trace has reads, and that the deadline and the prices in the settings are valid.
fn checked(trace: &Trace, settings: &Settings) -> Result<(), Error> {
    if trace.reads() == 0 {
        return Err(Error::Empty);
    }
    if !(settings.deadline_s.is_finite() && settings.deadline_s > 0.0) {
        return Err(Error::Deadline(settings.deadline_s));
    }
    let prices = settings.prices.iter().flat_map(|prices| [prices.core, prices.gb]);
    match prices.into_iter().find(|price| !(price.is_finite() && *price >= 0.0)) {
        Some(price) => Err(Error::Price(price)),
        None => Ok(()),
    }
}

/// Returns the costs for the prediction. If they were measured on another machine, the mean document size and the
/// number of documents are those of the trace; `documents` overrides the number.
fn costs(trace: &Trace, origin: &Origin, documents: Option<u64>) -> Costs {
    let mut costs = origin.costs;
    if !origin.is_own {
        let (count, bytes) = trace.documents();
        if count > 0 && bytes > 0 {
            costs.document_bytes = bytes as f64 / count as f64;
        }
        let keys = trace.phases.iter().flatten().filter(|read| read.document_bytes.is_some());
        costs.documents = keys.map(|read| read.key.hash64()).collect::<HashSet<u64>>().len() as u64;
    }
    if let Some(documents) = documents {
        costs.documents = documents;
    }
    costs
}

/// Returns the default candidate sizes of the cache in bytes: 0 (no cache), and an eighth, a quarter, a half and all
/// of `distinct_bytes`, each rounded up to whole KiB.
fn sizes(distinct_bytes: u64) -> Vec<u64> {
    let part = |of: u64| distinct_bytes.div_ceil(of).div_ceil(1024) * 1024;
    vec![0, part(8), part(4), part(2), part(1)]
}

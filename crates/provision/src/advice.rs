//! The advice from a trace: what the cache would hold at each size, the plan over a grid of shapes, and both as a report.
//!
//! Everything is computed from the trace, the costs and the settings: the same three give the same report. It says whose
//! costs they are, and which of its figures rest on a default.

mod report;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use imago_plan::provision::{
    CacheAt, Costs, Errors, Grid, Job, Machine, Prices, Question, Reads, Shares, Workload, plan,
};
use imago_plan::reuse::{Curve, Reference, Sampling, Start, exact, sampled};

use crate::trace::Trace;
pub use report::{
    Advice, NeighbourReport, PhaseReport, Report, ShapeReport, StationReport, UnevenReport,
};

/// References up to which a curve is exact; beyond, keys are sampled.
const EXACT_MAX: u64 = 10_000_000;

/// Shapes that are compared at most.
pub const SHAPES_MAX: usize = 20_000;

/// The costs, and where they are from.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The costs.
    pub costs: Costs,
    /// Their relative standard errors.
    pub errors: Errors,
    /// In words: the file and the machine.
    pub from: String,
    /// False if they were measured elsewhere, on other documents: sizes are then taken from the trace.
    pub is_own: bool,
    /// Stations whose costs were measured elsewhere all the same, because they were not there.
    pub borrowed: Vec<&'static str>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The time within which the job has to end, in seconds.
    pub deadline_s: f64,
    /// Without them shapes are ordered by processors, then by memory.
    pub prices: Option<Prices>,
    /// Numbers of shards.
    pub shards: Vec<u32>,
    /// Numbers of members of a shard.
    pub replicas: Vec<u32>,
    /// Sizes of the cache, in bytes; none: shares of what one without a limit would hold.
    pub cache_bytes: Option<Vec<u64>>,
    /// Which members are read.
    pub reads: Vec<Reads>,
    /// Where the cache is.
    pub cache_at: Vec<CacheAt>,
    /// Where keys lie.
    pub shares: Shares,
    /// What the stations have.
    pub machine: Machine,
    /// The job's settings.
    pub job: Job,
    /// The cache before the job.
    pub start: Start,
    /// Documents of the collection, if that is known better than by the costs.
    pub documents: Option<u64>,
}

/// What cannot be advised.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is read.
    #[error(
        "the trace has no reads: record a job that reads by _id, or check the columns of the file"
    )]
    Empty,
    /// The time is none.
    #[error("a deadline of {0} s cannot be met: give the time that the job may take, as 60s")]
    Deadline(f64),
    /// A price is none.
    #[error("a price of {0} cannot be: give 0 or more")]
    Price(f64),
    /// The grid has none or too many shapes.
    #[error("the grid has {0} shapes: give from 1 to {SHAPES_MAX}")]
    Grid(usize),
}

/// The advice for a trace.
///
/// # Errors
/// [`Error`]: the trace or the settings leave nothing to advise.
pub fn advise(trace: &Trace, origin: &Origin, settings: &Settings) -> Result<Advice, Error> {
    checked(trace, settings)?;
    let costs = costs(trace, origin, settings.documents);
    let references = trace.references(costs.entry_bytes);
    let curve = curve(&references, settings.start);
    let cache_bytes = settings.cache_bytes.clone().unwrap_or_else(|| sizes(curve.distinct_bytes()));
    let grid = Grid::new(
        settings.shards.clone(),
        settings.replicas.clone(),
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
    let question = Question {
        workload: Workload { phases: &phases, hits: &curve },
        costs: &costs,
        machine: &settings.machine,
        job: &settings.job,
        shares: &settings.shares,
        grid: &grid,
        deadline_s: settings.deadline_s,
        prices: settings.prices,
    };
    Ok(report::report(&question, &plan(&question), origin, &curve, trace))
}

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

/// The costs with the sizes of the trace's own documents, where they were measured on others.
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

fn curve(references: &[Vec<Reference>], start: Start) -> Curve {
    let number: u64 = references.iter().map(|phase| phase.len() as u64).sum();
    if number <= EXACT_MAX {
        exact(references, start)
    } else {
        sampled(references, start, Sampling::default())
    }
}

/// No cache, and an eighth, a quarter, a half and all of what one without a limit would hold, in whole KiB.
fn sizes(distinct_bytes: u64) -> Vec<u64> {
    let part = |of: u64| distinct_bytes.div_ceil(of).div_ceil(1024) * 1024;
    vec![0, part(8), part(4), part(2), part(1)]
}

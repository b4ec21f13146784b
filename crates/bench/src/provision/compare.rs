//! Predicted beside measured: by the keys that the chain read, and what a probe of one shape found requests to cost.

use std::path::Path;

use imago_plan::provision as planned;
use imago_plan::provision::{
    Costs, Grid, Hits, Job, Machine, Plan, Prediction, Question, Shape, Shares, Workload, plan,
    predict,
};
use imago_plan::reuse::{Curve, Policy, Start, simulated};
use imago_provision::probe::Probe;
use imago_provision::trace::Trace;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use super::Measured;
use super::cell::{CacheAt, Cell, Reads};
use super::file::Common;
use super::summary::{Summary, by_cell};
use crate::error::{Error, Result};
use crate::statistics::Figure;

/// Redis looks at so many keys for the one that it evicts (`maxmemory-samples`).
const SAMPLES: u32 = 5;

/// A cell, with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What was measured.
    #[serde(flatten)]
    pub measured: Summary,
    /// True of the shape that the probe looked at.
    pub is_probed: bool,
    /// Seconds of the job, predicted.
    pub predicted_s: f64,
    /// Predicted over measured, less one.
    pub time_error: f64,
    /// Hits as a share of the keys, predicted.
    pub predicted_hit_ratio: f64,
    /// Bytes in the cache at the end, predicted.
    pub predicted_cached_bytes: f64,
    /// Processors of a member with data on average, predicted.
    pub predicted_cpu_mean: f64,
    /// What bounds the job's time, by the prediction.
    pub bottleneck: String,
}

/// How good the predictions are, over all cells that the probe did not look at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// Cells.
    pub held_out: usize,
    /// The errors of the job's time, without their signs: the median.
    pub time_error_median: f64,
    /// The largest.
    pub time_error_max: f64,
    /// The largest difference of hit ratios.
    pub hit_ratio_error_max: f64,
    /// The largest error of the cache's bytes, as a share of them; of whole chains with a cache.
    pub cache_bytes_error_max: Option<f64>,
}

/// What predictions are made from.
pub(crate) struct Predictor {
    costs: Costs,
    references: Vec<Vec<imago_plan::reuse::Reference>>,
    /// Keys of each phase.
    keys: Vec<u64>,
    machine: Machine,
    job: Job,
}

impl Predictor {
    /// By the files that were made beside the runs.
    pub(crate) fn read(trace: &Path, probe: &Path, common: &Common) -> Result<Self> {
        let wrong =
            |path: &Path, cause: String| Error::Wrong(format!("{}: {cause}", path.display()));
        let trace_read = Trace::read(trace).map_err(|cause| wrong(trace, cause.to_string()))?;
        let probe = Probe::read(probe).map_err(|cause| wrong(probe, cause.to_string()))?;
        let costs = probe.costs();
        // Of servers that were there before, the probe says what they have.
        let machine = probe.machine();
        let held = common.cpu_percent.map(|percent| f64::from(percent) / 100.0);
        let shard_cores = held.unwrap_or(machine.shard_cores);
        Ok(Self {
            references: trace_read.references(costs.entry_bytes),
            keys: trace_read.phases.iter().map(|phase| phase.len() as u64).collect(),
            machine: Machine { shard_cores, ..machine },
            costs,
            job: Job { workers: common.workers, batch: common.batch, variation: 0.1 },
        })
    }

    /// Keys of all phases.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.iter().sum()
    }

    /// The hits of these sizes of a cache.
    fn curve(&self, caches_bytes: &[u64]) -> Curve {
        let policy = Policy::SampledLru { samples: SAMPLES };
        simulated(
            &self.references,
            Start::Cold,
            policy,
            caches_bytes,
            1.0,
            &mut StdRng::seed_from_u64(1),
        )
    }

    /// The plan for chains of this length.
    pub(crate) fn plan(&self, grid: &Grid, length: usize, deadline_s: f64) -> Plan {
        let caches: Vec<u64> = grid.shapes().iter().map(|shape| shape.cache_bytes).collect();
        let curve = self.curve(&distinct(caches));
        let keys = &self.keys[..length.min(self.keys.len())];
        plan(&Question {
            workload: Workload { phases: keys, hits: &curve },
            costs: &self.costs,
            machine: &self.machine,
            job: &self.job,
            shares: &Shares::even(),
            grid,
            deadline_s,
            prices: None,
        })
    }

    fn predict(&self, cell: &Cell, length: usize, curve: &Curve) -> Result<Prediction> {
        let keys = &self.keys[..length.min(self.keys.len())];
        let percent: Vec<f64> = cell.shares.iter().map(|share| f64::from(*share)).collect();
        let shares = Shares::even().with_percent(&percent);
        let shares = shares.map_err(|cause| Error::Size(cause.to_string()))?;
        let hits: &dyn Hits = curve;
        let workload = Workload { phases: keys, hits };
        Ok(predict(workload, &self.costs, &self.machine, &self.job, shape(cell), &shares))
    }
}

/// The sizes of caches that there are, each once.
fn distinct(mut caches_bytes: Vec<u64>) -> Vec<u64> {
    caches_bytes.retain(|bytes| *bytes > 0);
    caches_bytes.sort_unstable();
    caches_bytes.dedup();
    caches_bytes
}

/// A cell, as plans have it.
pub(crate) fn shape(cell: &Cell) -> Shape {
    Shape {
        shards: u32::try_from(cell.shards()).unwrap_or(u32::MAX),
        replicas: cell.members,
        cache_bytes: cell.cache_bytes,
        cache_at: match cell.cache_at {
            CacheAt::Worker => planned::CacheAt::Worker,
            CacheAt::Router => planned::CacheAt::Router,
        },
        reads: match cell.reads {
            Reads::Primary => planned::Reads::Primary,
            Reads::Nearest => planned::Reads::Nearest,
        },
    }
}

/// Compares all cells, with chains of these lengths.
pub(crate) fn compare(
    measured: &Measured,
    predictor: &Predictor,
    lengths: &[usize],
) -> Result<(Vec<Compared>, Option<Accuracy>)> {
    let cells = by_cell(&measured.runs);
    let curve =
        predictor.curve(&distinct(cells.iter().map(|(cell, _)| cell.cache_bytes).collect()));
    let mut compared = Vec::new();
    for (cell, runs) in &cells {
        for length in lengths {
            let summary = Summary::of(cell, runs, *length);
            let predicted = predictor.predict(cell, *length, &curve)?;
            let keys: u64 = predicted.phases.iter().map(|phase| phase.keys).sum();
            compared.push(Compared {
                is_probed: measured.is_probed(cell),
                predicted_s: predicted.job_s,
                time_error: predicted.job_s / summary.job_s.mean - 1.0,
                predicted_hit_ratio: predicted.hits() / keys.max(1) as f64,
                predicted_cached_bytes: predicted.cache_held_bytes as f64,
                predicted_cpu_mean: predicted.database.average,
                bottleneck: predicted.bottleneck.to_string(),
                measured: summary,
            });
        }
    }
    let accuracy = Accuracy::of(&compared);
    Ok((compared, accuracy))
}

impl Accuracy {
    /// Of the cells that were not probed; none if there are none.
    #[must_use]
    pub fn of(compared: &[Compared]) -> Option<Self> {
        let held_out: Vec<&Compared> = compared.iter().filter(|cell| !cell.is_probed).collect();
        if held_out.is_empty() {
            return None;
        }
        let times = Figure::of(held_out.iter().map(|cell| cell.time_error.abs()));
        let ratios = held_out.iter().map(|cell| cell.predicted_hit_ratio - cell.measured.hit_ratio);
        let cached = held_out.iter().filter_map(|cell| {
            let bytes = cell.measured.cached_bytes.filter(|bytes| *bytes > 0.0)?;
            Some((cell.predicted_cached_bytes / bytes - 1.0).abs())
        });
        Some(Self {
            held_out: held_out.len(),
            time_error_median: times.median,
            time_error_max: times.max,
            hit_ratio_error_max: ratios.map(f64::abs).fold(0.0, f64::max),
            cache_bytes_error_max: cached.reduce(f64::max),
        })
    }
}

//! Comparison of predicted with measured cells. The predictions are made from the keys that the chain read and from
//! the request costs that a probe measured on one shape.

use std::path::Path;

use imago_plan::provision as planned;
use imago_plan::provision::reuse::{Curve, Policy, Start, simulated};
use imago_plan::provision::{
    Basis, Costs, Errors, Grid, Hits, Job, Machine, Plan, Prediction, Question, Shape, Shares,
    Workload, plan, predict,
};
use imago_provision::advice;
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

/// Number of keys that Redis samples to select one for eviction (`maxmemory-samples`).
const SAMPLES: u32 = 5;

/// The measurements of a cell, with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Measurements of the cell.
    #[serde(flatten)]
    pub measured: Summary,
    /// True if the probe was made on this shape of the servers.
    pub is_probed: bool,
    /// Predicted time of the job, in seconds.
    pub predicted_s: f64,
    /// 90 % interval of that time, in seconds: lower and upper end.
    pub predicted_interval_s: [f64; 2],
    /// Predicted time divided by the measured time, minus 1.
    pub time_error: f64,
    /// Predicted hits, as a share of the keys.
    pub predicted_hit_ratio: f64,
    /// Predicted size of the entries in the cache at the end, in bytes.
    pub predicted_cached_bytes: f64,
    /// Predicted number of busy processors of a member with data, mean over members.
    pub predicted_cpu_mean: f64,
    /// Predicted bottleneck: the station that bounds most of the job's time.
    pub bottleneck: String,
}

/// Accuracy of the predictions, over all cells with shapes on which the probe was not made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// Number of these cells.
    pub held_out: usize,
    /// Median of the absolute relative errors of the job's time.
    pub time_error_median: f64,
    /// Maximum of the absolute relative errors of the job's time.
    pub time_error_max: f64,
    /// Share (0..1) of these cells whose measured time is inside the 90 % interval of the predicted one.
    pub time_inside: f64,
    /// Maximum absolute difference between the predicted and the measured hit ratio.
    pub hit_ratio_error_max: f64,
    /// Maximum absolute relative error of the bytes in the cache, over whole chains with a cache; null if there are
    /// none.
    pub cache_bytes_error_max: Option<f64>,
}

/// The inputs of the predictions.
pub(crate) struct Predictor {
    costs: Costs,
    errors: Errors,
    trace: Trace,
    references: Vec<Vec<imago_plan::provision::reuse::Reference>>,
    /// Number of keys of each phase.
    keys: Vec<u64>,
    machine: Machine,
    job: Job,
    /// Storage cache of each member, in bytes; `None` if it is not known.
    storage_bytes: Option<u64>,
    page_bytes: f64,
}

impl Predictor {
    /// Reads the trace and the probe that were recorded together with the runs.
    pub(crate) fn read(trace: &Path, probe: &Path, common: &Common) -> Result<Self> {
        let wrong =
            |path: &Path, cause: String| Error::Wrong(format!("{}: {cause}", path.display()));
        let trace_read = Trace::read(trace).map_err(|cause| wrong(trace, cause.to_string()))?;
        let probe = Probe::read(probe).map_err(|cause| wrong(probe, cause.to_string()))?;
        let costs = probe.costs();
        // Without a CPU limit, that is on existing servers, the probe has the number of processors.
        let machine = probe.machine();
        let held = common.cpu_percent.map(|percent| f64::from(percent) / 100.0);
        let shard_cores = held.unwrap_or(machine.shard_cores);
        Ok(Self {
            references: trace_read.references(costs.entry_bytes),
            keys: trace_read.phases.iter().map(|phase| phase.len() as u64).collect(),
            trace: trace_read,
            storage_bytes: common.cache_mb.map(|mb| u64::from(mb) << 20),
            page_bytes: probe.page_bytes(),
            machine: Machine { shard_cores, ..machine },
            errors: probe.errors(),
            costs,
            job: Job { workers: common.workers, batch: common.batch, variation: 0.1 },
        })
    }

    /// Returns the number of keys of all phases.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.iter().sum()
    }

    /// Simulates the cache with each of these sizes in bytes, and returns the expected hits by size.
    fn curve(&self, caches_bytes: &[u64]) -> Curve {
        let policy = Policy::SampledLru { samples: SAMPLES, references_per_s: None };
        simulated(
            &self.references,
            Start::Cold,
            policy,
            caches_bytes,
            1.0,
            &mut StdRng::seed_from_u64(1),
        )
    }

    /// Returns the plan for a chain of `length` phases.
    pub(crate) fn plan(&self, grid: &Grid, length: usize, deadline_s: f64) -> Plan {
        let caches: Vec<u64> = grid.shapes().iter().map(|shape| shape.cache_bytes).collect();
        let curve = self.curve(&distinct(caches));
        let hits = self.measured(&curve, grid);
        let keys = &self.keys[..length.min(self.keys.len())];
        plan(&Question {
            workload: Workload { phases: keys, hits: &hits },
            costs: &self.costs,
            machine: &self.machine,
            job: &self.job,
            shares: &Shares::even(),
            grid,
            deadline_s,
            prices: None,
        })
    }

    /// Returns the shape of a cell, as the planner represents it.
    pub(crate) fn shape(&self, cell: &Cell) -> Shape {
        shape(cell, self.storage_bytes)
    }

    /// Returns the grid of all shapes that have the values of these cells.
    pub(crate) fn grid<'c>(&self, cells: impl Iterator<Item = &'c Cell>) -> Option<Grid> {
        let shapes: Vec<Shape> = cells.map(|cell| self.shape(cell)).collect();
        let all = || shapes.iter();
        Grid::new(
            all().map(|shape| shape.shards).collect(),
            all().map(|shape| shape.replicas).collect(),
            vec![self.storage_bytes],
            all().map(|shape| shape.cache_bytes).collect(),
            all().map(|shape| shape.reads).collect(),
            all().map(|shape| shape.cache_at).collect(),
        )
    }

    /// Returns the hits, and the pages that shards read from disk: before a run each member has read all of its documents.
    fn measured<'c>(&self, curve: &'c Curve, grid: &Grid) -> advice::Measured<'c> {
        let start = (Start::Cold, Start::Warm);
        advice::Measured::new(&self.trace, curve, grid, start, (&self.costs, self.page_bytes))
    }

    /// Returns the prediction of a cell for a chain of `length` phases, with the interval of its time.
    fn predict(
        &self,
        cell: &Cell,
        length: usize,
        hits: &dyn Hits,
    ) -> Result<(Prediction, [f64; 2])> {
        let keys = &self.keys[..length.min(self.keys.len())];
        let percent: Vec<f64> = cell.shares.iter().map(|share| f64::from(*share)).collect();
        let shares = Shares::even().with_percent(&percent);
        let shares = shares.map_err(|cause| Error::Size(cause.to_string()))?;
        let workload = Workload { phases: keys, hits };
        let shape = self.shape(cell);
        let basis = Basis {
            workload,
            costs: &self.costs,
            errors: &self.errors,
            machine: &self.machine,
            job: &self.job,
            shares: &shares,
        };
        let interval = basis.interval(shape);
        let predicted = predict(workload, &self.costs, &self.machine, &self.job, shape, &shares);
        Ok((predicted, [interval.low_s, interval.high_s]))
    }
}

/// Returns the distinct sizes above 0, in ascending order.
fn distinct(mut caches_bytes: Vec<u64>) -> Vec<u64> {
    caches_bytes.retain(|bytes| *bytes > 0);
    caches_bytes.sort_unstable();
    caches_bytes.dedup();
    caches_bytes
}

/// Returns the shape of a cell, as the planner represents it, whose members have storage caches of this size in bytes.
fn shape(cell: &Cell, storage_bytes: Option<u64>) -> Shape {
    Shape {
        shards: u32::try_from(cell.shards()).unwrap_or(u32::MAX),
        replicas: cell.members,
        storage_bytes,
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

/// Compares all cells with their predictions, for chains of each of these lengths.
pub(crate) fn compare(
    measured: &Measured,
    predictor: &Predictor,
    lengths: &[usize],
) -> Result<(Vec<Compared>, Option<Accuracy>)> {
    let cells = by_cell(&measured.runs);
    let curve =
        predictor.curve(&distinct(cells.iter().map(|(cell, _)| cell.cache_bytes).collect()));
    let Some(grid) = predictor.grid(cells.iter().map(|(cell, _)| *cell)) else {
        return Ok((Vec::new(), None));
    };
    let hits = predictor.measured(&curve, &grid);
    let mut compared = Vec::new();
    for (cell, runs) in &cells {
        for length in lengths {
            let summary = Summary::of(cell, runs, *length);
            let (predicted, predicted_interval_s) = predictor.predict(cell, *length, &hits)?;
            let keys: u64 = predicted.phases.iter().map(|phase| phase.keys).sum();
            compared.push(Compared {
                is_probed: measured.is_probed(cell),
                predicted_s: predicted.job_s,
                predicted_interval_s,
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
    /// Returns the accuracy over the cells that were not probed; None if there are none.
    #[must_use]
    pub fn of(compared: &[Compared]) -> Option<Self> {
        let held_out: Vec<&Compared> = compared.iter().filter(|cell| !cell.is_probed).collect();
        if held_out.is_empty() {
            return None;
        }
        let times = Figure::of(held_out.iter().map(|cell| cell.time_error.abs()));
        let inside = held_out.iter().filter(|cell| {
            let [low_s, high_s] = cell.predicted_interval_s;
            (low_s..=high_s).contains(&cell.measured.job_s.mean)
        });
        let ratios = held_out.iter().map(|cell| cell.predicted_hit_ratio - cell.measured.hit_ratio);
        let cached = held_out.iter().filter_map(|cell| {
            let bytes = cell.measured.cached_bytes.filter(|bytes| *bytes > 0.0)?;
            Some((cell.predicted_cached_bytes / bytes - 1.0).abs())
        });
        Some(Self {
            held_out: held_out.len(),
            time_error_median: times.median,
            time_error_max: times.max,
            time_inside: inside.count() as f64 / held_out.len() as f64,
            hit_ratio_error_max: ratios.map(f64::abs).fold(0.0, f64::max),
            cache_bytes_error_max: cached.reduce(f64::max),
        })
    }
}

//! The prediction of a chained job's time, and of busy processors and memory, for one shape of a cluster.

use super::Workload;
use super::batch::{Batch, Load, Served};
use super::costs::{Costs, Job, Machine};
use super::phase::phase_timing;
use super::shape::{Shape, Shares, Station};

/// The predicted service of batches at one station, in one phase of the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtStation {
    /// The station that serves the batches.
    pub station: Station,
    /// Response time of one batch at the station, queueing included, in seconds.
    pub response_s: f64,
    /// Processor time of all batches at the station, in seconds; for a shard, that of all members that are read.
    pub processor_s: f64,
    /// Mean share of the station's processors that is busy, from 0 to 1.
    pub utilisation: f64,
}

/// The prediction for one phase of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseTime {
    /// Time of the phase, from its start to the end of its last batch, in seconds.
    pub time_s: f64,
    /// Number of keys that the phase reads.
    pub keys: u64,
    /// Expected number of keys that the cache answers.
    pub hits: f64,
    /// Expected number of pages that the shards read from disk.
    pub pages: f64,
    /// The service of the phase's batches at each station; empty for a phase without keys.
    pub stations: Vec<AtStation>,
    /// The station that bounds the time of the phase.
    pub bottleneck: Station,
}

/// Mean numbers of processors that a job keeps busy: 0.5 is one processor for half of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Processors {
    /// Mean number over the whole job.
    pub average: f64,
    /// Mean number over the phase in which it is greatest.
    pub maximum: f64,
}

/// The prediction of a job on one shape of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The shape for which the prediction is made.
    pub shape: Shape,
    /// The predictions of the job's phases, in order.
    pub phases: Vec<PhaseTime>,
    /// Time of the job, the sum over its phases, in seconds.
    pub job_s: f64,
    /// Busy processors of one database server: the average is over all members of all shards, the maximum is that of
    /// the busiest member.
    pub database: Processors,
    /// Busy processors of all workers together.
    pub client: Processors,
    /// Busy processors of the cache.
    pub cache: Processors,
    /// Busy processors of the router, including the proxy.
    pub router: Processors,
    /// Bytes of entries in the cache when the job ends.
    pub cache_held_bytes: u64,
    /// Memory of one member of each shard, in bytes: the server itself and its storage cache, which has room for its
    /// documents and indexes unless the shape says otherwise.
    pub member_bytes: Vec<f64>,
    /// The station that bounds most of the job's time.
    pub bottleneck: Station,
}

impl Prediction {
    /// Returns the expected number of keys that the cache answers, in all phases together.
    #[must_use]
    pub fn hits(&self) -> f64 {
        self.phases.iter().map(|phase| phase.hits).sum()
    }

    /// Returns the memory of all members of all shards, in bytes.
    #[must_use]
    pub fn database_bytes(&self) -> f64 {
        f64::from(self.shape.replicas) * self.member_bytes.iter().sum::<f64>()
    }
}

/// Predicts time, processors and memory of a job on a shape.
#[must_use]
pub fn predict(
    workload: Workload<'_>,
    costs: &Costs,
    machine: &Machine,
    job: &Job,
    shape: Shape,
    shares: &Shares,
) -> Prediction {
    let shares = shares.of(shape.shards);
    let mut phases = Vec::with_capacity(workload.phases.len());
    for (number, keys) in workload.phases.iter().enumerate() {
        let cached = shape.cache_bytes > 0 && *keys > 0;
        let hits = if cached { workload.hits.hits(number, shape.cache_bytes) } else { 0.0 };
        let served = Served { hits, pages: workload.hits.pages(number, shape) };
        phases.push(phase(*keys, served, costs, machine, job, shape, &shares));
    }
    let job_s: f64 = phases.iter().map(|phase| phase.time_s).sum();
    let held = if shape.cache_bytes > 0 { workload.hits.held_bytes(shape.cache_bytes) } else { 0 };
    let stored = costs.documents as f64 * (costs.document_bytes + costs.index_bytes);
    let storage_bytes = shape.storage_bytes.map(|bytes| bytes as f64);
    let of = |station| busy(&phases, job_s, |at| at.station == station);
    let is_shard = |at: &AtStation| matches!(at.station, Station::Shard(_));
    let all_members_s: f64 = phases
        .iter()
        .flat_map(|phase| &phase.stations)
        .filter(|at| is_shard(at))
        .map(|at| at.processor_s)
        .sum();
    let read = f64::from(shape.read_members());
    let busiest =
        |number| busy(&phases, job_s, |at| at.station == Station::Shard(number)).maximum / read;
    Prediction {
        shape,
        database: Processors {
            average: ratio(all_members_s, f64::from(shape.members()) * job_s),
            maximum: (0..shape.shards).map(busiest).fold(0.0, f64::max),
        },
        client: of(Station::Client),
        cache: of(Station::Cache),
        router: of(Station::Router),
        cache_held_bytes: held,
        member_bytes: shares
            .iter()
            .map(|share| costs.server_bytes + storage_bytes.unwrap_or(share * stored))
            .collect(),
        bottleneck: bottleneck(&phases),
        phases,
        job_s,
    }
}

/// Predicts one phase of `keys` keys. `shares` are the shards' shares of the keys.
fn phase(
    keys: u64,
    served: Served,
    costs: &Costs,
    machine: &Machine,
    job: &Job,
    shape: Shape,
    shares: &[f64],
) -> PhaseTime {
    if keys == 0 {
        let (stations, bottleneck) = (Vec::new(), Station::Workers);
        return PhaseTime { time_s: 0.0, keys, hits: 0.0, pages: 0.0, stations, bottleneck };
    }
    let Served { hits, pages } = served;
    let batch = Batch::new(keys, served, costs, machine, job, shape, shares);
    let timed = phase_timing(&batch, job.workers);
    let at = |(load, response_s): (&Load, f64)| {
        let processor_s = load.mean_s * batch.batches as f64;
        let processors = load.servers * f64::from(load.members);
        let utilisation = ratio(processor_s, timed.time_s * processors);
        AtStation { station: load.station, response_s, processor_s, utilisation }
    };
    let stations = batch.loads().zip(timed.responses_s.iter().copied()).map(at).collect();
    let (time_s, bottleneck) = (timed.time_s, timed.bottleneck);
    PhaseTime { time_s, keys, hits, pages, stations, bottleneck }
}

/// Returns `part / whole`; 0 if `whole` is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Returns the busy processors of the stations that `is_it` selects, together, in a job of `job_s` seconds.
fn busy(phases: &[PhaseTime], job_s: f64, is_it: impl Fn(&AtStation) -> bool) -> Processors {
    let of = |phase: &PhaseTime| {
        phase.stations.iter().filter(|at| is_it(at)).map(|at| at.processor_s).sum::<f64>()
    };
    Processors {
        average: ratio(phases.iter().map(&of).sum(), job_s),
        maximum: phases.iter().map(|phase| ratio(of(phase), phase.time_s)).fold(0.0, f64::max),
    }
}

/// Returns the station that bounds phases which together take the most time.
fn bottleneck(phases: &[PhaseTime]) -> Station {
    let time_s = |station| {
        let its = phases.iter().filter(|phase| phase.bottleneck == station);
        its.map(|phase| phase.time_s).sum::<f64>()
    };
    let all = phases.iter().map(|phase| phase.bottleneck);
    all.max_by(|one, other| time_s(*one).total_cmp(&time_s(*other))).unwrap_or(Station::Workers)
}

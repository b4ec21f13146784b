//! The report of a plan, for people and programs. Times are in seconds, sizes in bytes, shares from 0 to 1.

use imago_plan::provision::reuse::Curve;
use imago_plan::provision::{
    self as decided, Advice as Decided, Basis, Candidate, Plan, Question, Station,
};
use serde::Serialize;

use super::Origin;
use super::policy::{CachePolicy, PolicyReport};
use super::recorded::{AsRecorded, as_recorded};
use super::shape::{ShapeReport, shape};
use crate::trace::{Ending, Trace};

/// The advice for a trace, as it is written as JSON and shown as text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The job as it reads now; `None` if the trace does not have its requests.
    pub as_recorded: Option<AsRecorded>,
    /// The advice in one sentence, for a job that reads in batches.
    pub advice: String,
    /// True if at least one shape of the grid ends the job within the deadline.
    pub meets_deadline: bool,
    /// Deadline: the time within which the job has to end, in seconds.
    pub deadline_s: f64,
    /// Time by which the fastest shape exceeds the deadline, in seconds; `None` if a shape meets it.
    pub missed_by_s: Option<f64>,
    /// Criterion by which shapes are ordered: `price`, or `processors, then memory` without prices.
    pub ordered_by: &'static str,
    /// The advised shape: the cheapest that meets the deadline, or the fastest if no shape meets it.
    pub advised: Report,
    /// Prediction for the advised shape, one entry for each phase of the job.
    pub phases: Vec<PhaseReport>,
    /// The shapes that differ from the advised one by one step in one dimension of the grid, each with the reason why
    /// it is not advised.
    pub neighbours: Vec<NeighbourReport>,
    /// The better shape that evenly filled shards would allow; `None` if even shards would not improve the advice.
    pub uneven: Option<UnevenReport>,
    /// The Pareto front: the shapes of the grid for which no other shape is both faster and cheaper, the fastest
    /// first.
    pub front: Vec<Report>,
    /// The predictions for all shapes of the grid.
    pub shapes: Vec<Report>,
    /// Origin of the costs in words: the file of the probe, and the machine on which it was made.
    pub costs_from: String,
    /// Number of reads in the trace.
    pub reads: u64,
    /// Bytes that an unlimited cache would hold at the end of the job.
    pub distinct_bytes: u64,
    /// The eviction policy of the cache, for which all is predicted.
    pub policy: CachePolicy,
    /// The share of the reads that the advised shape's cache would answer with each policy, the most first; empty without a
    /// cache.
    pub policies: Vec<PolicyReport>,
    /// Assumptions and limits of the advice, one sentence each.
    pub notes: Vec<String>,
}

/// A shape and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The shape, whose fields are written beside those of its prediction.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Predicted time of the whole job on this shape, in seconds.
    pub time_s: f64,
    /// 90 % interval of the job's predicted time, in seconds: lower and upper end. `None` if the shape is neither advised nor
    /// on the Pareto front.
    pub interval_s: Option<[f64; 2]>,
    /// Price per hour of the shape's processors and memory, in the currency of the given prices; `None` if no prices
    /// were given.
    pub price_hour: Option<f64>,
    /// Price of one run of the job on this shape, in the currency of the given prices; `None` if no prices were
    /// given.
    pub price_job: Option<f64>,
    /// Number of processors that the shape provisions, over all stations (client, cache, router and database
    /// servers).
    pub processors: f64,
    /// Memory that the shape provisions for the database servers and the cache, in bytes.
    pub memory_bytes: f64,
    /// Share of the reads that the cache answers, from 0 to 1.
    pub hit_ratio: f64,
    /// Bytes of entries in the cache at the end of the job.
    pub cache_held_bytes: u64,
    /// Mean number of busy processors of one database server, over all servers and the whole job.
    pub database_cpu_average: f64,
    /// Number of busy processors of the busiest database server, in the phase in which it is busiest.
    pub database_cpu_max: f64,
    /// Mean number of busy processors of the client, over the whole job.
    pub client_cpu_average: f64,
    /// Mean number of busy processors of the cache, over the whole job.
    pub cache_cpu_average: f64,
    /// Mean number of busy processors of the router, over the whole job.
    pub router_cpu_average: f64,
    /// Memory that one database server of each shard needs, in bytes; one entry for each shard.
    pub member_bytes: Vec<f64>,
    /// The station that bounds most of the job's time: `client`, `cache`, `router`, `shard 1` …, or `workers`.
    pub bottleneck: String,
}

/// The prediction for one phase of a job: the reads of one map, on one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseReport {
    /// Predicted time of the phase, in seconds.
    pub time_s: f64,
    /// Number of keys that the phase reads, those that the cache answers included.
    pub keys: u64,
    /// Expected number of the phase's keys that the cache answers.
    pub hits: f64,
    /// Expected number of pages that the shards read from disk.
    pub pages: f64,
    /// Name of the station that bounds the time of the phase: `client`, `cache`, `router`, `shard 1` …, or `workers`.
    pub bottleneck: String,
    /// The prediction for each station that serves requests of the phase.
    pub stations: Vec<StationReport>,
}

/// The prediction for one station (client, cache, router or shard) in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StationReport {
    /// Name of the station: `client`, `cache`, `router`, `shard 1` …, or `workers`.
    pub station: String,
    /// Mean time that a batch of keys spends at the station, queueing included, in seconds.
    pub response_s: f64,
    /// Mean share of the station's processors that is busy during the phase, from 0 to 1.
    pub utilisation: f64,
}

/// A shape that differs from the advised one by one step in one dimension of the grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourReport {
    /// The shape, whose fields are written beside the other fields.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Predicted time of the whole job on this shape, in seconds.
    pub time_s: f64,
    /// That time divided by the advised shape's, as a 90 % interval: lower and upper end.
    pub time_ratio: [f64; 2],
    /// False if the times of this shape and of the advised one cannot be told apart: the interval contains 1.
    pub is_told_apart: bool,
    /// The reason why the shape is not advised, as a sentence.
    pub because: String,
}

/// The gain that evenly filled shards would bring: the shape that could then be advised.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnevenReport {
    /// The shape that would be advised if each shard had the same share of the keys.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Predicted time of the job on this shape with the given, uneven shares of the keys, in seconds.
    pub uneven_s: f64,
    /// Predicted time of the job on this shape if all shards have equal shares of the keys, in seconds.
    pub even_s: f64,
    /// Share of the keys on the shard that has most of them, from 0 to 1.
    pub largest: f64,
    /// The gain from even shards, as a sentence.
    pub because: String,
    /// The shell command that evens the shards out; `None` until the caller sets it.
    pub command: Option<String>,
}

/// Builds the report of a plan: `origin` tells the source of its costs, `curve` has the hits by cache size, and
/// `trace` is the trace that was planned for.
pub(super) fn report(
    question: &Question<'_>,
    plan: &Plan,
    origin: &Origin,
    curve: &Curve,
    trace: &Trace,
) -> Advice {
    let advised = plan.advised();
    let of = |number: usize, with_interval: bool| {
        shape_report(question, origin, &plan.candidates[number], with_interval)
    };
    let neighbours = plan.neighbours.iter().map(|neighbour| {
        let its = &plan.candidates[neighbour.candidate].prediction;
        let time_ratio = basis(question, origin).ratio(its.shape, advised.prediction.shape);
        NeighbourReport {
            shape: shape(its.shape),
            time_s: its.job_s,
            time_ratio,
            is_told_apart: !(time_ratio[0]..=time_ratio[1]).contains(&1.0),
            because: neighbour.because.clone(),
        }
    });
    let uneven = plan.uneven.as_ref().map(|uneven| UnevenReport {
        shape: shape(uneven.shape),
        uneven_s: uneven.uneven_s,
        even_s: uneven.even_s,
        largest: uneven.largest,
        because: uneven.because.clone(),
        command: None,
    });
    Advice {
        as_recorded: as_recorded(question, origin, trace, advised.prediction.job_s),
        advice: plan.because.clone(),
        meets_deadline: matches!(plan.advice, Decided::Meets(_)),
        deadline_s: question.deadline_s,
        missed_by_s: match plan.advice {
            Decided::Misses(_, by_s) => Some(by_s),
            Decided::Meets(_) => None,
        },
        ordered_by: if question.prices.is_some() { "price" } else { "processors, then memory" },
        advised: of(plan.advice.candidate(), true),
        phases: advised.prediction.phases.iter().map(phase).collect(),
        neighbours: neighbours.collect(),
        uneven,
        front: plan.front.iter().map(|number| of(*number, true)).collect(),
        shapes: (0..plan.candidates.len()).map(|number| of(number, false)).collect(),
        costs_from: origin.from.clone(),
        reads: trace.reads(),
        distinct_bytes: curve.distinct_bytes(),
        policy: CachePolicy::default(),
        policies: Vec::new(),
        notes: notes(question, plan, origin, trace),
    }
}

fn basis<'a>(question: &Question<'a>, origin: &'a Origin) -> Basis<'a> {
    let Question { workload, costs, machine, job, shares, .. } = *question;
    Basis { workload, costs, errors: &origin.errors, machine, job, shares }
}

/// Builds the report of one candidate shape. `with_interval` adds the 90 % interval of the job's time.
fn shape_report(
    question: &Question<'_>,
    origin: &Origin,
    candidate: &Candidate,
    with_interval: bool,
) -> Report {
    let prediction = &candidate.prediction;
    let interval_s = with_interval.then(|| {
        let its = basis(question, origin).interval(prediction.shape);
        [its.low_s, its.high_s]
    });
    let keys: u64 = prediction.phases.iter().map(|phase| phase.keys).sum();
    Report {
        shape: shape(prediction.shape),
        time_s: prediction.job_s,
        interval_s,
        price_hour: candidate.price_hour,
        price_job: candidate.price_job(),
        processors: candidate.processors,
        memory_bytes: candidate.memory_bytes,
        hit_ratio: prediction.hits() / keys.max(1) as f64,
        cache_held_bytes: prediction.cache_held_bytes,
        database_cpu_average: prediction.database.average,
        database_cpu_max: prediction.database.maximum,
        client_cpu_average: prediction.client.average,
        cache_cpu_average: prediction.cache.average,
        router_cpu_average: prediction.router.average,
        member_bytes: prediction.member_bytes.clone(),
        bottleneck: station(prediction.bottleneck),
    }
}

/// Converts the prediction of a phase into its report.
fn phase(phase: &decided::PhaseTime) -> PhaseReport {
    let at = |at: &decided::AtStation| StationReport {
        station: station(at.station),
        response_s: at.response_s,
        utilisation: at.utilisation,
    };
    PhaseReport {
        time_s: phase.time_s,
        keys: phase.keys,
        hits: phase.hits,
        pages: phase.pages,
        bottleneck: station(phase.bottleneck),
        stations: phase.stations.iter().map(at).collect(),
    }
}

/// Returns the name of a station in the report; shards are numbered from 1.
fn station(station: Station) -> String {
    match station {
        Station::Client => "client".into(),
        Station::Cache => "cache".into(),
        Station::Router => "router".into(),
        Station::Shard(number) => format!("shard {}", number + 1),
        Station::Workers => "workers".into(),
    }
}

/// Returns the assumptions and limits of the advice, one sentence each.
fn notes(question: &Question<'_>, plan: &Plan, origin: &Origin, trace: &Trace) -> Vec<String> {
    let mut notes = Vec::new();
    let its = basis(question, origin).interval(plan.advised().prediction.shape);
    if (its.low_s..its.high_s).contains(&question.deadline_s) {
        notes.push(format!(
            "the deadline of {:.1} s is within the interval of the advised shape's time: confirm it by a measurement before you rely \
             on it (imago provision measure)",
            question.deadline_s
        ));
    }
    if !origin.is_own {
        notes.push(format!(
            "the costs are those of another machine ({}): probe your own cluster before you buy (imago provision probe)",
            origin.from
        ));
        notes.push(format!(
            "memory counts {} documents of {:.0} bytes, those that the trace has or --documents says",
            question.costs.documents, question.costs.document_bytes
        ));
    }
    if !origin.borrowed.is_empty() {
        notes.push(format!(
            "the probe found no {}: their costs are those of another machine, which ships with Imago",
            origin.borrowed.join(" and no ")
        ));
    }
    let advised = &plan.advised().prediction;
    let pages: f64 = advised.phases.iter().map(|phase| phase.pages).sum();
    if pages > 0.0 {
        let keys: u64 = advised.phases.iter().map(|phase| phase.keys).sum();
        notes.push(format!(
            "the advised shape's shards read a page from disk for {:.1} of 100 keys, since their storage caches are smaller than the \
             collection",
            100.0 * pages / keys.max(1) as f64
        ));
        notes.extend((!origin.has_pages).then(|| {
            "the probe read no page from disk: what one costs is that of another machine, which ships with Imago"
                .to_owned()
        }));
    }
    if question.prices.is_none() {
        notes.push(
            "no prices are given, so no shape is the cheapest: give them by --price core=…,gb=…"
                .into(),
        );
    }
    if let Ending::Incomplete(reason) = &trace.ending {
        notes.push(format!("the trace does not have the whole job: {reason}"));
    }
    if trace.other_reads > 0 {
        notes.push(format!(
            "{} reads of the job ({:.1} %) were not by _id; the plan does not count them",
            trace.other_reads,
            trace.other_share() * 100.0
        ));
    }
    let assumed = plan.advised().prediction.shape.shards;
    if assumed > 1 && question.shares.is_even(assumed) {
        notes.push(format!(
            "the {assumed} shards are assumed to have equal shares; give the shares of your shards \
             by --share"
        ));
    }
    notes
}

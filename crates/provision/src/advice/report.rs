//! The report of a plan, for people and programs. Times are in seconds, sizes in bytes, shares from 0 to 1.

use imago_plan::provision::reuse::Curve;
use imago_plan::provision::{
    self as decided, Advice as Decided, CacheAt, Candidate, Plan, Question, Reads, Shape, Station,
    interval,
};
use serde::Serialize;

use super::Origin;
use crate::trace::{Ending, Trace};

/// The advice for a trace, as it is written as JSON and shown as text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The advice in one sentence.
    pub advice: String,
    /// True if at least one shape meets the deadline.
    pub meets_deadline: bool,
    /// Deadline of the job, in seconds.
    pub deadline_s: f64,
    /// Time by which the fastest shape exceeds the deadline, in seconds; `None` if a shape meets it.
    pub missed_by_s: Option<f64>,
    /// Criterion by which shapes are ordered: `price`, or `processors, then memory` without prices.
    pub ordered_by: &'static str,
    /// The advised shape: the cheapest that meets the deadline, or the fastest if no shape meets it.
    pub advised: Report,
    /// Prediction for the advised shape, phase by phase.
    pub phases: Vec<PhaseReport>,
    /// The shapes one step away from the advised one, each with the reason why it is not advised.
    pub neighbours: Vec<NeighbourReport>,
    /// The better shape that evenly filled shards would allow; `None` if even shards would not improve the advice.
    pub uneven: Option<UnevenReport>,
    /// The Pareto front: the shapes that no other shape beats in time and cost, the fastest first.
    pub front: Vec<Report>,
    /// All shapes of the grid.
    pub shapes: Vec<Report>,
    /// Origin of the costs in words: the file and the machine.
    pub costs_from: String,
    /// Number of reads in the trace.
    pub reads: u64,
    /// Bytes that an unlimited cache would hold at the end of the job.
    pub distinct_bytes: u64,
    /// Assumptions and limits of the advice, one sentence each.
    pub notes: Vec<String>,
}

/// A shape, written as plain values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShapeReport {
    /// The shape in words.
    pub name: String,
    /// Number of shards.
    pub shards: u32,
    /// Number of members per shard.
    pub replicas: u32,
    /// Size of the cache, in bytes; 0: no cache.
    pub cache_bytes: u64,
    /// Location of the cache: `worker` or `router`.
    pub cache_at: &'static str,
    /// Read preference: `primary` or `nearest`.
    pub reads: &'static str,
}

/// A shape and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The shape.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Predicted time of the job, in seconds.
    pub time_s: f64,
    /// 95 % interval of the job's time, in seconds: lower and upper end. Set only where the errors of the costs are
    /// known, and only for the front and the advised shape.
    pub interval_s: Option<[f64; 2]>,
    /// Price per hour, in the currency of the given prices; `None` without prices.
    pub price_hour: Option<f64>,
    /// Price of one run of the job, in the currency of the given prices; `None` without prices.
    pub price_job: Option<f64>,
    /// Number of provisioned processors, over all stations.
    pub processors: f64,
    /// Provisioned memory of the database servers and the cache, in bytes.
    pub memory_bytes: f64,
    /// Share of the reads that the cache answers, from 0 to 1.
    pub hit_ratio: f64,
    /// Bytes of entries in the cache at the end of the job.
    pub cache_held_bytes: u64,
    /// Busy processors of one database server: the average over all servers and the whole job.
    pub database_cpu_average: f64,
    /// Busy processors of the busiest database server in its busiest phase.
    pub database_cpu_max: f64,
    /// Busy processors of the client, on average over the job.
    pub client_cpu_average: f64,
    /// Busy processors of the cache, on average over the job.
    pub cache_cpu_average: f64,
    /// Busy processors of the router, on average over the job.
    pub router_cpu_average: f64,
    /// Memory of one database server of each shard, in bytes.
    pub member_bytes: Vec<f64>,
    /// The station that bounds most of the job's time: `client`, `cache`, `router`, `shard 1` …, or `workers`.
    pub bottleneck: String,
}

/// The prediction for one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseReport {
    /// Time of the phase, in seconds.
    pub time_s: f64,
    /// Number of keys that the phase reads.
    pub keys: u64,
    /// Expected number of keys that the cache answers.
    pub hits: f64,
    /// Name of the station that bounds the phase.
    pub bottleneck: String,
    /// The prediction for each station of the phase.
    pub stations: Vec<StationReport>,
}

/// The prediction for one station in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StationReport {
    /// Name of the station.
    pub station: String,
    /// Response time of a batch at the station, queueing included, in seconds.
    pub response_s: f64,
    /// Mean share of the station's processors that is busy, from 0 to 1.
    pub utilisation: f64,
}

/// A shape one step away from the advised one on the grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourReport {
    /// The shape.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Predicted time of the job with this shape, in seconds.
    pub time_s: f64,
    /// The reason why the shape is not advised.
    pub because: String,
}

/// The effect of uneven shards on the advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnevenReport {
    /// The shape that would be advised if its shards were even.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Time of the job on this shape with the present shares, in seconds.
    pub uneven_s: f64,
    /// Time of the job on this shape with even shards, in seconds.
    pub even_s: f64,
    /// Share of the keys on the largest shard, from 0 to 1.
    pub largest: f64,
    /// The gain from even shards, as a sentence.
    pub because: String,
    /// The command that makes the shards even; `None` until the caller sets it.
    pub command: Option<String>,
}

/// Builds the report of a plan.
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
        NeighbourReport {
            shape: shape(its.shape),
            time_s: its.job_s,
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
        notes: notes(question, plan, origin, trace),
    }
}

/// Builds the report of a candidate. `with_interval` adds the 95 % interval of the time if the errors of the costs are
/// known.
fn shape_report(
    question: &Question<'_>,
    origin: &Origin,
    candidate: &Candidate,
    with_interval: bool,
) -> Report {
    let prediction = &candidate.prediction;
    let known = origin.errors != decided::Errors::default();
    let interval_s = (with_interval && known).then(|| {
        let Question { workload, costs, machine, job, shares, .. } = *question;
        let its = interval(workload, costs, &origin.errors, machine, job, prediction.shape, shares);
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

/// Builds the report of a phase.
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
        bottleneck: station(phase.bottleneck),
        stations: phase.stations.iter().map(at).collect(),
    }
}

/// Builds the report of a shape.
fn shape(shape: Shape) -> ShapeReport {
    ShapeReport {
        name: shape.to_string(),
        shards: shape.shards,
        replicas: shape.replicas,
        cache_bytes: shape.cache_bytes,
        cache_at: match shape.cache_at {
            CacheAt::Worker => "worker",
            CacheAt::Router => "router",
        },
        reads: match shape.reads {
            Reads::Primary => "primary",
            Reads::Nearest => "nearest",
        },
    }
}

/// Returns the report's name of a station; shards are numbered from 1.
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

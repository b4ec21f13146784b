//! The report of a plan, for people and programs. Times are in seconds, sizes in bytes, shares from 0 to 1.

use imago_plan::provision::{
    self as decided, Advice as Decided, CacheAt, Candidate, Plan, Question, Reads, Shape, Station,
    interval,
};
use imago_plan::reuse::Curve;
use serde::Serialize;

use super::Origin;
use crate::trace::{Ending, Trace};

/// The advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// In one sentence.
    pub advice: String,
    /// Whether a shape meets the deadline.
    pub meets_deadline: bool,
    /// The time that is asked for.
    pub deadline_s: f64,
    /// By how much the fastest shape misses it.
    pub missed_by_s: Option<f64>,
    /// What shapes are ordered by: `price`, or `processors, then memory` without prices.
    pub ordered_by: &'static str,
    /// The advised shape; without one that meets the deadline, the fastest.
    pub advised: Report,
    /// The advised shape, phase by phase.
    pub phases: Vec<PhaseReport>,
    /// Why not the shapes one step away.
    pub neighbours: Vec<NeighbourReport>,
    /// What even shards would change, if they would.
    pub uneven: Option<UnevenReport>,
    /// The shapes that no other beats in time and cost, the fastest first.
    pub front: Vec<Report>,
    /// All shapes.
    pub shapes: Vec<Report>,
    /// Whose costs they are.
    pub costs_from: String,
    /// Reads of the trace.
    pub reads: u64,
    /// What a cache without a limit would hold at the end.
    pub distinct_bytes: u64,
    /// What should be known of the advice.
    pub notes: Vec<String>,
}

/// A shape by its values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShapeReport {
    /// In words.
    pub name: String,
    /// Shards.
    pub shards: u32,
    /// Members of each.
    pub replicas: u32,
    /// Bytes of the cache; 0: none.
    pub cache_bytes: u64,
    /// `worker` or `router`.
    pub cache_at: &'static str,
    /// `primary` or `nearest`.
    pub reads: &'static str,
}

/// A shape with what it is expected to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The shape.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// The job's time.
    pub time_s: f64,
    /// Where the errors of the costs are known, for the front and the advised shape: the time's interval of 95 %.
    pub interval_s: Option<[f64; 2]>,
    /// The price of an hour.
    pub price_hour: Option<f64>,
    /// The price of the job's time.
    pub price_job: Option<f64>,
    /// Processors of all stations.
    pub processors: f64,
    /// Memory of database servers and cache.
    pub memory_bytes: f64,
    /// The share of reads that the cache answers.
    pub hit_ratio: f64,
    /// Bytes of entries in the cache at the end.
    pub cache_held_bytes: u64,
    /// Busy processors of a database server, over all of them and the job.
    pub database_cpu_average: f64,
    /// Busy processors of the busiest one in its busiest phase.
    pub database_cpu_max: f64,
    /// Busy processors of the client.
    pub client_cpu_average: f64,
    /// Busy processors of the cache.
    pub cache_cpu_average: f64,
    /// Busy processors of the router.
    pub router_cpu_average: f64,
    /// Memory of one database server, by shard.
    pub member_bytes: Vec<f64>,
    /// `client`, `cache`, `router`, `shard 1` …, or `workers`.
    pub bottleneck: String,
}

/// A phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseReport {
    /// Its time.
    pub time_s: f64,
    /// Keys that it reads.
    pub keys: u64,
    /// Keys that the cache answers.
    pub hits: f64,
    /// The station that bounds it.
    pub bottleneck: String,
    /// By station.
    pub stations: Vec<StationReport>,
}

/// A station in a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StationReport {
    /// Its name.
    pub station: String,
    /// The time of a batch there, waiting included.
    pub response_s: f64,
    /// The share of its processors that is busy.
    pub utilisation: f64,
}

/// A shape one step from the advised one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourReport {
    /// The shape.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Its time.
    pub time_s: f64,
    /// Why not.
    pub because: String,
}

/// That uneven shards are the cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnevenReport {
    /// The shape that even shards would make the better one.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Its time as it is.
    pub uneven_s: f64,
    /// Its time with even shards.
    pub even_s: f64,
    /// The share of keys of its largest shard.
    pub largest: f64,
    /// What that would bring.
    pub because: String,
    /// The command that makes them even.
    pub command: Option<String>,
}

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

fn station(station: Station) -> String {
    match station {
        Station::Client => "client".into(),
        Station::Cache => "cache".into(),
        Station::Router => "router".into(),
        Station::Shard(number) => format!("shard {}", number + 1),
        Station::Workers => "workers".into(),
    }
}

/// What should be known of the advice.
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
        notes.push("there are no prices, so no shape is called the cheapest: give them by --price core=…,gb=…".into());
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
            "the {assumed} shards are taken as even; give the shares of yours by --share"
        ));
    }
    notes
}

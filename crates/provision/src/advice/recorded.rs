//! The times of a recorded job that reads as it does, on each shape without a cache.

use std::collections::BTreeSet;

use imago_plan::provision::{CacheAt, Question, Reads, Recorded, RecordedPhase, Servers, Shape};
use serde::Serialize;

use super::Origin;
use super::shape::{ShapeReport, shape};
use crate::trace::Trace;

/// A recorded job, and the time that it would take with the same requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AsRecorded {
    /// Time from the job's first request to its last reply, in seconds.
    pub took_s: f64,
    /// The part of that time in which the job itself worked or paused between its requests, in seconds.
    pub own_s: f64,
    /// Number of requests, further batches of cursors included.
    pub requests: u64,
    /// Mean number of keys that a request reads.
    pub keys_per_request: f64,
    /// Greatest number of requests under way at once.
    pub at_once: u32,
    /// The time that the requests took, divided by that which the probe's costs predict; `None` if the costs are those of
    /// another machine.
    pub cost_factor: Option<f64>,
    /// The predicted times, one for each shape of the grid without its cache.
    pub shapes: Vec<RecordedShape>,
    /// What reading in batches would bring.
    pub in_batches: InBatches,
}

/// The same keys, read in batches on the advised shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InBatches {
    /// Number of keys of a batch.
    pub batch: u32,
    /// Number of batches at once.
    pub workers: u32,
    /// Predicted time of such a job on the advised shape, in seconds.
    pub time_s: f64,
}

/// The predicted time of a recorded job on one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordedShape {
    /// The shape, whose fields are written beside the other fields.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Predicted time of the job, in seconds.
    pub time_s: f64,
    /// The 90 % interval of that time, in seconds: lower and upper end.
    pub interval_s: [f64; 2],
}

/// Returns the predicted times of the job in a trace; `None` if the trace does not have its requests.
pub(super) fn as_recorded(
    question: &Question<'_>,
    origin: &Origin,
    trace: &Trace,
    advised_s: f64,
) -> Option<AsRecorded> {
    let recorded = recorded(trace, question.job.variation)?;
    let Question { costs, machine, shares, .. } = *question;
    let on = |shards| Shape {
        shards,
        replicas: 1,
        storage_bytes: origin.storage_bytes.filter(|_| question.grid.has_storage_caches()),
        cache_bytes: 0,
        cache_at: CacheAt::default(),
        reads: Reads::default(),
    };
    let hits = question.workload.hits;
    let servers = |shape| Servers { shape, machine, shares, hits };
    let cost_factor = origin.shards.map(|shards| recorded.cost_factor(costs, servers(on(shards))));
    let bare = |shape: &Shape| Shape { cache_bytes: 0, ..*shape }.canonical();
    let shapes: BTreeSet<Shape> = question.grid.shapes().iter().map(bare).collect();
    let predicted = |one: Shape| {
        let told = recorded.predict(costs, (cost_factor, &origin.errors), servers(one));
        RecordedShape { shape: shape(one), time_s: told.job_s, interval_s: told.interval_s }
    };
    let requests = recorded.phases.iter().map(|phase| phase.requests).sum::<u64>();
    Some(AsRecorded {
        took_s: recorded.job_s(),
        own_s: recorded.own_s(),
        requests,
        keys_per_request: trace.reads() as f64 / requests.max(1) as f64,
        at_once: recorded.phases.iter().map(|phase| phase.at_once).max().unwrap_or(0),
        cost_factor,
        shapes: shapes.into_iter().map(predicted).collect(),
        in_batches: InBatches {
            batch: question.job.batch,
            workers: question.job.workers,
            time_s: advised_s,
        },
    })
}

fn recorded(trace: &Trace, variation: f64) -> Option<Recorded> {
    let seconds = |us: u64| us as f64 / 1e6;
    let mut phases = Vec::with_capacity(trace.phases.len());
    for (reads, span) in trace.phases.iter().zip(&trace.spans) {
        let requests = span.requests?;
        phases.push(RecordedPhase {
            keys: reads.len() as u64,
            requests: requests.count,
            at_once: requests.at_once,
            waited_s: seconds(requests.waited_us),
            time_s: seconds(span.ended_us.saturating_sub(span.began_us)),
        });
    }
    let pauses = trace.spans.windows(2);
    let pause = |pair: &[crate::trace::Span]| pair[1].began_us.saturating_sub(pair[0].ended_us);
    Some(Recorded { phases, pauses_s: seconds(pauses.map(pause).sum()), variation })
}

//! Typed events of a job, in one stream that every display renders.
//!
//! An event is one line of JSON with stable field names:
//! `{"at_ms":…,"job":"…","kind":"copy","event":"phase",…}`. Absent numbers are `null`: unknown is not
//! zero.

use serde::{Deserialize, Serialize};

use crate::id::JobId;

/// An event of a job, with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The id of the job.
    pub job: JobId,
    /// The kind of operation, for example `copy`.
    pub kind: String,
    /// The content of the event.
    #[serde(flatten)]
    pub body: Body,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// The job changes its phase.
    Phase {
        /// The previous phase; `None` at the beginning.
        from: Option<String>,
        /// The new phase.
        to: String,
    },
    /// The job's progress.
    Progress(Box<Progress>),
    /// A problem that the operator should know and can act on.
    Warning {
        /// A stable identifier for programs.
        code: String,
        /// The problem and its object.
        message: String,
        /// The remedy for the problem.
        help: String,
    },
    /// The job made a decision.
    Decision {
        /// The decision.
        what: String,
        /// The reason for the decision.
        why: String,
    },
    /// The job measured a quantity.
    Measurement {
        /// The name of the quantity, with the unit last, for example `write_block_ms`.
        name: String,
        /// The value, in the unit of the name.
        value: f64,
        /// The unit of the value.
        unit: String,
    },
    /// The job was paused.
    Paused {
        /// The cause of the pause.
        cause: String,
    },
    /// The job resumed.
    Resumed,
    /// The job is complete.
    Done,
    /// The job failed.
    Failed {
        /// The problem, its object, and the remedy.
        error: String,
    },
    /// The operator cancelled the job.
    Cancelled,
    /// The process ends before the job is complete; the job can be resumed.
    Interrupted,
    /// Another process requested the job and continues it.
    HandedOver,
}

/// A job's progress: its counts and rates, its lag, its estimated end, the cause that blocks it, and the
/// operator's next step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The present phase.
    pub phase: String,
    /// Number of documents done.
    pub documents_done: u64,
    /// Documents in total, if known.
    pub documents_total: Option<u64>,
    /// Number of bytes done.
    pub bytes_done: u64,
    /// Bytes in total, if known.
    pub bytes_total: Option<u64>,
    /// Number of changes applied.
    pub changes_applied: u64,
    /// Lag of the applied changes relative to the source, in milliseconds; `None` if unknown.
    pub lag_ms: Option<u64>,
    /// Estimated time until the phase ends, in milliseconds; `None` if unknown.
    pub eta_ms: Option<u64>,
    /// Smoothed rate, in documents per second; `None` if unknown.
    pub rate_documents_s: Option<f64>,
    /// Smoothed rate, in bytes per second; `None` if unknown.
    pub rate_bytes_s: Option<f64>,
    /// The cause that the job waits for; `None` if it is not blocked.
    pub blocked_by: Option<String>,
    /// True if the job may be cut over; `None` for an operation without a cut-over.
    pub cutover_ready: Option<bool>,
    /// The reasons why the job may not be cut over.
    pub cutover_obstacles: Vec<String>,
    /// The job's present activity.
    pub doing: String,
    /// The largest flows between servers, by the traffic of this process so far.
    pub flows: Vec<Flow>,
    /// The operator's next step.
    pub next: String,
}

/// The traffic from one server to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Name of the sending server.
    pub from: String,
    /// Name of the receiving server.
    pub to: String,
    /// Size of the traffic, in bytes.
    pub bytes: u64,
}

impl Body {
    /// Returns true if the job, or this process's work at it, ends with this event.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Body::Done
                | Body::Failed { .. }
                | Body::Cancelled
                | Body::Interrupted
                | Body::HandedOver
        )
    }

    /// Returns true if `later` is of the same kind and includes the content of this event.
    pub fn is_superseded_by(&self, later: &Body) -> bool {
        matches!((self, later), (Body::Progress(_), Body::Progress(_)))
    }
}

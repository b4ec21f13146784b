//! Events of a job: typed, in one stream that every display renders.
//!
//! An event is one line of JSON with stable field names:
//! `{"at_ms":…,"job":"…","kind":"copy","event":"phase",…}`. Absent numbers are `null`: unknown is not
//! zero.

use serde::{Deserialize, Serialize};

use crate::id::JobId;

/// An event of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The job.
    pub job: JobId,
    /// The kind of operation, for example `copy`.
    pub kind: String,
    /// The event.
    #[serde(flatten)]
    pub body: Body,
}

/// An event's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// It goes from one phase to the next.
    Phase {
        /// The phase it leaves; none at the beginning.
        from: Option<String>,
        /// The phase it enters.
        to: String,
    },
    /// The job's progress.
    Progress(Box<Progress>),
    /// A problem that the operator should know, and can do something about.
    Warning {
        /// A stable word for programs.
        code: String,
        /// The problem and its object.
        message: String,
        /// The remedy.
        help: String,
    },
    /// It chose; this is why.
    Decision {
        /// The choice.
        what: String,
        /// The reason.
        why: String,
    },
    /// It measured something.
    Measurement {
        /// Its name, with the unit last, for example `write_block_ms`.
        name: String,
        /// The value, in this unit.
        value: f64,
        /// The unit.
        unit: String,
    },
    /// It was paused.
    Paused {
        /// The cause of the pause.
        cause: String,
    },
    /// It goes on.
    Resumed,
    /// It did everything.
    Done,
    /// It gave up.
    Failed {
        /// The problem, its object, and the remedy.
        error: String,
    },
    /// The operator gave it up.
    Cancelled,
    /// Its process ends before it does; it can be resumed.
    Interrupted,
    /// Another process asked for the job and goes on with it.
    HandedOver,
}

/// A job's progress, its lag, its expected end, the cause that blocks it, and the operator's next
/// step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The phase it is in.
    pub phase: String,
    /// Documents done.
    pub documents_done: u64,
    /// Documents in all, where known.
    pub documents_total: Option<u64>,
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes in all, where known.
    pub bytes_total: Option<u64>,
    /// Changes applied.
    pub changes_applied: u64,
    /// Lag of the applied changes behind the source, in milliseconds.
    pub lag_ms: Option<u64>,
    /// Time until the phase is expected to end, in milliseconds; none if unknown.
    pub eta_ms: Option<u64>,
    /// Documents per second, smoothed.
    pub rate_documents_s: Option<f64>,
    /// Bytes per second, smoothed.
    pub rate_bytes_s: Option<f64>,
    /// The cause that it waits for, if it does.
    pub blocked_by: Option<String>,
    /// True if it may be cut over; none for an operation that has no cut-over.
    pub cutover_ready: Option<bool>,
    /// The reasons why it may not be cut over.
    pub cutover_obstacles: Vec<String>,
    /// Its present activity.
    pub doing: String,
    /// The largest flows between servers, of what this process has moved so far.
    pub flows: Vec<Flow>,
    /// The operator's next step.
    pub next: String,
}

/// The traffic from one server to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The name of the server that sent it.
    pub from: String,
    /// The name of the server that received it.
    pub to: String,
    /// Size of the traffic, in bytes.
    pub bytes: u64,
}

impl Body {
    /// True if the job, or this process's part in it, ends with this event.
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

    /// True if `later` is of the same kind and contains all that this event says.
    pub fn is_superseded_by(&self, later: &Body) -> bool {
        matches!((self, later), (Body::Progress(_), Body::Progress(_)))
    }
}

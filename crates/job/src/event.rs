//! Typed events of a job, in one stream that every display renders.
//!
//! An event is one line of JSON with stable field names: `{"at_ms":…,"job":"…","kind":"copy","event":"phase",…}`.
//! Absent numbers are `null`: unknown is not zero.

use serde::{Deserialize, Serialize};

use crate::id::JobId;

/// An event of a job, with the time at which it was reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time at which the event was reported, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The id of the job that reported the event.
    pub job: JobId,
    /// The kind of operation that the job runs, for example `copy`.
    pub kind: String,
    /// The content of the event; its variant is the field `event` in JSON.
    #[serde(flatten)]
    pub body: Body,
}

/// The content of an event, apart from its time, job and kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// The job enters a phase.
    Phase {
        /// The phase before; `None` if the process has not reported a phase of this job before.
        from: Option<String>,
        /// The phase that the job enters.
        to: String,
    },
    /// A report of the job's progress; a later one supersedes it.
    Progress(Box<Progress>),
    /// A problem that the operator should know and can act on. The job continues.
    Warning {
        /// A stable identifier of the kind of problem, for programs that read the events.
        code: String,
        /// The problem and the affected object, in words.
        message: String,
        /// The remedy for the problem, in words.
        help: String,
    },
    /// A decision that the job made by itself.
    Decision {
        /// The decision, in words.
        what: String,
        /// The reason for the decision, in words.
        why: String,
    },
    /// A quantity that the job measured once.
    Measurement {
        /// The name of the quantity, with the unit last, for example `write_block_ms`.
        name: String,
        /// The measured value, in `unit`.
        value: f64,
        /// The unit of `value`.
        unit: String,
    },
    /// The job was paused, and its operation waits.
    Paused {
        /// The cause of the pause, in words.
        cause: String,
    },
    /// The job continues after a pause.
    Resumed,
    /// The job is complete.
    Done,
    /// The job failed, or this process lost it.
    Failed {
        /// The error as a text: the problem, the affected object, and the remedy.
        error: String,
    },
    /// The operator cancelled the job.
    Cancelled,
    /// This process was interrupted, and ends before the job is complete; the job can be resumed.
    Interrupted,
    /// This process ends because another process requested the job and continues it.
    HandedOver,
}

/// A job's progress: its counts and rates, its lag, its estimated end, the cause that blocks it, and the
/// operator's next step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Name of the present phase.
    pub phase: String,
    /// Number of documents that the job has processed so far.
    pub documents_done: u64,
    /// Number of documents that the job has to process in total; `None` if unknown.
    pub documents_total: Option<u64>,
    /// Number of bytes of documents that the job has processed so far.
    pub bytes_done: u64,
    /// Number of bytes that the job has to process in total; `None` if unknown.
    pub bytes_total: Option<u64>,
    /// Number of changes of the source that the job has applied at the destination so far.
    pub changes_applied: u64,
    /// Lag of the applied changes relative to the source, in milliseconds; `None` if unknown.
    pub lag_ms: Option<u64>,
    /// Expected time from now until the job's work is done, in milliseconds: until a copy has caught up with the source, or
    /// until a reshard has committed. `None` if unknown.
    pub eta_ms: Option<u64>,
    /// The 90 % interval of `eta_ms`, in milliseconds; `None` if unknown.
    pub eta_interval_ms: Option<(u64, u64)>,
    /// Smoothed rate of processed documents, in documents per second; `None` if unknown.
    pub rate_documents_s: Option<f64>,
    /// Smoothed rate of processed bytes, in bytes per second; `None` if unknown.
    pub rate_bytes_s: Option<f64>,
    /// The cause that the job waits for, in words; `None` if it is not blocked.
    pub blocked_by: Option<String>,
    /// True if the job may be cut over now; `None` for an operation without a cut-over.
    pub cutover_ready: Option<bool>,
    /// The reasons why the job may not be cut over now, in words; empty if it may.
    pub cutover_obstacles: Vec<String>,
    /// The job's present activity, in words.
    pub doing: String,
    /// The largest flows of documents from shard to shard, by the number of bytes that this process has sent so far;
    /// empty unless the job is a reshard.
    pub flows: Vec<Flow>,
    /// The next step that the operator can take, in words.
    pub next: String,
}

/// The documents that this process has sent from one server, such as a shard, to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Name of the sending server.
    pub from: String,
    /// Name of the receiving server.
    pub to: String,
    /// Number of bytes that were sent so far.
    pub bytes: u64,
}

impl Body {
    /// Returns true if the job, or this process's work at the job, ends with this event.
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

    /// Returns true if `later`, an event of the same job, makes this event superfluous: both report progress.
    pub fn is_superseded_by(&self, later: &Body) -> bool {
        matches!((self, later), (Body::Progress(_), Body::Progress(_)))
    }
}

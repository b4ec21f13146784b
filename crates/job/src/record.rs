//! What is kept of a job so that any process, on any machine, can go on with it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::Progress;
use crate::id::JobId;
use crate::state::State;

/// A job as it is persisted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: JobId,
    /// What kind of operation it is, such as `copy`; chosen by the operation.
    pub kind: String,
    /// What was asked for, as the operation understands it. Holds no secret.
    pub spec: Value,
    /// Where it is in its life.
    pub state: State,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// When it was last saved, in milliseconds since the Unix epoch.
    pub updated_at_ms: u64,
    /// How often it was claimed; only the latest claim may save (0: never claimed).
    pub epoch: u64,
    /// Who works at it, if anybody does.
    pub owner: Option<Owner>,
    /// What the operator wants of it.
    pub control: Requested,
    /// How fast it may go.
    pub limits: Limits,
    /// How far it was when last saved.
    pub progress: Option<Progress>,
    /// What the operation needs to go on; nobody else looks into it.
    pub checkpoint: Value,
}

/// Who works at a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process, as it names itself, for example `host/1234`.
    pub process: String,
    /// The epoch of its claim.
    pub epoch: u64,
    /// When it last gave a sign of life, in milliseconds since the Unix epoch.
    pub heartbeat_at_ms: u64,
}

/// What the operator wants of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requested {
    /// Work.
    #[default]
    Run,
    /// Wait, keeping everything.
    Pause,
    /// Give up, leaving the source untouched.
    Cancel,
}

/// How fast a job may go; what is absent is not limited. A limit of zero is none that can be kept
/// (see [`Limits::check`]): to stop a job, pause it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Documents per second.
    pub documents_s: Option<u64>,
    /// Bytes per second.
    pub bytes_s: Option<u64>,
    /// Wait while a secondary is further behind than this, in milliseconds.
    pub secondary_lag_ms: Option<u64>,
}

/// A limit that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a limit of 0 {0} would stop the job for ever; pause it instead (`imago job pause`)")]
pub struct ZeroLimit(pub &'static str);

impl Limits {
    /// Whether every limit can be kept.
    pub fn check(&self) -> Result<(), ZeroLimit> {
        match self {
            Self { documents_s: Some(0), .. } => Err(ZeroLimit("documents/s")),
            Self { bytes_s: Some(0), .. } => Err(ZeroLimit("bytes/s")),
            Self { secondary_lag_ms: Some(0), .. } => Err(ZeroLimit("ms of secondary lag")),
            _ => Ok(()),
        }
    }
}

impl Record {
    /// A planned job. `spec` must hold no secret: redact connection strings first.
    pub fn new(kind: impl Into<String>, spec: Value, at_ms: u64) -> Self {
        Self {
            id: JobId::from_parts(at_ms, rand::random()),
            kind: kind.into(),
            spec,
            state: State::Planned,
            created_at_ms: at_ms,
            updated_at_ms: at_ms,
            epoch: 0,
            owner: None,
            control: Requested::default(),
            limits: Limits::default(),
            progress: None,
            checkpoint: Value::Null,
        }
    }
}

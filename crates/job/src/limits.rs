//! Limits on the speed of a job.

use serde::{Deserialize, Serialize};

/// Limits on the speed of a job; absent ones do not limit. A limit of zero cannot be kept (see
/// [`Limits::check`]): to stop a job, pause it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Documents per second.
    pub documents_s: Option<u64>,
    /// Bytes per second.
    pub bytes_s: Option<u64>,
    /// Wait while a secondary is further behind than this, in milliseconds.
    pub secondary_lag_ms: Option<u64>,
    /// True if work that can wait keeps to a pace at which the servers' clients hardly notice it.
    #[serde(default)]
    pub is_paced: bool,
    /// The slowest of clients' answers while the job is paced, in percent of the same without the
    /// job; 150 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_percent: Option<u32>,
}

/// A limit that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a limit of 0 {0} would stop the job for ever; pause it instead (`imago job pause`)")]
pub struct ZeroLimit(pub &'static str);

impl Limits {
    /// Returns an error if a limit cannot be kept.
    pub fn check(&self) -> Result<(), ZeroLimit> {
        match self {
            Self { documents_s: Some(0), .. } => Err(ZeroLimit("documents/s")),
            Self { bytes_s: Some(0), .. } => Err(ZeroLimit("bytes/s")),
            Self { secondary_lag_ms: Some(0), .. } => Err(ZeroLimit("ms of secondary lag")),
            _ => Ok(()),
        }
    }
}

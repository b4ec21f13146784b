//! Limits on the speed of a job.

use serde::{Deserialize, Serialize};

/// Limits on the speed of a job; `None` means no limit. A limit of zero is refused (see [`Limits::check`]):
/// to stop a job, pause it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum rate, in documents per second.
    pub documents_s: Option<u64>,
    /// Maximum rate, in bytes per second.
    pub bytes_s: Option<u64>,
    /// Maximum lag of a secondary, in milliseconds; the job waits while the lag is greater.
    pub secondary_lag_ms: Option<u64>,
    /// True if deferrable work keeps to a pace at which the servers' clients hardly notice it.
    #[serde(default)]
    pub is_paced: bool,
    /// Maximum latency of the clients' requests while the job is paced, in percent of their latency without
    /// the job; 150 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_percent: Option<u32>,
}

/// The error of a limit of zero, with the unit of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a limit of 0 {0} would stop the job for ever; pause it instead (`imago job pause`)")]
pub struct ZeroLimit(pub &'static str);

impl Limits {
    /// Returns an error if a limit is zero.
    pub fn check(&self) -> Result<(), ZeroLimit> {
        match self {
            Self { documents_s: Some(0), .. } => Err(ZeroLimit("documents/s")),
            Self { bytes_s: Some(0), .. } => Err(ZeroLimit("bytes/s")),
            Self { secondary_lag_ms: Some(0), .. } => Err(ZeroLimit("ms of secondary lag")),
            _ => Ok(()),
        }
    }
}

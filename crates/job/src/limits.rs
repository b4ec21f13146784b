//! Limits on the speed of a job.

use serde::{Deserialize, Serialize};

/// The operator's limits on the speed of one job; `None` means no limit. A limit of zero is refused (see
/// [`Limits::check`]): to stop a job, pause it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum rate at which the job processes documents, in documents per second.
    pub documents_s: Option<u64>,
    /// Maximum rate at which the job processes bytes of documents, in bytes per second.
    pub bytes_s: Option<u64>,
    /// Maximum replication lag of a secondary, in milliseconds; the job waits while the lag is greater.
    pub secondary_lag_ms: Option<u64>,
    /// True if deferrable work, such as the bulk of a copy, keeps to a pace at which the servers' clients hardly
    /// notice it.
    #[serde(default)]
    pub is_paced: bool,
    /// Maximum latency of the clients' requests while the job is paced, in percent of their latency without the job;
    /// `None` means 150.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_percent: Option<u32>,
}

/// The error that a limit is zero. Contains the unit of that limit, such as `documents/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a limit of 0 {0} would stop the job for ever; pause it instead (`imago job pause`)")]
pub struct ZeroLimit(pub &'static str);

impl Limits {
    /// Checks that none of the rates and the lag limit is zero, and returns an error if one is.
    pub fn check(&self) -> Result<(), ZeroLimit> {
        match self {
            Self { documents_s: Some(0), .. } => Err(ZeroLimit("documents/s")),
            Self { bytes_s: Some(0), .. } => Err(ZeroLimit("bytes/s")),
            Self { secondary_lag_ms: Some(0), .. } => Err(ZeroLimit("ms of secondary lag")),
            _ => Ok(()),
        }
    }
}

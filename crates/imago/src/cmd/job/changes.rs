//! The limits of a job that `imago job set` changes.

use imago_job::record::Limits;

use crate::cmd::limit::{self, Limit};
use crate::cmd::speed::Pacing;

/// Limits to change; the others stay as they are.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub struct Changes {
    /// Documents per second, or none.
    #[arg(long, value_name = "N|none", value_parser = limit::whole)]
    documents_s: Option<Limit>,
    /// Bytes per second, or none.
    #[arg(long, value_name = "N|none", value_parser = limit::whole, conflicts_with = "mb_s")]
    bytes_s: Option<Limit>,
    /// Megabytes (1,000,000 bytes) per second, or none; for example 2.5.
    #[arg(long, value_name = "N|none", value_parser = limit::millions)]
    mb_s: Option<Limit>,
    /// Wait while a secondary of the destination lags by more than this many seconds; or none.
    #[arg(long, value_name = "N|none", value_parser = limit::thousands)]
    secondary_lag_s: Option<Limit>,
    /// Pace of the job while clients use the clusters.
    #[arg(long, value_enum, value_name = "HOW")]
    pace: Option<Pacing>,
    /// Factor by which the job may slow down the slowest replies to clients.
    #[arg(long, value_name = "TIMES", value_parser = limit::times)]
    max_slowdown: Option<u32>,
}

impl Changes {
    /// Returns these limits with the changes.
    pub fn applied_to(&self, limits: Limits) -> Limits {
        let bytes_s = self.bytes_s.or(self.mb_s);
        Limits {
            documents_s: self.documents_s.map_or(limits.documents_s, |limit| limit.0),
            bytes_s: bytes_s.map_or(limits.bytes_s, |limit| limit.0),
            secondary_lag_ms: self.secondary_lag_s.map_or(limits.secondary_lag_ms, |limit| limit.0),
            is_paced: self.pace.map_or(limits.is_paced, Pacing::is_gentle),
            slowdown_percent: self.max_slowdown.or(limits.slowdown_percent),
        }
    }
}

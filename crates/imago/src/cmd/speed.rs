//! The arguments that limit the speed of a copy or reshard.

use imago_job::record::Limits;

use crate::cmd::limit::{self, Limit};
use crate::exit::{Exit, Failure};

/// Pace of a job beside the cluster's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pacing {
    /// At a pace that clients hardly notice; at any speed while no client is active.
    Gentle,
    /// At any speed.
    Full,
}

impl Pacing {
    /// Returns true if the job's speed adapts to the latencies of clients.
    pub fn is_gentle(self) -> bool {
        self == Self::Gentle
    }
}

/// Its arguments; `imago job set` changes it while a job runs.
#[derive(Debug, clap::Args)]
pub struct Speed {
    /// Pace while clients use the cluster.
    #[arg(long, value_enum, default_value = "gentle", value_name = "HOW")]
    pace: Pacing,
    /// With --pace gentle: factor by which the job may slow down the slowest replies to clients;
    /// 1.5 by default.
    #[arg(long, value_name = "TIMES", value_parser = limit::times)]
    max_slowdown: Option<u32>,
    /// Documents per second.
    #[arg(long, value_name = "N")]
    documents_s: Option<u64>,
    /// Megabytes (1,000,000 bytes) per second; for example 2.5.
    #[arg(long, value_name = "N", value_parser = limit::millions)]
    mb_s: Option<Limit>,
    /// Wait while a secondary of the destination lags by more than this many seconds.
    #[arg(long, value_name = "N", value_parser = limit::thousands)]
    secondary_lag_s: Option<Limit>,
}

impl Speed {
    /// Returns the speed limits of these arguments; fails if they are invalid.
    pub fn parsed(&self) -> Result<Limits, Failure> {
        let limits = Limits {
            documents_s: self.documents_s,
            bytes_s: self.mb_s.and_then(|limit| limit.0),
            secondary_lag_ms: self.secondary_lag_s.and_then(|limit| limit.0),
            is_paced: self.pace.is_gentle(),
            slowdown_percent: self.max_slowdown,
        };
        let refused = |error| Failure::from_error(Exit::Usage, "limit", &error);
        limits.check().map_err(refused)?;
        Ok(limits)
    }
}

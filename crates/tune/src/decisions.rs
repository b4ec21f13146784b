//! The log of a controller's decisions for a cluster, persisted for 90 days, and the lease that allows one controller
//! at a time.
//!
//! Invariants:
//! - A change is logged before it starts, and its judgement when it is made: the next controller relies on both.
//! - A controller that cannot renew its lease makes no further change.
//! - A suspension of changes lasts until an operator resumes them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use time::{Date, OffsetDateTime};

use crate::cluster::{Error, Result};

/// Maximum age of entries of the log of decisions, in days; older ones are removed.
pub const DAYS_MAX: u16 = 90;
/// Time after its last renewal at which the controllers' lease expires.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Kind of an entry in the log of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The controller decided to change the configuration or to stay, at the end of an interval.
    Decided,
    /// A change from one configuration to another starts.
    Changing,
    /// A change has completed or failed, or the reversion of a change starts.
    Changed,
    /// A change was judged by the samples before and after it.
    Judged,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Decided, Self::Changing, Self::Changed, Self::Judged];

    /// Returns the name of this kind, as the log stores it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Changing => "changing",
            Self::Changed => "changed",
            Self::Judged => "judged",
        }
    }
}

/// An entry of the log of decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of the entry, in milliseconds since the Unix epoch: for Cassandra by the clock of the node that stored
    /// the entry, for Redis by the clock of the controller's machine.
    pub at_ms: i64,
    /// Kind of the entry, which determines the structure of [`Self::detail`].
    pub kind: Kind,
    /// Summary of the decision, change or judgement in one sentence.
    pub what: String,
    /// Details of the decision, change or judgement for programs; the structure depends on [`Self::kind`].
    pub detail: serde_json::Value,
}

/// Store, for one cluster, of the decisions, the controllers' lease and the suspension of changes.
pub trait DecisionLog {
    /// Persists an entry of this kind; `at_s` is the present time in seconds since 1970, `what` the summary.
    ///
    /// # Errors
    /// Fails if the entry cannot be persisted.
    fn append(
        &self,
        at_s: u64,
        kind: Kind,
        what: &str,
        detail: &Json,
    ) -> impl Future<Output = Result<()>>;

    /// Returns the entries of the last `days` days in UTC, the present one included, the oldest first; `now_s` is the
    /// present time in seconds since 1970.
    ///
    /// # Errors
    /// Fails if the entries cannot be read.
    fn decisions(&self, now_s: u64, days: u16) -> impl Future<Output = Result<Vec<Entry>>>;

    /// Acquires or renews the controllers' lease for `process`. Returns the process that holds the lease if it is
    /// another one, and None on success.
    ///
    /// # Errors
    /// Fails if the cluster does not answer.
    fn acquire_lease(&self, process: &str) -> impl Future<Output = Result<Option<String>>>;

    /// Releases the controllers' lease if `process` holds it.
    ///
    /// # Errors
    /// Fails if the cluster does not answer.
    fn release_lease(&self, process: &str) -> impl Future<Output = Result<()>>;

    /// Suspends all changes by controllers on behalf of `process` if `is_held`, and allows them again otherwise.
    ///
    /// # Errors
    /// Fails if the suspension cannot be persisted.
    fn set_suspended(&self, is_held: bool, process: &str) -> impl Future<Output = Result<()>>;

    /// Returns the process that suspended changes by controllers; None if they are not suspended.
    ///
    /// # Errors
    /// Fails if the suspension cannot be read.
    fn suspended_by(&self) -> impl Future<Output = Result<Option<String>>>;
}

/// Returns the error for a controller that finds the controllers' lease held by the process `holder`.
pub(crate) fn lease_held_by(holder: &str) -> Error {
    let within = LEASE.as_secs();
    Error::precondition(
        format!("{holder} decides for this cluster"),
        format!("end that one first; its lease ends {within} s after its death"),
    )
}

/// Returns the date (UTC) of a time in seconds since 1970; the log of decisions is partitioned by it.
pub(crate) fn day(at_s: u64) -> String {
    let at = i64::try_from(at_s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    at.map_or(Date::MIN, OffsetDateTime::date).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_utc() {
        assert_eq!(day(1_795_737_599), "2026-11-26");
        assert_eq!(day(1_795_737_600), "2026-11-27");
    }

    #[test]
    fn kinds_are_kept_by_their_names() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}

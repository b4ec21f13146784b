//! The log of decisions for a cluster, persisted for 90 days, and the lease that allows one controller at a time.
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

/// Maximum age of entries, in days.
pub const DAYS_MAX: u16 = 90;
/// Time after which a lease expires unless it is renewed.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A decision, whether or not it changes the cluster.
    Decided,
    /// A change starts.
    Changing,
    /// A change has completed or failed.
    Changed,
    /// A change was judged.
    Judged,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Decided, Self::Changing, Self::Changed, Self::Judged];

    /// Returns the name of the kind.
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

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of the entry, in milliseconds since the Unix epoch, by the clock of the server that stores it.
    pub at_ms: i64,
    /// Kind of the entry.
    pub kind: Kind,
    /// Summary in one sentence.
    pub what: String,
    /// Details for programs; their structure depends on the kind.
    pub detail: serde_json::Value,
}

/// A store of decisions, of the controllers' lease and of a suspension.
pub trait DecisionLog {
    /// Persists an entry.
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

    /// Returns the entries of the last `days` days, the oldest first.
    ///
    /// # Errors
    /// Fails if the entries cannot be read.
    fn decisions(&self, now_s: u64, days: u16) -> impl Future<Output = Result<Vec<Entry>>>;

    /// Acquires or renews the controllers' lease. Returns the process that holds it, if that is another one.
    ///
    /// # Errors
    /// Fails if the cluster does not answer.
    fn acquire_lease(&self, process: &str) -> impl Future<Output = Result<Option<String>>>;

    /// Releases the controllers' lease.
    ///
    /// # Errors
    /// Fails if the cluster does not answer.
    fn release_lease(&self, process: &str) -> impl Future<Output = Result<()>>;

    /// Suspends all changes by controllers, or resumes them.
    ///
    /// # Errors
    /// Fails if the suspension cannot be persisted.
    fn set_suspended(&self, is_held: bool, process: &str) -> impl Future<Output = Result<()>>;

    /// Returns the process that suspended changes; None if they are not suspended.
    ///
    /// # Errors
    /// Fails if the suspension cannot be read.
    fn suspended_by(&self) -> impl Future<Output = Result<Option<String>>>;
}

/// Returns the error for a controller that finds another one active.
pub(crate) fn lease_held_by(holder: &str) -> Error {
    let within = LEASE.as_secs();
    Error::precondition(
        format!("{holder} decides for this cluster"),
        format!("end that one first; its lease ends {within} s after its death"),
    )
}

/// Returns the date of a time (in seconds since 1970), in UTC, by which entries are partitioned.
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

//! What was decided for a cluster, and why: kept for some months; and the lease by which one controller decides at a time.
//!
//! Invariants:
//! - A change is kept before it is made, and its judgement when it is made: the next controller goes by both.
//! - A controller that cannot renew its lease changes nothing any more.
//! - What is held back stays so until an operator has it go on.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use time::{Date, OffsetDateTime};

use crate::cluster::{Error, Result};

/// Days that are kept and read at most.
pub const DAYS_MAX: u16 = 90;
/// How long a controller holds its lease without renewing it.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A plan, whether or not it has the cluster changed.
    Decided,
    /// A change begins.
    Changing,
    /// A change ended, or failed.
    Changed,
    /// What came of a change.
    Judged,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Decided, Self::Changing, Self::Changed, Self::Judged];

    /// Its name.
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

/// An entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in milliseconds since the Unix epoch, by the clock of what keeps it.
    pub at_ms: i64,
    /// Its kind.
    pub kind: Kind,
    /// In a sentence.
    pub what: String,
    /// For programs; what it holds depends on the kind.
    pub detail: serde_json::Value,
}

/// What keeps them.
pub trait DecisionLog {
    /// Keeps an entry.
    ///
    /// # Errors
    /// It could not be kept.
    fn keep(
        &self,
        at_s: u64,
        kind: Kind,
        what: &str,
        detail: &Json,
    ) -> impl Future<Output = Result<()>>;

    /// The entries of the last days, the oldest first.
    ///
    /// # Errors
    /// They cannot be read.
    fn decisions(&self, now_s: u64, days: u16) -> impl Future<Output = Result<Vec<Entry>>>;

    /// Takes the controllers' lease, or renews it. Returns the process that has it, if that is another one.
    ///
    /// # Errors
    /// The cluster does not answer.
    fn lead(&self, process: &str) -> impl Future<Output = Result<Option<String>>>;

    /// Gives the controllers' lease up.
    ///
    /// # Errors
    /// The cluster does not answer.
    fn resign(&self, process: &str) -> impl Future<Output = Result<()>>;

    /// Has controllers change nothing, or go on.
    ///
    /// # Errors
    /// It could not be kept.
    fn hold(&self, is_held: bool, process: &str) -> impl Future<Output = Result<()>>;

    /// The process that had controllers change nothing, if one did.
    ///
    /// # Errors
    /// It cannot be read.
    fn held_by(&self) -> impl Future<Output = Result<Option<String>>>;
}

/// What a controller says that finds another one.
pub(crate) fn led_by(holder: &str) -> Error {
    let within = LEASE.as_secs();
    Error::precondition(
        format!("{holder} decides for this cluster"),
        format!("end that one first; its lease ends {within} s after its death"),
    )
}

/// The day of a moment, by which entries are kept together.
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

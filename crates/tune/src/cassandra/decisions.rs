//! What was decided for a cluster, kept in it for some months; and the lease by which one controller decides at a time.
//!
//! Invariants:
//! - A change is kept before it is made, and its judgement when it is made: the next controller goes by both.
//! - A controller that cannot renew its lease changes nothing any more.

use std::time::Duration;

use scylla::value::CqlTimestamp;
use serde::{Deserialize, Serialize};
use time::{Date, OffsetDateTime};

use super::connection::rows;
use super::error::{Error, Result, failed};
use super::journal::{Applied, CassandraJournal, KEYSPACE};

/// The table: a partition a day, and a row each decision, for three months.
pub(super) const TABLE: &str = "decisions (day text, at timeuuid, kind text, what text, detail text, \
                                PRIMARY KEY (day, at)) WITH default_time_to_live = 7776000";
/// Days that are read at most.
pub const DAYS_MAX: u16 = 90;
/// The rows of the table of locks.
const CONTROLLER: &str = "controller";
const HOLD: &str = "hold";
/// How long a controller holds its lease without renewing it.
pub(super) const LEASE: Duration = Duration::from_secs(60);

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
    const ALL: [Self; 4] = [Self::Decided, Self::Changing, Self::Changed, Self::Judged];

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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// When, in milliseconds since the Unix epoch, by the clock of a node.
    pub at_ms: i64,
    /// Its kind.
    pub kind: Kind,
    /// In a sentence.
    pub what: String,
    /// For programs; what it holds depends on the kind.
    pub detail: serde_json::Value,
}

impl CassandraJournal {
    /// Keeps an entry.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn keep(
        &self,
        at_s: u64,
        kind: Kind,
        what: &str,
        detail: &impl Serialize,
    ) -> Result<()> {
        let statement = format!(
            "INSERT INTO {KEYSPACE}.decisions (day, at, kind, what, detail) VALUES (?, now(), ?, ?, ?)"
        );
        let detail = serde_json::to_string(detail).expect("texts and numbers");
        let values = (day(at_s), kind.name(), what, detail);
        let kept = self.session().query_unpaged(statement, values).await;
        kept.map_err(failed("keeping a decision")).map(drop)
    }

    /// The entries of the last days, the oldest first.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn decisions(&self, now_s: u64, days: u16) -> Result<Vec<Entry>> {
        let statement = format!(
            "SELECT toTimestamp(at), kind, what, detail FROM {KEYSPACE}.decisions WHERE day = ?"
        );
        let mut all = Vec::new();
        for back in (0..u64::from(days.min(DAYS_MAX))).rev() {
            let of = (day(now_s.saturating_sub(back * 86_400)),);
            type Row = (CqlTimestamp, String, String, String);
            for (at, kind, what, detail) in
                rows::<Row>(self.session(), "reading decisions", &statement, of).await?
            {
                // A later version may know kinds that this one does not.
                let Some(kind) = Kind::ALL.into_iter().find(|one| one.name() == kind) else {
                    continue;
                };
                let detail = serde_json::from_str(&detail).unwrap_or_default();
                all.push(Entry { at_ms: at.0, kind, what, detail });
            }
        }
        Ok(all)
    }

    /// Takes the controllers' lease, or renews it.
    ///
    /// # Errors
    /// Another process has it, or what the cluster said.
    pub async fn lead(&self, process: &str) -> Result<()> {
        let seconds = i32::try_from(LEASE.as_secs()).expect("a minute");
        let renew =
            format!("UPDATE {KEYSPACE}.locks USING TTL ? SET job = ? WHERE name = ? IF job = ?");
        if let Applied::Yes =
            self.conditional(&renew, (seconds, process, CONTROLLER, process)).await?
        {
            return Ok(());
        }
        let take = format!(
            "INSERT INTO {KEYSPACE}.locks (name, job) VALUES (?, ?) IF NOT EXISTS USING TTL ?"
        );
        match self.conditional(&take, (CONTROLLER, process, seconds)).await? {
            Applied::Yes => Ok(()),
            Applied::No(row) => {
                let mut texts = row.iter().rev().flatten().filter_map(|value| value.as_text());
                let holder = texts.find(|text| *text != CONTROLLER).cloned();
                let holder = holder.unwrap_or_else(|| "another process".into());
                let within = LEASE.as_secs();
                Err(Error::precondition(
                    format!("{holder} decides for this cluster"),
                    format!("end that one first; its lease ends {within} s after its death"),
                ))
            }
        }
    }

    /// Gives the controllers' lease up.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn resign(&self, process: &str) -> Result<()> {
        let statement = format!("DELETE FROM {KEYSPACE}.locks WHERE name = ? IF job = ?");
        self.conditional(&statement, (CONTROLLER, process)).await.map(drop)
    }

    /// Has controllers change nothing, or go on.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn hold(&self, is_held: bool, process: &str) -> Result<()> {
        // As conditional as the other locks: plain writes and transactions do not mix in one table.
        let answer = if is_held {
            let statement =
                format!("INSERT INTO {KEYSPACE}.locks (name, job) VALUES (?, ?) IF NOT EXISTS");
            self.conditional(&statement, (HOLD, process)).await
        } else {
            let statement = format!("DELETE FROM {KEYSPACE}.locks WHERE name = ? IF EXISTS");
            self.conditional(&statement, (HOLD,)).await
        };
        answer.map(drop)
    }

    /// The process that had controllers change nothing, if one did.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn held_by(&self) -> Result<Option<String>> {
        let statement = format!("SELECT job FROM {KEYSPACE}.locks WHERE name = ?");
        let found =
            rows::<(Option<String>,)>(self.session(), "reading the locks", &statement, (HOLD,))
                .await?;
        Ok(found.into_iter().next().and_then(|(job,)| job))
    }
}

/// The day of a moment, as a partition of the table.
fn day(at_s: u64) -> String {
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

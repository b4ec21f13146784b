//! The log of a controller's decisions, persisted in the cluster's keyspace `imago`, and the lease that allows one
//! controller at a time.

use scylla::value::CqlTimestamp;
use serde_json::Value as Json;

use super::connection::rows;
use super::error::{Result, failed};
use super::journal::{Applied, CassandraJournal, KEYSPACE};
use crate::decisions::{DAYS_MAX, DecisionLog, Entry, Kind, LEASE, day};

/// Keys, in the table `locks`, of the controllers' lease and of the suspension of changes.
const CONTROLLER: &str = "controller";
const HOLD: &str = "hold";

impl DecisionLog for CassandraJournal {
    async fn append(&self, at_s: u64, kind: Kind, what: &str, detail: &Json) -> Result<()> {
        let statement = format!(
            "INSERT INTO {KEYSPACE}.decisions (day, at, kind, what, detail) VALUES (?, now(), ?, ?, ?)"
        );
        let values = (day(at_s), kind.name(), what, detail.to_string());
        let kept = self.session().query_unpaged(statement, values).await;
        kept.map_err(failed("keeping a decision")).map(drop)
    }

    async fn decisions(&self, now_s: u64, days: u16) -> Result<Vec<Entry>> {
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
                // A later version may write kinds that this version does not know.
                let Some(kind) = Kind::ALL.into_iter().find(|one| one.name() == kind) else {
                    continue;
                };
                let detail = serde_json::from_str(&detail).unwrap_or_default();
                all.push(Entry { at_ms: at.0, kind, what, detail });
            }
        }
        Ok(all)
    }

    async fn acquire_lease(&self, process: &str) -> Result<Option<String>> {
        let seconds = i32::try_from(LEASE.as_secs()).expect("a minute");
        let renew =
            format!("UPDATE {KEYSPACE}.locks USING TTL ? SET job = ? WHERE name = ? IF job = ?");
        if let Applied::Yes =
            self.conditional(&renew, (seconds, process, CONTROLLER, process)).await?
        {
            return Ok(None);
        }
        let take = format!(
            "INSERT INTO {KEYSPACE}.locks (name, job) VALUES (?, ?) IF NOT EXISTS USING TTL ?"
        );
        match self.conditional(&take, (CONTROLLER, process, seconds)).await? {
            Applied::Yes => Ok(None),
            Applied::No(row) => {
                let mut texts = row.iter().rev().flatten().filter_map(|value| value.as_text());
                let holder = texts.find(|text| *text != CONTROLLER).cloned();
                Ok(Some(holder.unwrap_or_else(|| "another process".into())))
            }
        }
    }

    async fn release_lease(&self, process: &str) -> Result<()> {
        let statement = format!("DELETE FROM {KEYSPACE}.locks WHERE name = ? IF job = ?");
        self.conditional(&statement, (CONTROLLER, process)).await.map(drop)
    }

    async fn set_suspended(&self, is_held: bool, process: &str) -> Result<()> {
        // A lightweight transaction, like the other locks: plain writes and transactions must not mix in one table.
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

    async fn suspended_by(&self) -> Result<Option<String>> {
        let statement = format!("SELECT job FROM {KEYSPACE}.locks WHERE name = ?");
        let found =
            rows::<(Option<String>,)>(self.session(), "reading the locks", &statement, (HOLD,))
                .await?;
        Ok(found.into_iter().next().and_then(|(job,)| job))
    }
}

//! The time of a cluster: its logical clock, by which writes are ordered, and the clock on its wall.

use std::time::{Duration, Instant};

use bson::{Document, Timestamp, doc};

use super::{ASK_AGAIN, Endpoint, Shape};
use crate::error::{Error, Result};

/// For how long a member that has just started is asked for the time until it has the keys that sign it.
const SIGNING_KEYS_TIMEOUT: Duration = Duration::from_secs(60);

impl Endpoint {
    /// Returns the cluster time: every write that was acknowledged before the call is at or before that time.
    ///
    /// A router knows only the times of operations that passed through it, and there may be others. So every shard is
    /// asked, by a command that any user may run.
    ///
    /// # Errors
    /// Fails if the cluster (with shards: any of them) does not reply, or replies without a time for a minute.
    #[crate::boxed]
    pub async fn cluster_time(&self) -> Result<Timestamp> {
        let ask = match self.shape {
            Shape::ReplicaSet(_) => doc! {"ping": 1},
            Shape::Sharded => doc! {
                "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true,
                "filter": {"name": "admin"},
            },
        };
        // With authentication, a member that has just started has not read the keys yet that the primary made for
        // signing times, and leaves the time out until it has.
        let until = Instant::now() + SIGNING_KEYS_TIMEOUT;
        loop {
            let reply = self.run("admin", ask.clone()).await?;
            if let Some(time) = operation_time(&reply) {
                return Ok(time);
            }
            if Instant::now() >= until {
                let cause = format!(
                    "no operationTime for {SIGNING_KEYS_TIMEOUT:?}: a member leaves it out as long as it has no keys \
                     for signing times"
                );
                return Err(Error::malformed("asking for the time", cause));
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Returns a cluster time: every write that was acknowledged before the call is at or before it, and every write
    /// that starts after the call is later.
    ///
    /// On a sharded cluster, each shard has its own clock, which advances when a client carries a later time from
    /// another shard; until then it may issue times that another shard has passed. A second command carries the time.
    ///
    /// # Errors
    /// Fails as [`Endpoint::cluster_time`] does.
    #[crate::boxed]
    pub async fn fence(&self) -> Result<Timestamp> {
        let time = self.cluster_time().await?;
        if self.is_sharded() {
            self.cluster_time().await?;
        }
        Ok(time)
    }

    /// Returns this machine's lead over the cluster's wall clock in ms, to within a round trip; negative if slow.
    ///
    /// # Errors
    /// Fails if the cluster does not reply, or its reply has no time of day.
    pub async fn clock_ahead_ms(&self) -> Result<i64> {
        let reply = self.run("admin", doc! {"hello": 1}).await?;
        let there = reply.get_datetime("localTime");
        let there = there.map_err(|error| Error::malformed("hello", error))?;
        Ok(bson::DateTime::now().timestamp_millis() - there.timestamp_millis())
    }
}

/// Returns the `operationTime` of a server's reply, or `None` if it has none.
#[must_use]
pub fn operation_time(reply: &Document) -> Option<Timestamp> {
    reply.get_timestamp("operationTime").ok()
}

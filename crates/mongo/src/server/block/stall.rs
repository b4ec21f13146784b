//! Ends commands of a write block that wait for a lock for too long.
//!
//! Before a server starts to refuse writes it takes a global lock, for which it waits without a limit; later
//! operations, reads included, queue after it. An open transaction can delay the lock as long as its client likes, up
//! to a minute. And if a transaction over several shards is prepared, and its decision is to be written on the same
//! shard, the two wait for each other for ever. So the process that sets or lifts the write block watches the
//! servers: commands of the write block that wait for the lock too long are killed, the other operations continue,
//! and the write block is requested again. (Observed on 6.0.5: `crates/imago/tests/verbs/reshard/stall.rs`.)

use std::convert::Infallible;
use std::time::Duration;

use bson::{Bson, Document, doc};

use crate::error::{Error, Result};
use crate::server::endpoint::{Endpoint, answer_within};

/// Longest time that a command of the write block may wait for the lock at a server. Without open transactions it
/// waits only for the longest operation in progress, and operations yield.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Interval between checks for waiting commands of the write block.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest wait for the reply of a shard while it is watched.
const REACH_MAX: Duration = Duration::from_secs(5);

/// Connections to the replica sets of a cluster, made before any of their operations can wait.
pub(super) struct Sets(Vec<Endpoint>);

impl Sets {
    /// Connects to the replica sets of `cluster` that the connected user can reach.
    pub(super) async fn reach(cluster: &Endpoint) -> Self {
        let reached = match cluster.shards().await {
            Ok(reached) => reached,
            Err(error) => {
                tracing::warn!(%error, "a write block that waits for ever will not be noticed");
                Vec::new()
            }
        };
        let mut sets = Vec::new();
        for (_, set) in reached {
            match set {
                Ok(set) => sets.push(set),
                Err(error) => tracing::warn!(%error, "a write block may wait there for ever"),
            }
        }
        Self(sets)
    }

    /// Kills commands of the write block that have waited for longer than [`WAIT_MAX`]. Runs as long as it is polled.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            for shard in &self.0 {
                if let Err(error) = kill_waiting(shard).await {
                    tracing::warn!(%error, "a write block that waits there is not ended");
                }
            }
        }
    }
}

/// Names of the commands of a write block that wait for the lock: on a replica set, and on a shard.
const COMMANDS: [&str; 2] = ["setUserWriteBlockMode", "_shardsvrSetUserWriteBlockMode"];

async fn kill_waiting(shard: &Endpoint) -> Result<()> {
    let doing = "looking for a write block that waits";
    let pipeline = [
        doc! {"$currentOp": {"allUsers": true, "localOps": true}},
        doc! {"$match": {
            "$or": COMMANDS.map(|command| doc! {format!("command.{command}"): {"$exists": true}}),
            "waitingForLock": true,
            "microsecs_running": {"$gt": i64::try_from(WAIT_MAX.as_micros()).expect("a second")},
        }},
        doc! {"$project": {"opid": 1}},
    ];
    let ask = doc! {"aggregate": 1, "pipeline": &pipeline[..], "cursor": {}};
    let reply = answer_within(REACH_MAX, doing, shard.run("admin", ask)).await??;
    let cursor = reply.get_document("cursor");
    let found = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    let found = found.map_err(|error| Error::malformed(doing, error))?;
    for waiting in found.iter().filter_map(Bson::as_document) {
        let Some(id) = waiting.get("opid") else { continue };
        tracing::warn!(at = %shard.redacted(), %id, "a write block that waits is ended");
        let kill: Document = doc! {"killOp": 1, "op": id.clone()};
        answer_within(REACH_MAX, doing, shard.run("admin", kill)).await??;
    }
    Ok(())
}

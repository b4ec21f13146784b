//! Leases in the cluster itself: a key with the holder's name and the expiry time by the server's clock. One lease is
//! the lock on the cluster's configuration, which a job holds; another one belongs to the active controller.
//!
//! They keep two machines from changing one cluster. The lease of a dead process expires by itself, and the same job
//! can take over its own lease at once. The key itself has no TTL, so that `volatile-*` eviction policies do not evict
//! it. An `allkeys-*` policy may evict it, and a failover may lose it, since Redis replicates asynchronously. The lock
//! is renewed before each step, and a job that finds another job's lock ends. A lease can be acquired even if memory is
//! short.

use std::time::Duration;

use super::Uri;
use super::connection::Node;
use super::topology::{Part, Topology, slot};
use crate::cluster::{Error, Result};
use crate::decisions;

/// A lease: a key in the cluster whose value is the holder's name and the expiry time.
pub(super) struct Lease {
    /// Name of the key that stores the lease.
    key: &'static str,
    /// Time after the last renewal at which the lease expires.
    lasts: Duration,
}

/// Lock on the cluster's configuration, which a job holds; a step of a roll takes less time than the lock lasts.
pub(super) const CONFIGURATION: Lease =
    Lease { key: "imago:lock", lasts: Duration::from_secs(600) };
/// Lease of the controller that decides for the cluster.
pub(super) const CONTROLLER: Lease = Lease { key: "imago:controller", lasts: decisions::LEASE };

/// Timeout of the reply of the node that stores a lease.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Script that acquires or renews a lease; its reply is the holder if that is another one, and empty on success.
const TAKE: &str = "#!lua flags=allow-oom\n\
    local time = redis.call('time') \
    local now = time[1] * 1000 + math.floor(time[2] / 1000) \
    local holder, ends = string.match(redis.call('get', KEYS[1]) or '', '^(.*) until (%d+)$') \
    if holder and holder ~= ARGV[1] and tonumber(ends) > now then return holder end \
    redis.call('set', KEYS[1], ARGV[1] .. ' until ' .. string.format('%.0f', now + ARGV[2])) return ''";
/// Script that releases a lease if the given holder has it.
const GIVE_UP: &str = "#!lua flags=allow-oom\n\
    local holder = string.match(redis.call('get', KEYS[1]) or '', '^(.*) until %d+$') \
    if holder == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// Key that exists while changes by controllers are suspended; its value is the process that suspended them.
const HOLD: &str = "imago:hold";
/// Script that sets a key unless the key exists.
const SET: &str = "#!lua flags=allow-oom\n\
    redis.call('set', KEYS[1], ARGV[1], 'nx') return ''";

/// Suspends changes by controllers on all machines, in the name of `process`.
///
/// # Errors
/// Fails if the node that stores the key does not answer.
pub(super) async fn suspend(uri: &Uri, process: &str) -> Result<()> {
    let words = ["EVAL", SET, "1", HOLD, process];
    slot_master(uri, HOLD).await?.ask::<String>(&words).await.map(drop)
}

/// Allows changes by controllers again, on all machines.
///
/// # Errors
/// Fails if the node that stores the key does not answer.
pub(super) async fn resume(uri: &Uri) -> Result<()> {
    slot_master(uri, HOLD).await?.ask::<i64>(&["DEL", HOLD]).await.map(drop)
}

/// Returns the process that suspended changes by controllers; None if they are not suspended.
///
/// # Errors
/// Fails if the node that stores the key does not answer.
pub(super) async fn suspended_by(uri: &Uri) -> Result<Option<String>> {
    slot_master(uri, HOLD).await?.ask(&["GET", HOLD]).await
}

impl Lease {
    /// Acquires or renews the lease for `holder`. Returns the present holder if that is another one, and None on
    /// success.
    ///
    /// # Errors
    /// Fails if the node that stores the key does not answer.
    pub(super) async fn take(&self, uri: &Uri, holder: &str) -> Result<Option<String>> {
        let lasts_ms = self.lasts.as_millis().to_string();
        let words = ["EVAL", TAKE, "1", self.key, holder, &lasts_ms];
        let held: String = slot_master(uri, self.key).await?.ask(&words).await?;
        Ok(Some(held).filter(|held| !held.is_empty()))
    }

    /// Releases the lease if `holder` has the lease.
    ///
    /// # Errors
    /// Fails if the node that stores the key does not answer.
    pub(super) async fn give_up(&self, uri: &Uri, holder: &str) -> Result<()> {
        let words = ["EVAL", GIVE_UP, "1", self.key, holder];
        slot_master(uri, self.key).await?.ask::<i64>(&words).await.map(drop)
    }
}

/// Returns the error for a job that finds the lock on the configuration held by the job `by`.
pub(super) fn locked_by(by: &str) -> Error {
    Error::precondition(
        format!("job {by} changes this cluster's configuration"),
        "wait for its end, or go on with it: imago tune roll --resume; the lock of a dead process ends after ten minutes",
    )
}

/// Connects to the master of the slot of `key`, or to the single server if there is no Redis Cluster.
async fn slot_master(uri: &Uri, key: &str) -> Result<Node> {
    let node = Node::connect_to_any(uri, ANSWER_WAIT).await?;
    let Ok(told) = node.try_ask::<String>(&["CLUSTER", "NODES"]).await else {
        // The server is not part of a Redis Cluster.
        return Ok(node);
    };
    let topology = Topology::parse(&told)
        .map_err(|error| Error::failed(format!("{}: {error}", node.address), "is it Redis 7?"))?;
    let slot = slot(key.as_bytes());
    let has_slot = |part: &Part| match part {
        Part::Master(slots) => slots.iter().any(|slots| slots.contains(&slot)),
        Part::Replica(_) => false,
    };
    match topology.members.iter().find(|one| has_slot(&one.part)) {
        Some(master) => Node::connect(&master.address, uri, ANSWER_WAIT).await,
        None => Err(Error::precondition(
            format!("no node has slot {slot}, where the lease {key} is"),
            "give the slot to a node first",
        )),
    }
}

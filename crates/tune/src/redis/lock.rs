//! The lock on a cluster's configuration: a lease under a key of the cluster itself, which names the job that has it.
//!
//! It keeps two controllers from changing one cluster on different machines. A lease of a dead process ends by itself, and
//! the same job takes it over at once. Redis replicates asynchronously, so that a fail-over may lose a lease that was just
//! taken; the lease is renewed before each step, and a job that finds another one's ends.

use std::time::Duration;

use imago_job::id::JobId;

use super::Uri;
use super::connection::Node;
use super::topology::{Part, Topology, slot};
use crate::cluster::{Error, Result};

const KEY: &str = "imago:lock";
/// A lease ends so long after it was renewed last; a step takes less.
const LEASE: Duration = Duration::from_secs(600);
const ANSWER_WAIT: Duration = Duration::from_secs(5);

const TAKE: &str = "local held = redis.call('get', KEYS[1]) \
    if held and held ~= ARGV[1] then return held end \
    redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2]) return ''";
const GIVE_UP: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// Takes the lock for a job, or renews it. Returns the job that has it, if that is another one.
///
/// # Errors
/// The node that keeps it does not answer.
pub(super) async fn take(uri: &Uri, job: &JobId) -> Result<Option<String>> {
    let lease_ms = LEASE.as_millis().to_string();
    let words = ["EVAL", TAKE, "1", KEY, &job.to_string(), &lease_ms];
    let held: String = keeper(uri).await?.ask(&words).await?;
    Ok(Some(held).filter(|held| !held.is_empty()))
}

/// What a job says that has to wait for another one.
pub(super) fn held(by: &str) -> Error {
    Error::precondition(
        format!("job {by} changes this cluster's configuration"),
        "wait for its end, or go on with it: imago tune roll --resume; the lock of a dead process ends after ten minutes",
    )
}

/// Gives the lock up, if the job has it.
///
/// # Errors
/// The node that keeps it does not answer.
pub(super) async fn give_up(uri: &Uri, job: &JobId) -> Result<()> {
    let words = ["EVAL", GIVE_UP, "1", KEY, &job.to_string()];
    keeper(uri).await?.ask::<i64>(&words).await.map(drop)
}

/// The master that has the key's slot.
async fn keeper(uri: &Uri) -> Result<Node> {
    let node = Node::connect_to_any(uri, ANSWER_WAIT).await?;
    let Ok(told) = node.try_ask::<String>(&["CLUSTER", "NODES"]).await else {
        // It stands alone.
        return Ok(node);
    };
    let topology = Topology::parse(&told)
        .map_err(|error| Error::failed(format!("{}: {error}", node.address), "is it Redis 7?"))?;
    let slot = slot(KEY.as_bytes());
    let has_slot = |part: &Part| match part {
        Part::Master(slots) => slots.iter().any(|slots| slots.contains(&slot)),
        Part::Replica(_) => false,
    };
    match topology.members.iter().find(|one| has_slot(&one.part)) {
        Some(keeper) => Node::connect(&keeper.address, uri, ANSWER_WAIT).await,
        None => Err(Error::precondition(
            format!("no node has slot {slot}, where the lock on the configuration is"),
            "give the slot to a node first",
        )),
    }
}

//! What a job must not outrun: the destination's secondaries, and the source's oplog; and what must
//! not hold it up: quiet shards of the source.
//!
//! Both are looked at beside the job, and neither look ever fails it: what may not be seen is said
//! once, as a warning.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use imago_job::control::Control;
use imago_job::reporter::Reporter;
use tokio_util::task::AbortOnDropHandle;

use crate::copy::Clusters;
use crate::endpoint::Endpoint;
use crate::error::Result;

/// Beats the looks at the secondaries.
const LAG_EVERY: Duration = Duration::from_secs(1);
/// Beats the notes in the oplogs of a sharded source.
const NUDGE_EVERY: Duration = Duration::from_secs(1);
/// Beats the looks at the oplog.
const OPLOG_EVERY: Duration = Duration::from_secs(10);
/// From so much time left on, the oplog is warned of.
const OPLOG_LEFT_S: f64 = 3_600.0;
/// A further warning comes when the time left has shrunk by this factor.
const WARN_AGAIN: f64 = 2.0;
const GATE: &str = "secondary lag";

/// The source's second up to which everything is applied; written by the job.
pub type Applied = Arc<AtomicU32>;

/// Watches until it is dropped.
#[must_use]
pub fn watch(
    clusters: &Clusters,
    control: Control,
    reporter: Reporter,
    applied: Applied,
) -> Vec<AbortOnDropHandle<()>> {
    let lag = secondaries(clusters.destination.clone(), control, reporter.clone());
    let nudges = nudges(clusters.source.clone(), reporter.clone());
    let oplog = oplog(clusters.source.clone(), reporter, applied);
    [tokio::spawn(lag), tokio::spawn(oplog), tokio::spawn(nudges)]
        .map(AbortOnDropHandle::new)
        .into()
}

/// Keeps the change stream of a sharded source from waiting for quiet shards.
async fn nudges(source: Endpoint, reporter: Reporter) {
    while source.is_sharded() {
        match source.nudge().await {
            Ok(true) => {}
            Ok(false) => {
                return reporter.warning(
                    "quiet_shards",
                    "the source's user may not write notes into the shards' oplogs",
                    "changes may come up to 10 s late while a shard has no writes, and the cut-over \
                     takes as long; give the user the action appendOplogNote on the cluster",
                );
            }
            Err(error) => tracing::debug!(%error, "the source's shards were not nudged"),
        }
        tokio::time::sleep(NUDGE_EVERY).await;
    }
}

async fn secondaries(destination: Endpoint, control: Control, reporter: Reporter) {
    let mut warned = false;
    loop {
        tokio::time::sleep(LAG_EVERY).await;
        let Some(limit_ms) = control.throttle().limits().secondary_lag_ms else {
            control.release(GATE);
            continue;
        };
        match lag_ms(&destination).await {
            Ok(Some((member, behind_ms))) if behind_ms > limit_ms => control.hold(
                GATE,
                format!(
                    "{member} is {:.1} s behind, over the limit of {:.1} s",
                    seconds(behind_ms),
                    seconds(limit_ms)
                ),
            ),
            Ok(_) => control.release(GATE),
            Err(error) => {
                control.release(GATE);
                if !std::mem::replace(&mut warned, true) {
                    reporter.warning(
                        "secondary_lag_unknown",
                        format!("the destination's secondaries cannot be watched: {error}"),
                        "the limit on their lag has no effect; give the user the role \
                         clusterMonitor, or, behind a router, limit documents/s instead",
                    );
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "to be read by people")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// The secondary that is furthest behind, and by how much, in ms.
async fn lag_ms(destination: &Endpoint) -> Result<Option<(String, u64)>> {
    let status = destination.run("admin", doc! {"replSetGetStatus": 1}).await?;
    Ok(furthest_behind(&status))
}

fn furthest_behind(status: &Document) -> Option<(String, u64)> {
    let members = status.get_array("members").ok()?;
    let members = members.iter().filter_map(Bson::as_document);
    let at =
        |member: &Document| member.get_datetime("optimeDate").ok().map(|d| d.timestamp_millis());
    let state = |member: &Document| member.get_i32("state").unwrap_or(0);
    let primary = members.clone().find(|member| state(member) == 1).and_then(at)?;
    let behind = members.filter(|member| state(member) == 2).filter_map(|member| {
        let behind_ms = u64::try_from(primary - at(member)?).unwrap_or(0);
        Some((member.get_str("name").unwrap_or("a secondary").to_owned(), behind_ms))
    });
    behind.max_by_key(|(_, behind_ms)| *behind_ms)
}

async fn oplog(source: Endpoint, reporter: Reporter, applied: Applied) {
    if source.is_sharded() {
        // Each shard has its own, behind the router.
        return;
    }
    let mut before: Option<(Instant, u32)> = None;
    let mut warned_s = f64::INFINITY;
    loop {
        match oldest_s(&source).await {
            Ok(Some(oldest_s)) => {
                let now = Instant::now();
                let applied_s = applied.load(Ordering::Relaxed);
                if let Some((then, oldest_then_s)) = before.replace((now, oldest_s))
                    && applied_s > 0
                    && let Some(left_s) =
                        left_s(applied_s, oldest_then_s, oldest_s, (now - then).as_secs_f64())
                    && left_s < OPLOG_LEFT_S
                    && left_s * WARN_AGAIN < warned_s
                {
                    warned_s = left_s;
                    reporter.warning(
                        "oplog_rolls_over",
                        format!(
                            "in about {left_s:.0} s the source's oplog no longer holds what the \
                             job still has to apply"
                        ),
                        "make the oplog larger (replSetResizeOplog), lift the job's limits, or \
                         write less to the source",
                    );
                }
            }
            Ok(None) => {}
            Err(error) => {
                return reporter.warning(
                    "oplog_unknown",
                    format!("the source's oplog cannot be watched: {error}"),
                    "give the user read on the database local, or watch the oplog's window \
                     yourself (rs.printReplicationInfo())",
                );
            }
        }
        tokio::time::sleep(OPLOG_EVERY).await;
    }
}

/// Seconds until the oldest entry, which moved from `oldest_then_s` to `oldest_s` in `elapsed_s`,
/// reaches `applied_s`; nothing while it does not move.
fn left_s(applied_s: u32, oldest_then_s: u32, oldest_s: u32, elapsed_s: f64) -> Option<f64> {
    let moved = f64::from(oldest_s.checked_sub(oldest_then_s)?);
    if moved <= 0.0 || elapsed_s <= 0.0 {
        return None;
    }
    let slack = f64::from(applied_s) - f64::from(oldest_s);
    Some((slack / (moved / elapsed_s)).max(0.0))
}

/// The second of the oldest entry of the source's oplog.
async fn oldest_s(source: &Endpoint) -> Result<Option<u32>> {
    let command = doc! {
        "find": "oplog.rs", "sort": {"$natural": 1}, "limit": 1, "projection": {"ts": 1},
        "singleBatch": true,
    };
    let reply = source.run("local", command).await?;
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let first = batch.ok().and_then(|batch| batch.first()).and_then(Bson::as_document);
    Ok(first.and_then(|entry| entry.get_timestamp("ts").ok()).map(|ts| ts.time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::DateTime;

    #[test]
    fn the_furthest_secondary_is_the_one_that_counts() {
        let member = |name: &str, state: i32, ms: i64| {
            doc! {"name": name, "state": state, "optimeDate": DateTime::from_millis(ms)}
        };
        let status = doc! {"members": [
            member("a", 1, 10_000), member("b", 2, 9_000), member("c", 2, 4_000),
            member("down", 8, 0),
        ]};
        assert_eq!(furthest_behind(&status), Some(("c".into(), 6_000)));
        assert_eq!(furthest_behind(&doc! {"members": [member("a", 1, 1)]}), None);
    }

    #[test]
    fn the_time_left_is_the_slack_over_the_speed_at_which_the_oldest_entry_moves() {
        assert_eq!(left_s(1_000, 100, 120, 10.0), Some(440.0));
        assert_eq!(left_s(1_000, 100, 100, 10.0), None, "the oplog is not full yet");
        assert_eq!(left_s(110, 100, 120, 10.0), Some(0.0), "too late");
    }
}

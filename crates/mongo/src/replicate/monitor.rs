//! Monitors that suspend a job or warn: the lag of the destination's secondaries, the window of the source's oplogs,
//! idle shards of the source, majorities that wait for a member, and clusters that do not reply.
//!
//! All monitors run concurrently with the job, past the router if there is one, and none of them fails the job: a fact
//! that this user may not read is reported once, as a warning.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use imago_job::control::Control;
use imago_job::reporter::Reporter;
use tokio_util::task::AbortOnDropHandle;

use crate::error::Result;
use crate::server::clusters::Clusters;
use crate::server::endpoint::{Endpoint, answer_within};

mod majority;

/// Interval between checks of the lag of the destination's secondaries.
const LAG_EVERY: Duration = Duration::from_secs(1);
/// Interval between the heartbeats of a sharded source: notes in the oplogs of its shards.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// Pause between two pings of a cluster.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for a cluster's reply to a ping.
const PING_MAX: Duration = Duration::from_secs(4);
/// Interval between checks of the source's oplogs.
const OPLOG_EVERY: Duration = Duration::from_secs(10);
/// Further pause before replica sets of the destination that could not be reached are tried again.
const REACH_EVERY: Duration = Duration::from_secs(60);
/// Number of failed attempts to reach the source's replica sets after which their oplogs are not watched.
const REACHED_WITHIN: u32 = 3;
/// Time, in seconds, until an oplog drops the job's next change, below which a warning is possible.
const OPLOG_LEFT_S: u32 = 3_600;
/// The name of the control's gate by which the lag of the destination's secondaries suspends the job.
const GATE: &str = "secondary lag";

/// The source's cluster time up to which all changes are applied, in seconds since 1970; 0 if none is. The job writes
/// it, and the monitor of the source's oplogs reads it.
pub type Applied = Arc<AtomicU32>;

/// Starts all monitors of a job. They run until the returned handles are dropped.
#[must_use]
pub fn watch(
    clusters: &Clusters,
    control: Control,
    reporter: Reporter,
    applied: Applied,
) -> Vec<AbortOnDropHandle<()>> {
    let sides = [
        (clusters.source.clone(), "the source answers"),
        (clusters.destination.clone(), "the destination answers"),
    ];
    let lag = secondaries(clusters.destination.clone(), control.clone(), reporter.clone());
    let heartbeats = heartbeats(clusters.source.clone(), reporter.clone());
    let oplog = oplog(clusters.source.clone(), reporter.clone(), applied);
    let majorities = [
        majority::watch(clusters.source.clone(), "source's majority", control.clone()),
        majority::watch(clusters.destination.clone(), "destination's majority", control.clone()),
    ];
    let [first, second] = majorities.map(tokio::spawn);
    let [of_source, of_destination] =
        sides.map(|(of, gate)| tokio::spawn(silence(of, gate, control.clone(), reporter.clone())));
    let others = [tokio::spawn(lag), tokio::spawn(oplog), tokio::spawn(heartbeats)];
    let all = others.into_iter().chain([of_source, of_destination, first, second]);
    all.map(AbortOnDropHandle::new).collect()
}

/// Suspends the job (by the gate `gate`) and warns while the cluster `of` does not reply: work that waits for the
/// cluster reports nothing.
async fn silence(of: Endpoint, gate: &'static str, control: Control, reporter: Reporter) {
    let (mut heard, mut told) = (Instant::now(), false);
    loop {
        let ping = of.run("admin", doc! {"ping": 1});
        match answer_within(PING_MAX, "asking for a sign of life", ping).await {
            Ok(Ok(_)) => {
                (heard, told) = (Instant::now(), false);
                control.open_gate(gate);
            }
            Ok(Err(error)) | Err(error) => {
                tracing::debug!(%error, "no sign of life");
                let (role, cluster, s) = (of.role(), of.redacted(), heard.elapsed().as_secs());
                let cause = format!("the {role} {cluster} has not answered for {s} s");
                if !std::mem::replace(&mut told, true) {
                    let help =
                        "check its servers and the network; the job continues when it replies";
                    reporter.warning("no_answer", cause.clone(), help);
                }
                control.close_gate(gate, cause);
            }
        }
        tokio::time::sleep(PING_EVERY).await;
    }
}

/// Writes notes into the oplogs of a sharded source periodically, so that its change stream does not wait for idle
/// shards. Ends for a replica set, or if the user lacks the privilege.
async fn heartbeats(source: Endpoint, reporter: Reporter) {
    while source.is_sharded() {
        match source.heartbeat().await {
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
        tokio::time::sleep(HEARTBEAT_EVERY).await;
    }
}

async fn secondaries(destination: Endpoint, control: Control, reporter: Reporter) {
    let (mut warned, mut sets) = (false, Vec::new());
    loop {
        tokio::time::sleep(LAG_EVERY).await;
        let Some(limit_ms) = control.throttle().limits().secondary_lag_ms else {
            control.open_gate(GATE);
            continue;
        };
        match lag_ms(&destination, &mut sets).await {
            Ok(Some((member, behind_ms))) if behind_ms > limit_ms => control.close_gate(
                GATE,
                format!(
                    "{member} is {:.1} s behind, over the limit of {:.1} s",
                    seconds(behind_ms),
                    seconds(limit_ms)
                ),
            ),
            Ok(_) => control.open_gate(GATE),
            Err(error) => {
                control.open_gate(GATE);
                if !std::mem::replace(&mut warned, true) {
                    reporter.warning(
                        "secondary_lag_unknown",
                        format!("the destination's secondaries cannot be watched: {error}"),
                        "the limit on their lag has no effect; give the user the role \
                         clusterMonitor, behind a router on each shard, or limit documents/s instead",
                    );
                }
                if sets.is_empty() {
                    // Shards that do not know the user are not tried again every second.
                    tokio::time::sleep(REACH_EVERY).await;
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "to be read by people")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// The name of a replica set, and the connection to it.
type Set = (String, Endpoint);

/// Connects to the replica sets that hold the documents of the cluster `of`, unless `sets` has them already.
async fn reach(of: &Endpoint, sets: &mut Vec<Set>) -> Result<()> {
    if sets.is_empty() {
        let reached = of.shards().await?.into_iter();
        *sets = reached.map(|(name, set)| Ok((name, set?))).collect::<Result<Vec<Set>>>()?;
    }
    Ok(())
}

/// Returns the name of the destination's secondary with the largest lag, and that lag in ms; `None` if there is no
/// secondary.
async fn lag_ms(destination: &Endpoint, sets: &mut Vec<Set>) -> Result<Option<(String, u64)>> {
    reach(destination, sets).await?;
    let mut worst = None;
    for (_, set) in sets.iter() {
        let status = set.run("admin", doc! {"replSetGetStatus": 1}).await?;
        worst = { worst.into_iter().chain(most_lagging(&status)) }.max_by_key(|(_, ms)| *ms);
    }
    Ok(worst)
}

fn most_lagging(status: &Document) -> Option<(String, u64)> {
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
    let (mut sets, mut unreached) = (Vec::new(), 0);
    let mut trends = BTreeMap::<String, WindowTrend>::new();
    loop {
        match windows(&source, &mut sets).await {
            Ok(windows) => {
                let applied_s = applied.load(Ordering::Relaxed);
                for (set, window) in windows {
                    let trend = trends.entry(set.clone()).or_default();
                    let Some(left_s) = trend.warns(window, applied_s) else { continue };
                    reporter.warning(
                        "oplog_rolls_over",
                        format!(
                            "in about {left_s} s the oplog of {set} no longer holds what the job \
                             still has to apply"
                        ),
                        "make the oplog larger (replSetResizeOplog), lift the job's limits, or \
                         write less to the source",
                    );
                }
            }
            Err(error) if error.is_transient() && unreached < REACHED_WITHIN => {
                unreached += u32::from(sets.is_empty());
                tracing::debug!(%error, "the oplog is looked at again later");
            }
            Err(error) => {
                return reporter.warning(
                    "oplog_unknown",
                    format!("the source's oplog cannot be watched: {error}"),
                    "give the user read on the database local, behind a router on each shard, or \
                     watch the oplog's window yourself (rs.printReplicationInfo())",
                );
            }
        }
        tokio::time::sleep(OPLOG_EVERY).await;
    }
}

/// The window of an oplog: the times of its oldest and its newest entry, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Window {
    oldest_s: u32,
    newest_s: u32,
}

/// The development of the window of one replica set's oplog.
///
/// Once an oplog is full, its oldest entry advances by one second a second, as long as the source is written at the
/// rate of the oplog's content. It advances in steps, since the server drops many entries at once: so the distance
/// between two checks means nothing, and any distance means that the oplog is full.
#[derive(Debug, Default)]
struct WindowTrend {
    /// Time of the oplog's oldest entry at the last check, in seconds since 1970; `None` before the first check.
    oldest_s: Option<u32>,
    /// True once the oplog's oldest entry has advanced: the oplog is full.
    is_full: bool,
    /// The time until changes are dropped, in seconds, at the last warning; `None` if there was none, or the job has
    /// recovered.
    warned_s: Option<u32>,
}

impl WindowTrend {
    /// Returns the time, in seconds, until the changes after `applied_s` (the source's time up to which changes are
    /// applied, in seconds since 1970) are dropped, if that is worth a warning; else `None`. It is if the time is
    /// short, and the job has used up more than half of the oplog's window, which a job that keeps up never does,
    /// even if the oplog is small. It is again once the time left has halved, and after the job had recovered.
    fn warns(&mut self, window: Window, applied_s: u32) -> Option<u32> {
        let before = self.oldest_s.replace(window.oldest_s);
        self.is_full |= before.is_some_and(|before| before < window.oldest_s);
        if !self.is_full || applied_s == 0 {
            return None;
        }
        let left_s = applied_s.saturating_sub(window.oldest_s);
        let whole_s = window.newest_s.saturating_sub(window.oldest_s);
        if left_s > whole_s / 4 * 3 {
            self.warned_s = None;
        }
        let is_new = self.warned_s.is_none_or(|warned_s| left_s < warned_s.div_ceil(2));
        if left_s >= OPLOG_LEFT_S || left_s >= whole_s / 2 || !is_new {
            return None;
        }
        self.warned_s = Some(left_s);
        Some(left_s)
    }
}

/// Returns the windows of the source's oplogs, with the names of the replica sets; empty oplogs are left out.
async fn windows(source: &Endpoint, sets: &mut Vec<Set>) -> Result<Vec<(String, Window)>> {
    reach(source, sets).await?;
    let mut windows = Vec::new();
    for (name, set) in sets.iter() {
        if let Some((oldest_s, newest_s)) = end_s(set, 1).await?.zip(end_s(set, -1).await?) {
            windows.push((name.clone(), Window { oldest_s, newest_s }));
        }
    }
    Ok(windows)
}

/// Returns the time of the oldest (`order` 1) or the newest (`order` -1) entry of a replica set's oplog, in seconds
/// since 1970; `None` if the oplog is empty.
async fn end_s(source: &Endpoint, order: i32) -> Result<Option<u32>> {
    let command = doc! {
        "find": "oplog.rs", "sort": {"$natural": order}, "limit": 1, "projection": {"ts": 1},
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
        assert_eq!(most_lagging(&status), Some(("c".into(), 6_000)));
        assert_eq!(most_lagging(&doc! {"members": [member("a", 1, 1)]}), None);
    }

    /// The warnings for a sequence of looks: oldest, newest, applied.
    fn warned(looks: &[(u32, u32, u32)]) -> Vec<Option<u32>> {
        let mut trend = WindowTrend::default();
        let look = |&(oldest_s, newest_s, applied_s)| {
            trend.warns(Window { oldest_s, newest_s }, applied_s)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn a_job_that_keeps_up_is_not_warned_of_however_short_the_oplog_and_large_its_leaps() {
        let looks = [(100, 160, 159), (130, 170, 169), (175, 180, 179), (179, 190, 186)];
        assert_eq!(warned(&looks), [None; 4]);
    }

    #[test]
    fn an_oplog_that_is_not_full_is_not_warned_of() {
        let looks = [(100, 1_000, 110), (100, 2_000, 110), (100, 3_000, 0)];
        assert_eq!(warned(&looks), [None; 3]);
    }

    #[test]
    fn an_oplog_that_lasts_long_enough_is_not_warned_of() {
        let looks = [(100, 20_000, 5_000), (200, 20_100, 5_000), (1_400, 20_200, 5_001)];
        assert_eq!(warned(&looks), [None, None, None]);
        let looks = [(100, 20_000, 5_000), (1_500, 20_300, 5_000)];
        assert_eq!(warned(&looks), [None, Some(3_500)]);
    }

    #[test]
    fn a_warning_comes_again_when_the_time_left_has_halved_and_after_a_recovery() {
        let looks = [
            (100, 1_100, 500),
            (110, 1_110, 500),
            (250, 1_250, 500),
            (310, 1_310, 500),
            (500, 1_500, 500),
            (510, 1_510, 500),
            (520, 1_520, 1_500),
            (530, 1_530, 900),
        ];
        let expected = [None, Some(390), None, Some(190), Some(0), None, None, Some(370)];
        assert_eq!(warned(&looks), expected);
    }

    #[test]
    fn a_job_that_stands_still_is_warned_of_at_once() {
        assert_eq!(warned(&[(100, 160, 0), (110, 170, 130)]), [None, Some(20)]);
    }
}

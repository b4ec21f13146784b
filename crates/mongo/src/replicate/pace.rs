//! Limits deferrable work to a rate that the clients of a cluster hardly notice.
//!
//! The watch behaves like a client: it repeatedly sends each server a small query for an `_id` that does not exist,
//! and compares the latency of the replies with that during pauses of the bulk, which last half a second of every
//! three. [`imago_plan::pacing::client_latency`] decides the rate. The size of batches follows the rate
//! ([`imago_job::throttle::Throttle::batch_bytes`]), because a large batch delays clients even if it is rare.
//!
//! Without clients there is nothing to spare, and the bulk runs at any speed. Only clusters that have clients are
//! watched: load on a destination without clients is no reason to slow down. Servers count their operations by
//! namespace (`top`): operations in the application's namespaces beyond those that this process has sent
//! ([`Endpoint::finds`]) are clients' ([`imago_plan::pacing::client_latency::clients`]).
//!
//! The watch measures primaries only, and only effects that slow down a reader of one document: not a disk whose syncs
//! take long, and not a secondary.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Document, doc};
use futures_util::future::join_all;
use imago_job::control::Control;
use imago_job::reporter::Reporter;
use imago_plan::pacing::client_latency::clients::{PollResult, Presence};
use imago_plan::pacing::client_latency::{
    BaselineLatencies, Bounds, Pace, SLOWDOWN_PERCENT_DEFAULT,
};
use tokio::sync::watch::Sender;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::error::Result;
use crate::namespace::Namespace;
use crate::namespace::SHADOW_PREFIX;
use crate::server::collection::number;
use crate::server::endpoint::{Endpoint, answer_within};

/// Pace of the bulk while the latency without it is measured, in bytes per second: practically a pause.
const STILL_S: u64 = 1;
/// Initial pace of the bulk once clients are found, in bytes per second.
const FIRST_S: u64 = 2_000_000;
/// Lowest pace of the bulk, in bytes per second, even if clients notice it: the copy must end.
pub(crate) const LEAST_S: u64 = 1_000_000;
/// The range of the bulk's pace, in bytes per second.
const BOUNDS: Bounds = Bounds { least_s: LEAST_S, most_s: 1_000_000_000 };
/// Duration of one measurement of latencies, in which each server is sent a query every [`ASK_EVERY`].
const LOOK: Duration = Duration::from_millis(2_500);
/// Duration of the bulk's pause before each measurement, in which the latency without the bulk is measured.
const STILL: Duration = Duration::from_millis(500);
/// Duration of the first pause of the bulk, when no latency is known yet.
const FIRST_STILL: Duration = Duration::from_secs(3);
/// Duration of the first measurement of latencies. It is short because no deferrable work passes before it ends.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// Interval between the latency queries to one server.
const ASK_EVERY: Duration = Duration::from_millis(40);
/// Time after which operations of the bulk that were in progress at the start of its pause have ended.
const SETTLES: Duration = Duration::from_millis(100);
/// Longest wait for the reply to a query. A server that takes longer is too slow by any measure.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Number of successive measurements without clients after which the cluster counts as having none.
const QUIET_CHECKS: u32 = 2;

/// A watch that sets the pace of deferrable work. When the guard is dropped, the pace is removed.
pub struct PaceGuard {
    pace: Arc<Setter>,
    _task: AbortOnDropHandle<()>,
}

impl PaceGuard {
    /// Waits until the pace of deferrable work is known: if the cluster has no clients, that is after the first
    /// measurement.
    #[crate::boxed]
    pub async fn known(&self) {
        let known = self.pace.is_known.subscribe().wait_for(|is_known| *is_known).await.map(|_| ());
        known.expect("the sender lives as long as `self`");
    }
}

/// Sets the pace of deferrable work until the watch ends, and never after that.
struct Setter {
    control: Control,
    is_over: Mutex<bool>,
    is_known: Sender<bool>,
}

impl Setter {
    fn new(control: Control) -> Self {
        Self { control, is_over: Mutex::new(false), is_known: Sender::new(false) }
    }

    fn set(&self, bytes_s: Option<u64>) {
        let is_over = self.is_over.lock().expect("no holder panics");
        if !*is_over {
            self.control.throttle().set_pace(bytes_s);
        }
        if bytes_s != Some(STILL_S) {
            self.is_known.send_replace(true);
        }
    }
}

impl Drop for PaceGuard {
    fn drop(&mut self) {
        let mut is_over = self.pace.is_over.lock().expect("no holder panics");
        *is_over = true;
        self.pace.control.throttle().set_pace(None);
    }
}

/// A cluster whose clients are spared, and its collections that the job uses.
#[derive(Clone, Debug)]
pub struct SparedCluster {
    /// The connection to the cluster, by which its servers are found.
    pub cluster: Endpoint,
    /// Collections that the job reads in the cluster. `reads` or `writes` must have at least one.
    pub reads: Vec<Namespace>,
    /// Collections of the cluster that only the job uses, so that operations on them are not clients'.
    pub writes: Vec<Namespace>,
}

impl SparedCluster {
    /// Returns the entry for a cluster from which only the collection `ns` is read.
    #[must_use]
    pub fn of(cluster: Endpoint, ns: Namespace) -> Self {
        Self { cluster, reads: vec![ns], writes: Vec::new() }
    }

    /// Returns the collection in which the latency queries search.
    fn query_namespace(&self) -> &Namespace {
        self.reads.iter().chain(&self.writes).next().expect("a job reads or writes a collection")
    }
}

/// Watches the servers of these clusters, and sets the pace of deferrable work if the job's limits require it, until
/// the result is dropped. No deferrable work passes until the first measurement ends.
pub fn watch(
    watched: Vec<SparedCluster>,
    control: Control,
    reporter: Option<Reporter>,
) -> PaceGuard {
    let pace = Arc::new(Setter::new(control.clone()));
    if control.throttle().limits().is_paced {
        pace.set(Some(STILL_S));
    }
    let setter = Arc::clone(&pace);
    let watch = async move {
        let mut clusters = Vec::new();
        for watched in watched {
            clusters.push(Cluster::reach(watched).await);
        }
        clusters.retain(|cluster| !cluster.servers.is_empty());
        if clusters.is_empty()
            && let Some(reporter) = &reporter
        {
            reporter.warning(
                "clients_unwatched",
                "no server can be queried as this user, so the latency of clients is unknown",
                "the bulk goes at any speed: give this machine and user access to the shards, or \
                 limit it by --mb-s",
            );
        }
        Watch { clusters, control, pace: setter, reporter, is_paced: None }.run().await;
    };
    PaceGuard { pace, _task: AbortOnDropHandle::new(tokio::spawn(watch)) }
}

struct Watch {
    clusters: Vec<Cluster>,
    control: Control,
    pace: Arc<Setter>,
    reporter: Option<Reporter>,
    /// The state that was reported last: true if the bulk is paced; `None` before the first report.
    is_paced: Option<bool>,
}

impl Watch {
    async fn run(mut self) {
        // The pace, and the latencies without the bulk, while there are clients.
        let mut sparing: Option<(Pace, BaselineLatencies)> = None;
        let mut lasts = FIRST_LOOK;
        // The first count is the baseline: operations before it do not count.
        self.detect_clients().await;
        self.clusters.iter_mut().for_each(|cluster| cluster.quiet = QUIET_CHECKS);
        loop {
            if !self.control.throttle().limits().is_paced || self.clusters.is_empty() {
                sparing = None;
                self.pace.set(None);
                tokio::time::sleep(LOOK).await;
                continue;
            }
            if let Some((pace, still)) = &mut sparing {
                self.pace.set(Some(STILL_S));
                tokio::time::sleep(SETTLES).await;
                let lasts = if still.is_empty() { FIRST_STILL } else { STILL };
                still.add(&self.ask(lasts).await);
                self.pace.set(Some(pace.rate_s()));
            }
            let lasts = std::mem::replace(&mut lasts, LOOK);
            let with_us = self.ask(lasts).await;
            let before = self.spared();
            self.detect_clients().await;
            if self.spared() != before {
                // Latencies of another set of clusters are not comparable.
                sparing = None;
            }
            self.report_pacing(self.spared().contains(&true));
            if !self.spared().contains(&true) {
                sparing = None;
                self.pace.set(None);
                continue;
            }
            let (pace, still) = sparing
                .get_or_insert_with(|| (Pace::new(FIRST_S, BOUNDS), BaselineLatencies::default()));
            if let Some(seen) = still.compare(&with_us) {
                let limits = self.control.throttle().limits();
                *pace =
                    pace.after(seen, limits.slowdown_percent.unwrap_or(SLOWDOWN_PERCENT_DEFAULT));
                tracing::debug!(?seen, rate_s = pace.rate_s(), "pace");
            }
        }
    }

    /// Returns, for each cluster, true if its clients are spared.
    fn spared(&self) -> Vec<bool> {
        self.clusters.iter().map(Cluster::is_spared).collect()
    }

    async fn detect_clients(&mut self) {
        join_all(self.clusters.iter_mut().map(Cluster::detect_clients)).await;
    }

    /// Queries the servers of the clusters whose clients are spared for the time `lasts`, and returns the latencies
    /// in µs.
    async fn ask(&mut self, lasts: Duration) -> Vec<u64> {
        let spared = self.clusters.iter_mut().filter(|cluster| cluster.is_spared());
        let servers: Vec<&mut Server> = spared.flat_map(|cluster| &mut cluster.servers).collect();
        if servers.is_empty() {
            tokio::time::sleep(lasts).await;
        }
        let apart = ASK_EVERY / u32::try_from(servers.len().max(1)).expect("few servers");
        let looks = servers.into_iter().zip(0..).map(|(server, n)| async move {
            // Queries to all servers at once would be noticed by clients, and would affect each other.
            tokio::time::sleep(apart * n).await;
            server.measure(lasts).await
        });
        join_all(looks).await.concat()
    }

    fn report_pacing(&mut self, is_paced: bool) {
        if self.is_paced.replace(is_paced) == Some(is_paced) {
            return;
        }
        let Some(reporter) = &self.reporter else { return };
        if is_paced {
            reporter.decision(
                "the bulk goes at a pace that clients hardly notice",
                "the cluster's clients are active; `--pace full` ignores them",
            );
        } else {
            reporter.decision("the bulk goes at any speed", "no client of the cluster is active");
        }
    }
}

/// A cluster whose clients are watched.
struct Cluster {
    servers: Vec<Server>,
    /// Number of successive checks that found no client in the cluster.
    quiet: u32,
}

struct Server {
    endpoint: Endpoint,
    watched: Arc<SparedCluster>,
    /// The server's counts at the last successful check; `None` before the first one, or after the server refused
    /// them.
    seen: Option<CountSnapshot>,
    /// Number of latency queries that this watch has sent to the server.
    queries_sent: u64,
    presence: Presence,
}

/// The operation counts of a server at one time.
#[derive(Clone, Copy, Debug)]
struct CountSnapshot {
    counted: OperationCounts,
    queries_sent: u64,
    /// Number of finds that this process had sent to the cluster before the server was asked for its counts.
    finds: u64,
    at: Instant,
}

/// Numbers of operations that a server has executed since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OperationCounts {
    /// Number of reads of the collections that the job reads.
    reads: u64,
    /// Number of all other operations in applications' collections, except those that only the job uses.
    others: u64,
}

impl Cluster {
    async fn reach(watched: SparedCluster) -> Self {
        let watched = Arc::new(watched);
        let reached = match watched.cluster.shards().await {
            Ok(reached) => reached,
            Err(error) => {
                tracing::warn!(%error, "clients are not watched");
                Vec::new()
            }
        };
        let mut servers = Vec::new();
        for (name, shard) in reached {
            match shard {
                Ok(endpoint) => {
                    let watched = Arc::clone(&watched);
                    let (seen, presence) = (None, Presence::default());
                    servers.push(Server { endpoint, watched, seen, queries_sent: 0, presence });
                }
                Err(error) => tracing::warn!(name, %error, "its clients are not watched"),
            }
        }
        Self { servers, quiet: QUIET_CHECKS }
    }

    fn is_spared(&self) -> bool {
        self.quiet < QUIET_CHECKS
    }

    /// Records whether the cluster's servers had clients since the last call.
    async fn detect_clients(&mut self) {
        let has_clients = join_all(self.servers.iter_mut().map(Server::has_clients)).await;
        let is_quiet = !has_clients.contains(&true);
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
    }
}

impl Server {
    /// Queries the server every [`ASK_EVERY`] for the time `lasts`, and returns the latencies in µs.
    async fn measure(&mut self, lasts: Duration) -> Vec<u64> {
        let began = Instant::now();
        let mut answers_us = Vec::new();
        while began.elapsed() < lasts {
            let next = Instant::now() + ASK_EVERY;
            answers_us.push(self.ask().await);
            tokio::time::sleep_until(next).await;
        }
        answers_us
    }

    /// Returns true if the server had clients since the last call, according to its operation counts.
    async fn has_clients(&mut self) -> bool {
        let look = self.count_since().await;
        tracing::debug!(at = self.endpoint.redacted(), ?look, "operations");
        self.presence = self.presence.after(look);
        self.presence.has_clients()
    }

    async fn count_since(&mut self) -> PollResult {
        let finds = self.endpoint.finds();
        let now = match self.count().await {
            Ok(counted) => CountSnapshot {
                counted,
                queries_sent: self.queries_sent,
                finds,
                at: Instant::now(),
            },
            // The baseline stays: the next reply covers this time too.
            Err(error) if error.is_transient() => return PollResult::Silent,
            Err(error) => {
                tracing::debug!(%error, "a server does not say what clients do");
                self.seen = None;
                return PollResult::Refused;
            }
        };
        let Some(before) = self.seen.replace(now) else { return PollResult::First };
        // Own operations in progress at either time count towards this period.
        let own = now.queries_sent - before.queries_sent + self.endpoint.finds() - before.finds;
        let reads = now.counted.reads.saturating_sub(before.counted.reads).saturating_sub(own);
        let others = now.counted.others.saturating_sub(before.counted.others);
        let ms = u64::try_from(now.at.duration_since(before.at).as_millis()).unwrap_or(u64::MAX);
        PollResult::Counted { reads, others, ms }
    }

    /// Sends one query for an absent `_id`, and returns the latency of its reply, in µs; [`ANSWER_MAX`] without a
    /// reply.
    async fn ask(&mut self) -> u64 {
        let absent = doc! {"_id": {"imago": "absent"}};
        let ns = self.watched.query_namespace();
        let find = doc! {
            "find": &ns.coll, "filter": absent, "limit": 1, "singleBatch": true,
        };
        let began = Instant::now();
        self.queries_sent += 1;
        let answer = answer_within(ANSWER_MAX, "asking", self.endpoint.run(&ns.db, find));
        // A missing reply counts as one after the longest wait.
        let is_answered = matches!(answer.await, Ok(Ok(_)));
        let took = if is_answered { began.elapsed() } else { ANSWER_MAX };
        u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
    }

    async fn count(&self) -> Result<OperationCounts> {
        let top = self.endpoint.run("admin", doc! {"top": 1});
        let top = answer_within(ANSWER_MAX, "asking for operations", top).await??;
        Ok(counted(&top, &self.watched.reads, &self.watched.writes))
    }
}

/// Databases in which servers and Imago store their own data: operations there do not count as clients'.
const NOT_CLIENTS: [&str; 4] = ["admin", "config", "local", "imago"];

fn counted(top: &Document, reads: &[Namespace], writes: &[Namespace]) -> OperationCounts {
    let mut counted = OperationCounts::default();
    let totals = top.get_document("totals").ok();
    for (name, entry) in totals.into_iter().flatten() {
        let (Some((db, coll)), Some(entry)) = (name.split_once('.'), entry.as_document()) else {
            continue;
        };
        let is = |ns: &Namespace| ns.db == db && ns.coll == coll;
        if NOT_CLIENTS.contains(&db) || coll.starts_with(SHADOW_PREFIX) || writes.iter().any(is) {
            continue;
        }
        let of = |kind| entry.get_document(kind).map_or(0, |kind| number(kind, "count"));
        let writes = of("insert") + of("update") + of("remove");
        if reads.iter().any(is) {
            counted.reads += of("queries");
            counted.others += writes;
        } else {
            counted.others += writes + of("queries");
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn nothing_is_paced_once_the_watch_is_over() {
        let control = Control::default();
        let pace = Arc::new(Setter::new(control.clone()));
        let task = AbortOnDropHandle::new(tokio::spawn(std::future::pending()));
        let watching = PaceGuard { pace: Arc::clone(&pace), _task: task };
        pace.set(Some(STILL_S));
        assert!(control.throttle().is_paced());
        assert!(watching.known().now_or_never().is_none(), "it stands still to learn the pace");
        pace.set(None);
        assert!(watching.known().now_or_never().is_some());
        drop(watching);
        assert!(!control.throttle().is_paced());
        pace.set(Some(STILL_S));
        assert!(!control.throttle().is_paced());
    }

    #[test]
    fn only_what_clients_do_counts() {
        let entry = |n: i32| doc! {"queries": {"count": n}, "insert": {"count": 10 * n}};
        let top = doc! {"totals": {
            "note": "all times in microseconds",
            "shop.reviews": entry(1), "shop.imago.shadow.1": entry(2), "shop.carts": entry(3),
            "local.oplog.rs": entry(4), "config.chunks": entry(5), "imago.jobs": entry(6),
        }};
        let read: Namespace = "shop.reviews".parse().unwrap();
        let written: Namespace = "shop.carts".parse().unwrap();
        let of = |writes| counted(&top, std::slice::from_ref(&read), writes);
        assert_eq!(of(&[]), OperationCounts { reads: 1, others: 10 + 33 });
        assert_eq!(of(&[written]), OperationCounts { reads: 1, others: 10 });
    }
}

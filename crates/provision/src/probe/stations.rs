//! The processor time that each station (client, cache, router, shards) has used so far, as the station reports it.
//!
//! Database servers and the router report their processor time in `serverStatus` (`extra_info`, from getrusage),
//! Redis in `INFO cpu`; this process reads its own CPU clock.

use std::ops::Sub;
use std::time::Instant;

use bson::{Document, doc};
use rustix::time::{ClockId, clock_gettime};

use super::Error;
use super::cluster::{Cluster, Member, number};
use super::scratch::Scratch;

/// A reading of the stations' processor times at one moment.
#[derive(Debug, Clone)]
pub(super) struct Used {
    /// The moment of the reading, on this machine's monotonic clock.
    at: Instant,
    /// Processor time that each station has used since its process started, in seconds.
    pub(super) times: Times,
}

/// Processor times of the stations, in seconds: totals since the start of each process, or differences of such
/// totals.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Times {
    /// Processor time of this process, the client, in seconds.
    pub(super) client_s: f64,
    /// Processor time of the cache's server, in seconds; `None` without a cache.
    pub(super) cache_s: Option<f64>,
    /// Processor time of the router, in seconds; `None` without a router.
    pub(super) router_s: Option<f64>,
    /// Processor time of all members of all shards together, in seconds.
    pub(super) shards_s: f64,
}

impl Sub for Times {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let less = |one: Option<f64>, other: Option<f64>| Some(one? - other?);
        Self {
            client_s: self.client_s - other.client_s,
            cache_s: less(self.cache_s, other.cache_s),
            router_s: less(self.router_s, other.router_s),
            shards_s: self.shards_s - other.shards_s,
        }
    }
}

impl Times {
    /// Returns these times multiplied by the factor `by`.
    pub(super) fn scaled(self, by: f64) -> Self {
        Self {
            client_s: self.client_s * by,
            cache_s: self.cache_s.map(|time| time * by),
            router_s: self.router_s.map(|time| time * by),
            shards_s: self.shards_s * by,
        }
    }
}

impl Used {
    /// Reads the processor times of all stations; `cache` is `None` if there is no cache.
    pub(super) async fn now(cluster: &Cluster, cache: Option<&Scratch>) -> Result<Self, Error> {
        let mut times = Times::default();
        if let Some(cache) = cache {
            times.cache_s = Some(cache.processor_s().await?);
        }
        if cluster.has_router {
            let status = cluster.ask(status(), "its processor time").await?;
            times.router_s = Some(processor_s("the router", &status)?);
        }
        let asked = cluster.members().map(processor_of);
        times.shards_s = futures_util::future::try_join_all(asked).await?.iter().sum();
        times.client_s = own_s();
        Ok(Self { at: Instant::now(), times })
    }

    /// Returns the time since the reading `earlier`, in seconds, and the processor time that each station has used
    /// since then.
    pub(super) fn since(&self, earlier: &Self) -> (f64, Times) {
        (self.at.duration_since(earlier.at).as_secs_f64(), self.times - earlier.times)
    }
}

/// Returns the processor time that this process has used since its start, in seconds.
pub(super) fn own_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the processor time that a database server has used since its start, in seconds.
pub(super) async fn processor_of(member: &Member) -> Result<f64, Error> {
    let status = member.ask(status(), "its processor time").await?;
    processor_s(&member.address, &status)
}

/// Returns a command `serverStatus` that leaves out the most expensive sections of the reply.
fn status() -> Document {
    doc! {
        "serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0, "wiredTiger": 0, "tcmalloc": 0,
        "transactions": 0, "sharding": 0, "opLatencies": 0, "flowControl": 0, "network": 0,
    }
}

/// Returns the sum of user and system time in a reply of `serverStatus`, in seconds; `server` names the server in an
/// error.
fn processor_s(server: &str, status: &Document) -> Result<f64, Error> {
    let part = |field: &str| number(status, &["extra_info", field]);
    let sum = part("user_time_us").and_then(|user| Some(user + part("system_time_us")?));
    let unsaid = || Error::MissingValue {
        server: server.into(),
        what: "its processor time (extra_info)".into(),
    };
    Ok(sum.ok_or_else(unsaid)? / 1e6)
}

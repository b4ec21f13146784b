//! The processor time that each station has used so far, as it says itself.
//!
//! Database servers and the router say it in `serverStatus` (`extra_info`, by getrusage), Redis in `INFO cpu`, this
//! process by its clock.

use std::ops::Sub;
use std::time::Instant;

use bson::{Document, doc};
use rustix::time::{ClockId, clock_gettime};

use super::Error;
use super::cluster::{Cluster, Member, number};
use super::scratch::Scratch;

/// Processor times at one moment, in seconds.
#[derive(Debug, Clone)]
pub(super) struct Used {
    at: Instant,
    pub(super) times: Times,
}

/// Processor times of the stations, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Times {
    pub(super) client_s: f64,
    pub(super) cache_s: Option<f64>,
    pub(super) router_s: Option<f64>,
    /// Of all members of all shards.
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
    /// These times so many times over.
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
    /// Asks all stations.
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

    /// The time since an earlier moment, in seconds, and what was used in it.
    pub(super) fn since(&self, earlier: &Self) -> (f64, Times) {
        (self.at.duration_since(earlier.at).as_secs_f64(), self.times - earlier.times)
    }
}

/// The processor time of this process.
pub(super) fn own_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The processor time of a member.
pub(super) async fn processor_of(member: &Member) -> Result<f64, Error> {
    let status = member.ask(status(), "its processor time").await?;
    processor_s(&member.address, &status)
}

/// serverStatus without the sections that cost it most.
fn status() -> Document {
    doc! {
        "serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0, "wiredTiger": 0, "tcmalloc": 0,
        "transactions": 0, "sharding": 0, "opLatencies": 0, "flowControl": 0, "network": 0,
    }
}

fn processor_s(server: &str, status: &Document) -> Result<f64, Error> {
    let part = |field: &str| number(status, &["extra_info", field]);
    let sum = part("user_time_us").and_then(|user| Some(user + part("system_time_us")?));
    let unsaid =
        || Error::Unsaid { server: server.into(), what: "its processor time (extra_info)".into() };
    Ok(sum.ok_or_else(unsaid)? / 1e6)
}

//! Round trips to idle servers. A round trip is the median of consecutive pings; its wait is the median without the
//! processor time of both sides.

use std::time::Instant;

use bson::doc;

use super::Error;
use super::cluster::{Cluster, Member};
use super::result::RoundTrip;
use super::scratch::Scratch;
use super::stations::{Used, own_s, processor_of};

/// Number of pings whose time is measured for one round trip.
const PINGS: usize = 300;
/// Number of pings before the measured ones; the first of them opens the connection.
const FIRST: usize = 20;

/// Measures the round trip from this process to a member of a shard.
pub(super) async fn to_member(member: &Member) -> Result<RoundTrip, Error> {
    let ping = async || member.ask(doc! { "ping": 1 }, "a sign of life").await.map(drop);
    let used = async || Ok(own_s() + processor_of(member).await?);
    measure(ping, used).await
}

/// Measures the round trip from this process to the router.
pub(super) async fn to_router(cluster: &Cluster) -> Result<RoundTrip, Error> {
    let ping = async || cluster.ask(doc! { "ping": 1 }, "a sign of life").await.map(drop);
    // The testbed's router may ask a shard for a ping; the shards' processor time is then part of the round trip.
    let used = async || {
        let times = Used::now(cluster, None).await?.times;
        Ok(times.client_s + times.router_s.unwrap_or(0.0) + times.shards_s)
    };
    measure(ping, used).await
}

/// Measures the round trip from this process to the cache.
pub(super) async fn to_cache(cache: &Scratch) -> Result<RoundTrip, Error> {
    let ping = async || cache.ping().await;
    let used = async || Ok(own_s() + cache.processor_s().await?);
    measure(ping, used).await
}

/// Measures the round trip of `ping`; `used` returns the processor time of both sides so far, in seconds.
async fn measure(
    ping: impl AsyncFn() -> Result<(), Error>,
    used: impl AsyncFn() -> Result<f64, Error>,
) -> Result<RoundTrip, Error> {
    for _ in 0..FIRST {
        ping().await?;
    }
    let before_s = used().await?;
    let mut times_s = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begun = Instant::now();
        ping().await?;
        times_s.push(begun.elapsed().as_secs_f64());
    }
    let used_s = (used().await? - before_s) / PINGS as f64;
    times_s.sort_by(f64::total_cmp);
    let quantile = |share: f64| times_s[(share * (PINGS - 1) as f64) as usize];
    let ping_s = quantile(0.5);
    // The standard error of a median, with the deviation taken from the quartiles, as of a normal distribution.
    let deviation_s = (quantile(0.75) - quantile(0.25)) / 1.349;
    let error_s = 1.2533 * deviation_s / (PINGS as f64).sqrt();
    Ok(RoundTrip {
        ping_s,
        wait_s: (ping_s - used_s).max(0.0),
        relative_error: if ping_s > 0.0 { error_s / ping_s } else { 0.0 },
    })
}

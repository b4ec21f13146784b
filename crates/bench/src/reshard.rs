//! Changing a shard key: Imago, the exact optimum of what has to move, and the server's own
//! `reshardCollection`, with its floor of five minutes and without; and what clients notice.
//!
//! Both begin with the same documents on the same shards, by a new collection each time. What moved
//! is not taken from either side's own report: every shard is asked which documents it holds, before and
//! afterwards. The optimum is that of all documents, not of a sample, for the chunks of the plan.
//!
//! The clients' part is measured by loads of their own: one at a rate at which an interval without
//! a success is the cut-over's and not the load's, through several changes of the key there and
//! back; and one at a rate that leaves the servers room, for latencies before and during.

use std::collections::BTreeMap;

use imago_mongo::reshard::plan::{Placing, Plan};
use imago_workload::review::Reviews;
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::sharded_cluster::places::Places;
use crate::sharded_cluster::{Cut, KEYS, Shape, ShardedCluster};
use crate::statistics::{Figure, medians};
use crate::subject::Commands;

mod clients;
mod native;

/// The cache of each server: a quarter of what it would take by itself on a machine with 24 GB, and
/// enough that a server does not write out its cache all the time, which clients feel too.
const CACHE_MB: u32 = 3_072;

pub use clients::{Clients, InPhase, Noticed};

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Documents.
    pub documents: u64,
    /// The size of one as stored.
    pub size_bytes: u32,
    /// Shards, of one member each.
    pub shards: u32,
    /// The share of documents whose new key follows from the old one, in reverse order.
    pub correlation: f64,
    /// Runs of both measurements, and of clients beside a change; figures are medians.
    pub runs: u32,
    /// Changes of the key under the clients' load.
    pub cutovers: u32,
    /// Time for which clients are watched before a change, in s.
    pub idle_s: u64,
    /// Rates of the clients' loads, in percent of the rates that the figures are for.
    pub rate_percent: u32,
    /// True if the server is also measured once with its settings as shipped: five minutes and more.
    pub as_shipped: bool,
}

/// The measurements; seconds are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Planning, copying, comparing every document and the cut-over, by two processes.
    pub imago_s: f64,
    /// The server's own, as shipped.
    pub native_s: Option<f64>,
    /// The server's own without its floor. It compares no documents.
    pub native_no_floor_s: f64,
    /// Imago's time, of the server's without its floor.
    pub ratio_to_native_no_floor: f64,
    /// Bytes of documents that Imago moved to another shard.
    pub moved_bytes: u64,
    /// The least that can be moved to where the plan's chunks are evenly spread.
    pub moved_bytes_optimum: u64,
    /// Bytes that the server moved.
    pub moved_bytes_native: u64,
    /// The bytes that the plan predicted to move.
    pub predicted_bytes: u64,
    /// Duration that the plan predicted, in s.
    pub predicted_s: f64,
    /// Duration of the part that the plan predicted, in s: all but planning.
    pub run_s: f64,
    /// Seconds of each phase of that part.
    pub phases: BTreeMap<String, f64>,
    /// The effect on clients.
    #[serde(flatten)]
    pub clients: Clients,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::imago_s`].
    pub imago_s: Figure,
    /// See [`Report::native_no_floor_s`].
    pub native_no_floor_s: Figure,
    /// See [`Report::moved_bytes`].
    pub moved_bytes: Figure,
    /// See [`Report::moved_bytes_native`].
    pub moved_bytes_native: Figure,
}

struct OneRun {
    plan: Plan,
    plan_s: f64,
    run_s: f64,
    phases: Vec<(String, f64)>,
    moved: u64,
    optimum: u64,
    native_s: f64,
    native_moved: u64,
}

/// Measures.
///
/// # Errors
/// Returns an error if the cluster cannot be started, or the work that is measured fails or is wrong.
#[crate::boxed]
pub async fn run(size: Size, commands: &Commands) -> Result<Report> {
    if size.documents < 1_000 || size.runs == 0 || size.shards < 2 {
        return Err(Error::Size(
            "a change of the shard key needs at least 1,000 documents, 2 shards and 1 run".into(),
        ));
    }
    let reviews = Reviews {
        size_bytes: size.size_bytes,
        correlation: size.correlation,
        ..Reviews::default()
    };
    let shape = Shape { shards: size.shards, members: 1, cache_mb: CACHE_MB };
    let cluster = ShardedCluster::start(shape, reviews).await?;
    // The first change finds memory that no server has used yet, and waits until it is cleared: a floor
    // of five minutes hides that.
    cluster.fill(size.documents).await?;
    let native_s = if size.as_shipped {
        Some(native::as_shipped(&cluster).await?)
    } else {
        native::change(&cluster, KEYS[1]).await?;
        None
    };
    let mut runs = Vec::new();
    for _ in 0..size.runs {
        runs.push(one(&cluster, size, commands).await?);
    }
    let clients = clients::measure(&cluster, size, commands).await?;
    let figure = |of: fn(&OneRun) -> f64| Figure::of(runs.iter().map(of));
    let spread = Spread {
        imago_s: figure(|run| run.plan_s + run.run_s),
        native_no_floor_s: figure(|run| run.native_s),
        moved_bytes: figure(|run| run.moved as f64),
        moved_bytes_native: figure(|run| run.native_moved as f64),
    };
    let ratio = figure(|run| (run.plan_s + run.run_s) / run.native_s);
    let whole = |figure: Figure| figure.median.round() as u64;
    Ok(Report {
        header: Header::with_servers("reshard", size, CACHE_MB),
        imago_s: spread.imago_s.median,
        native_s,
        native_no_floor_s: spread.native_no_floor_s.median,
        ratio_to_native_no_floor: ratio.median,
        moved_bytes: whole(spread.moved_bytes),
        moved_bytes_optimum: whole(figure(|run| run.optimum as f64)),
        moved_bytes_native: whole(spread.moved_bytes_native),
        predicted_bytes: whole(figure(|run| run.plan.moved.bytes as f64)),
        predicted_s: figure(|run| run.plan.predicted_s).median,
        run_s: figure(|run| run.run_s).median,
        phases: medians(runs.iter().flat_map(|run| &run.phases)),
        clients,
        spread,
    })
}

async fn one(cluster: &ShardedCluster, size: Size, commands: &Commands) -> Result<OneRun> {
    cluster.fill(size.documents).await?;
    let before = Places::look(cluster).await?;
    let cut = Cut { placing: Placing::Balanced, chunk_mb: None };
    let (plan, plan_s) = cluster.plan(cut, commands).await?;
    let changed = cluster.change(&plan, commands).await?;
    let (run_s, phases) = (changed.wall_s, changed.phases);
    let after = Places::look(cluster).await?;
    let (moved, optimum) = (before.moved(&after)?, before.optimum(&plan)?);

    cluster.fill(size.documents).await?;
    let before = Places::look(cluster).await?;
    let native_s = native::change(cluster, KEYS[1]).await?;
    let after = Places::look(cluster).await?;
    let native_moved = before.moved(&after)?;
    let predicted_s = plan.predicted_s;
    tracing::info!(
        plan_s,
        predicted_s,
        run_s,
        moved,
        optimum,
        native_s,
        native_moved,
        "one change of the key"
    );
    Ok(OneRun { plan, plan_s, run_s, phases, moved, optimum, native_s, native_moved })
}

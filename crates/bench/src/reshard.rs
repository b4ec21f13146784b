//! Benchmark of a change of the shard key: Imago, the exact optimum of the moved bytes, and the server's own
//! `reshardCollection`, with its minimum duration of five minutes and without it; and the effect on clients.
//!
//! Both sides begin with the same documents on the same shards, in a new collection each time. The moved bytes are
//! not taken from the report of either side: every shard is asked for its documents before and after the change. The
//! optimum is computed from all documents, not from a sample, for the chunks of the plan.
//!
//! The effect on clients is measured under two loads of its own. The rate of the busy load is so high that an
//! interval without a success is due to the cut-over and not to the load; under it, the key is changed several times,
//! there and back. The rate of the calm load leaves the servers spare capacity; it is for latencies before and during
//! a change.

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

/// Storage cache of each server, in MiB: a quarter of the default on a machine with 24 GB, and enough that a server
/// does not write out its cache all the time, which clients would notice too.
const CACHE_MB: u32 = 3_072;

pub use clients::{ClientImpact, Clients, PhaseLatencies};

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of documents.
    pub documents: u64,
    /// Size of one document as stored, in bytes.
    pub size_bytes: u32,
    /// Number of shards, of one member each.
    pub shards: u32,
    /// Share of the documents whose new key follows from the old one, in reverse order; from 0 to 1.
    pub correlation: f64,
    /// Number of runs of both changes, and of changes under the calm load; figures are medians.
    pub runs: u32,
    /// Number of changes of the key under the busy load.
    pub cutovers: u32,
    /// Time for which clients are observed before a change, in s.
    pub idle_s: u64,
    /// Rates of the loads of the clients, in percent of the rates that the report names.
    pub rate_percent: u32,
    /// True if the server's own change is also measured once with its default settings, which takes at least five
    /// minutes.
    pub as_shipped: bool,
}

/// The measurements; seconds are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Time of planning, copying, comparing every document and the cut-over, by two processes, in s.
    pub imago_s: f64,
    /// Time of the server's own change with its default settings, in s; absent if it was not measured.
    pub native_s: Option<f64>,
    /// Time of the server's own change without its minimum duration, in s. It compares no documents.
    pub native_no_floor_s: f64,
    /// Time of Imago divided by the time of the server's own change without its minimum duration.
    pub ratio_to_native_no_floor: f64,
    /// Bytes of documents that Imago moved to another shard.
    pub moved_bytes: u64,
    /// Minimum number of bytes that have to move so that the chunks of the plan are evenly spread.
    pub moved_bytes_optimum: u64,
    /// Bytes of documents that the server moved to another shard.
    pub moved_bytes_native: u64,
    /// Bytes that the plan predicted to move.
    pub predicted_bytes: u64,
    /// Duration that the plan predicted, in s.
    pub predicted_s: f64,
    /// Duration of the part to which the prediction applies, in s: everything but planning.
    pub run_s: f64,
    /// Duration of each phase of that part, in s.
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

/// Runs the benchmark and returns its report.
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
    // In the first change the servers wait for memory that they have not used before, until the system has cleared
    // it. The first change is therefore either the one with the minimum duration of five minutes, which hides the
    // wait, or one that is not measured.
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
    let before = Places::snapshot(cluster).await?;
    let cut = Cut { placing: Placing::Balanced, chunk_mb: None };
    let (plan, plan_s) = cluster.plan(cut, commands).await?;
    let changed = cluster.change(&plan, commands).await?;
    let (run_s, phases) = (changed.wall_s, changed.phases);
    let after = Places::snapshot(cluster).await?;
    let (moved, optimum) = (before.moved(&after)?, before.optimum(&plan)?);

    cluster.fill(size.documents).await?;
    let before = Places::snapshot(cluster).await?;
    let native_s = native::change(cluster, KEYS[1]).await?;
    let after = Places::snapshot(cluster).await?;
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

//! `imago demo keys`: a collection with a shard key that its clients never name gets one that suits them: their operations are
//! recorded, keys are judged, the collection is changed under its clients, and what came of it is measured.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use imago_bench::shard_work::ShardWork;
use imago_job::control::Control;
use imago_load::Schema;
use imago_load::mongo::{MongoTarget, preload};
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::advise::{self, Advice, COSTS, ClientEffect, KeyChange, Origin};
use imago_mongo::reshard::plan::{Request, SAMPLE};
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::server::shard::spread_at;
use imago_testbed::{Cluster, ClusterSpec};
use imago_workload::driver::Running;
use imago_workload::history::IdForm;
use imago_workload::review::Reviews;
use serde::Serialize;

use super::load::{Checked, Clock, NAMESPACE, begin_load, check, finish, limits, load_ns, testbed};
use super::reshard::change;
use crate::cmd::process::process;
use crate::cmd::reshard::speed;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Documents in the collection.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    documents: u64,
    /// Operations per second: 40 % reads, 40 % updates, 15 % inserts, 5 % deletes.
    #[arg(long, value_name = "N", default_value_t = 300)]
    rate: u32,
    /// Shards of the cluster.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    shards: u32,
    /// Time for which operations are recorded, before and after the change, in seconds.
    #[arg(long, value_name = "S", default_value_t = 12, value_parser = clap::value_parser!(u64).range(2..=600))]
    record_s: u64,
    /// Time for which the work of the servers is measured, before and after the change, in seconds.
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=600))]
    measure_s: u64,
    /// Speed of the bulk copy, in MB per second; 0 is the speed that clients hardly notice, at which a
    /// small machine may take several minutes.
    #[arg(long, value_name = "N", default_value_t = 20)]
    mb_s: u32,
}

/// The result of the demo: what was advised, what came of it, and the check of the clients' operations.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    checked: Checked,
    old_key: String,
    /// The key that was advised, and is the collection's key now.
    key: String,
    /// Number of keys that were judged, and of operations by which they were judged.
    keys_judged: usize,
    operations_recorded: u64,
    before: ClientEffect,
    predicted: ClientEffect,
    /// The new key by what clients did after the change.
    now: ClientEffect,
    /// Throughput that the busiest shard allows, divided by that with the old key: predicted before the change, with its 90 %
    /// interval, and by the processor time that the busiest shard took for an operation before and after it.
    predicted_ratio: f64,
    predicted_interval: (f64, f64),
    realised_ratio: Option<f64>,
    /// Processor time of the busiest shard for an operation of clients, in µs, without that of idle servers.
    busiest_us_before: f64,
    busiest_us_after: f64,
    reshard_s: f64,
    write_block_ms: Option<u64>,
    total_s: f64,
}

/// The field by which the collection is sharded at first: no operation of clients names it.
const OLD_KEY: &str = "time";
/// Cache size of each server, in MB.
const CACHE_MB: u32 = 1_024;

/// Runs the demo of advice on shard keys and prints its result. Fails if the collection contradicts an acknowledged operation.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let clock = Clock::start();
    clock.say(&format!("starting a real cluster: {} shards", args.shards));
    let spec = ClusterSpec { cache_mb: CACHE_MB, ..ClusterSpec::sharded("demo-keys", args.shards) };
    let servers = Cluster::start(spec.with_auth()).await.map_err(|error| testbed(&error))?;
    let cluster = Endpoint::connect(&servers.admin_uri(), "cluster").await?;
    let ns: Namespace = NAMESPACE.parse()?;
    let schema = Schema { id_form: IdForm::Text, reviews: Reviews::default() };
    spread_by_time(&cluster, &ns, &schema.reviews, args).await?;
    let target = MongoTarget::connect(&servers.uri(), &ns, schema).await?;
    clock.say(&format!("filling {ns}, sharded by {OLD_KEY}, with {} reviews", args.documents));
    preload(&target, args.documents, |_| ()).await?;
    let failed = |error| Failure::from_error(Exit::Failed, "demo", &error);
    let mut work = ShardWork::connect(&servers).await.map_err(failed)?;
    work.rest().await.map_err(failed)?;

    clock
        .say(&format!("application traffic begins: {} operations/s, none by {OLD_KEY}", args.rate));
    let folder = tempfile::tempdir().map_err(|e| Failure::from_error(Exit::Failed, "demo", &e))?;
    let history = folder.path().join("history");
    let load = begin_load(args.documents, args.rate, target, schema, &ns, &history)?;
    let measured = Duration::from_secs(args.measure_s);
    let busiest_before = busiest_us(&work, &ns, &load, measured).await?;
    clock.say(&format!("the busiest shard works {busiest_before:.0} µs for an operation"));
    clock.say(&format!("recording by the shards' profilers for {} s", args.record_s));
    let before = judged(&cluster, &ns, args, Vec::new(), context).await?;
    let advised = before.advised.clone().ok_or_else(|| {
        Failure::new(Exit::Failed, "advice", "no key was advised: none is certainly better")
    })?;
    clock.say(&format!("advised, of {} keys: {advised}", before.keys.len()));

    let began_ns = load_ns(&load);
    let resharding = Instant::now();
    let limits = limits(args.mb_s);
    let request = Request::of_key(ns.clone(), advised);
    let plan = speed::plan(&cluster, &request, limits, context).await?;
    let (job, done) = change(&cluster, &plan, limits, context).await?;
    let reshard_s = resharding.elapsed().as_secs_f64();
    let ended_ns = load_ns(&load);
    clock.say(&format!("{ns} is sharded by {} after {reshard_s:.1} s", plan.key));
    let busiest_after = busiest_us(&work, &ns, &load, measured).await?;
    clock.say(&format!("the busiest shard works {busiest_after:.0} µs for an operation"));
    clock.say(&format!("recording again for {} s", args.record_s));
    let change = KeyChange::of(&cluster, &job).await?;
    let after = judged(&cluster, &ns, args, vec![change.old_key.clone()], context).await?;
    let outcome = change.compared(&before, &after)?;
    let report = finish(load).await?;
    clock.say("traffic ended; checking every acknowledged operation");
    let target = MongoTarget::connect(&servers.uri(), &ns, schema).await?;
    let (verdict, latencies) = check(&history, &target, began_ns, ended_ns).await?;
    let summary = Summary {
        checked: Checked::of(&verdict, &report, &latencies),
        old_key: outcome.old_key,
        key: outcome.key,
        keys_judged: before.keys.len(),
        operations_recorded: before.operations,
        before: outcome.before,
        predicted: outcome.predicted,
        now: outcome.now,
        predicted_ratio: outcome.predicted_ratio,
        predicted_interval: outcome.predicted_interval,
        realised_ratio: Some(busiest_before / busiest_after).filter(|ratio| ratio.is_normal()),
        busiest_us_before: busiest_before,
        busiest_us_after: busiest_after,
        reshard_s,
        write_block_ms: done.write_block_ms,
        total_s: clock.elapsed_s(),
    };
    context.output.result(&summary, in_words)?;
    if verdict.holds() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Differences,
        "differences",
        "the collection contradicts the acknowledged operations",
    ))
}

/// Shards the empty collection by the old key, so that each shard gets an equal share of the documents.
async fn spread_by_time(
    cluster: &Endpoint,
    ns: &Namespace,
    reviews: &Reviews,
    args: &Args,
) -> Result<(), Failure> {
    let keys = 0..args.documents.min(10_000);
    let mut times: Vec<i64> = keys.map(|key| reviews.review(key, key).time).collect();
    times.sort_unstable();
    let cuts = (1..args.shards as usize).map(|n| times[times.len() * n / args.shards as usize]);
    let of = Handle::new(cluster.clone(), ns.clone());
    Ok(spread_at(&of, OLD_KEY, &cuts.collect::<Vec<_>>()).await?)
}

/// Judges keys by what the shards' profilers show.
async fn judged(
    cluster: &Endpoint,
    ns: &Namespace,
    args: &Args,
    keys: Vec<String>,
    context: &Context,
) -> Result<Advice, Failure> {
    let control = Control::new(limits(args.mb_s), context.cancel.clone())
        .map_err(|error| Failure::from_error(Exit::Failed, "limit", &error))?;
    let within = Duration::from_secs(args.record_s);
    let request = advise::Request {
        ns: ns.clone(),
        from: Origin::Profilers { within, rate: None },
        process: process(),
        keys,
        shards: None,
        sample: SAMPLE,
        costs: COSTS,
    };
    Ok(advise::advise(cluster, &request, &control).await?)
}

/// Returns the processor time of the busiest shard for each operation of a time, in µs.
async fn busiest_us(
    work: &ShardWork,
    ns: &Namespace,
    load: &Running<MongoTarget>,
    within: Duration,
) -> Result<f64, Failure> {
    let failed = |error| Failure::from_error(Exit::Failed, "demo", &error);
    let done = || {
        let now = load.control().snapshot();
        now.started - now.in_flight
    };
    let (before, first) = (work.snapshot(ns).await.map_err(failed)?, done());
    tokio::time::sleep(within).await;
    let (after, operations) = (work.snapshot(ns).await.map_err(failed)?, done() - first);
    Ok(work.busiest_us(&before, &after, operations))
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {what:<38} {value}");
    };
    line("key before", summary.old_key.clone());
    line("key that was advised", summary.key.clone());
    let shares = |of: fn(&ClientEffect) -> f64| {
        let [before, predicted, now] =
            [summary.before, summary.predicted, summary.now].map(|effect| 100.0 * of(&effect));
        format!("{before:.1} %, {predicted:.1} %, {now:.1} %")
    };
    line("reads by one shard: before, predicted, now", shares(|effect| effect.reads_by_one));
    line("writes by one shard", shares(|effect| effect.writes_by_one));
    line("busiest shard's part", shares(|effect| effect.busiest));
    let (low, high) = summary.predicted_interval;
    line(
        "throughput it allows, predicted",
        format!("{:.2} × ({low:.2} to {high:.2})", summary.predicted_ratio),
    );
    let realised = summary.realised_ratio.map(|ratio| format!("{ratio:.2} ×"));
    line("realised", realised.unwrap_or_else(|| "too few operations to tell".to_owned()));
    line(
        "its work for an operation",
        format!("{:.0} µs, then {:.0} µs", summary.busiest_us_before, summary.busiest_us_after),
    );
    line("new shape after", format!("{:.1} s", summary.reshard_s));
    line("writes refused for", format!("{} ms", summary.write_block_ms.unwrap_or(0)));
    line("acknowledged writes", summary.checked.acknowledged.to_string());
    line("lost", summary.checked.lost.to_string());
    line("resurrected", summary.checked.resurrected.to_string());
    line("duplicated", summary.checked.duplicated.to_string());
    text
}

//! `imago demo reshard`: the shard key of a busy collection changes under its clients, is verified,
//! and every acknowledged operation is checked.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use imago_job::id::JobId;
use imago_job::record::Limits;
use imago_load::Schema;
use imago_load::mongo::{MongoTarget, preload};
use imago_mongo::copy;
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::plan::{Engine, Plan, Request};
use imago_mongo::reshard::{self, Block, BlockStep, Outcome};
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::server::shard::spread;
use imago_mongo::verify::Mode;
use imago_testbed::{Cluster, ClusterSpec};
use imago_workload::history::IdForm;
use imago_workload::review::Reviews;
use imago_workload::timeline::Tally;
use serde::Serialize;

use super::load::{Checked, Clock, NAMESPACE, begin_load, check, finish, limits, load_ns, testbed};
use crate::cmd::process::process;
use crate::cmd::reshard::speed;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Documents in the collection.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    documents: u64,
    /// Operations per second: 40 % reads, 40 % updates, 15 % inserts, 5 % deletes.
    #[arg(long, value_name = "N", default_value_t = 300)]
    rate: u32,
    /// Shards of the cluster.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    shards: u32,
    /// Members of each shard. Three shards of three members want more than two cores.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    members: u32,
    /// Time for which the load runs before and after, in seconds.
    #[arg(long, value_name = "S", default_value_t = 8)]
    idle_s: u64,
    /// Speed of the bulk copy, in MB per second; 0 is the speed that clients hardly notice, at which a
    /// small machine may take several minutes.
    #[arg(long, value_name = "N", default_value_t = 20)]
    mb_s: u32,
}

/// The result of the demo of a change of shard key: durations, predictions, and the check of the clients' operations.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    checked: Checked,
    /// Number of documents in which the shadow collection differed from the original before the rename. A job that
    /// finds one stops, so the number is 0 in a demo that succeeds.
    different: u64,
    compared: u64,
    chunks: usize,
    predicted_moved_bytes: u64,
    predicted_s: f64,
    reshard_s: f64,
    write_block_ms: Option<u64>,
    drain_ms: Option<u64>,
    rename_ms: Option<u64>,
    /// The steps of the write block with their durations, in order.
    block_steps: Vec<BlockStep>,
    /// Predicted duration of the write block, in ms, and duration of a bare rename before the block
    /// (`bare_rename_ms`); both are `None` if no rename was tried before it.
    predicted_block_ms: Option<u64>,
    bare_rename_ms: Option<u64>,
    reads_succeeded_percent: f64,
    writes_succeeded_percent: f64,
    total_s: f64,
}

/// Cache size of each server, in MB: the collection, its shadow collection and the oplog fit, so that no operation
/// waits for pages to be written.
const CACHE_MB: u32 = 2_048;
const OLD_KEY: &str = "productID";
const NEW_KEY: &str = r#"{"userID": 1}"#;

/// Runs the demo of a change of shard key and prints its result. Fails if the collection contradicts an acknowledged
/// operation.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let clock = Clock::start();
    clock.say(&format!(
        "starting a real cluster: {} shards of {} members",
        args.shards, args.members
    ));
    let servers = start_cluster(args).await?;
    let cluster = Endpoint::connect(&servers.admin_uri(), "cluster").await?;

    let ns: Namespace = NAMESPACE.parse()?;
    let schema = Schema { id_form: IdForm::Text, reviews: Reviews::default() };
    shard(&cluster, &ns, &schema.reviews, args.documents).await?;
    let target = MongoTarget::connect(&servers.uri(), &ns, schema).await?;
    clock.say(&format!("filling {ns}, sharded by {OLD_KEY}, with {} reviews", args.documents));
    preload(&target, args.documents, |_| ()).await?;

    clock.say(&format!("application traffic begins: {} operations/s", args.rate));
    let folder = tempfile::tempdir().map_err(|e| Failure::from_error(Exit::Failed, "demo", &e))?;
    let history = folder.path().join("history");
    let load = begin_load(args.documents, args.rate, target, schema, &ns, &history)?;
    tokio::time::sleep(Duration::from_secs(args.idle_s)).await;
    let began_ns = load_ns(&load);

    let resharding = Instant::now();
    let limits = limits(args.mb_s);
    let plan = speed::plan(&cluster, &request(&ns), limits, context).await?;
    let megabytes = |bytes: u64| bytes / 1_000_000;
    clock.say(&format!(
        "planned: {} chunks by userID, {} of {} MB move between shards",
        plan.chunks.len(),
        megabytes(plan.moved.bytes),
        megabytes(plan.size.bytes)
    ));
    let (_, done) = change(&cluster, &plan, limits, context).await?;
    let reshard_s = resharding.elapsed().as_secs_f64();
    let ended_ns = load_ns(&load);
    clock.say(&format!(
        "{ns} is sharded by userID; writes were refused for {} ms",
        done.write_block_ms.unwrap_or(0)
    ));
    tokio::time::sleep(Duration::from_secs(args.idle_s)).await;
    let report = finish(load).await?;
    clock.say("traffic ended; checking every acknowledged operation");
    let target = MongoTarget::connect(&servers.uri(), &ns, schema).await?;
    let (verdict, latencies) = check(&history, &target, began_ns, ended_ns).await?;
    let summary = Summary {
        checked: Checked::of(&verdict, &report, &latencies),
        different: 0,
        compared: done.verified,
        chunks: plan.chunks.len(),
        predicted_moved_bytes: plan.moved.bytes,
        predicted_s: plan.predicted_s,
        reshard_s,
        write_block_ms: done.write_block_ms,
        drain_ms: done.drain_ms,
        rename_ms: done.rename_ms,
        block_steps: done.block_steps,
        predicted_block_ms: done.predicted_block_ms,
        bare_rename_ms: done.bare_rename_ms,
        reads_succeeded_percent: percent(&report.reads.tally),
        writes_succeeded_percent: percent(&report.writes.tally),
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

async fn start_cluster(args: &Args) -> Result<Cluster, Failure> {
    let spec = ClusterSpec {
        members: args.members,
        cache_mb: CACHE_MB,
        ..ClusterSpec::sharded("demo", args.shards)
    };
    let started = Cluster::start(spec.with_auth()).await;
    started.map_err(|error| testbed(&error))
}

/// Shards the empty collection `ns` by the old key, so that each shard gets an equal share of the `documents`
/// documents.
async fn shard(
    cluster: &Endpoint,
    ns: &Namespace,
    reviews: &Reviews,
    documents: u64,
) -> Result<(), Failure> {
    let keys = (0..documents.min(10_000)).map(|key| reviews.shard_keys(key).0).collect();
    Ok(spread(&Handle::new(cluster.clone(), ns.clone()), OLD_KEY, keys).await?)
}

fn request(ns: &Namespace) -> Request {
    Request { chunks: Some(12), ..Request::of_key(ns.clone(), NEW_KEY.into()) }
}

/// Changes a collection as planned, beside clients; returns the job and its outcome.
pub(super) async fn change(
    cluster: &Endpoint,
    plan: &Plan,
    limits: Limits,
    context: &Context,
) -> Result<(JobId, Outcome), Failure> {
    let options = reshard::Options {
        // Servers and clients share this machine's processors: more workers would not be faster,
        // and would delay clients.
        workers: 1,
        process: process(),
        verify: Some(Mode::Full),
        block: Block::UserWrites,
        block_max: Duration::from_secs(5),
    };
    let id = reshard::create(cluster, plan, Engine::Shadow, limits).await?;
    let clusters = reshard::both_roles(cluster);
    let claim = copy::claim(&clusters, &id, &options.process, context.events(), &context.cancel);
    let run = claim.await?;
    Ok((id, reshard::run(cluster, run, &options).await?))
}

/// Returns the percentage of operations that the database answered, with a document or with the reply that there is
/// none.
fn percent(tally: &Tally) -> f64 {
    let answered = tally.ok + tally.not_found;
    (100_000.0 * answered as f64 / tally.total().max(1) as f64).round() / 1_000.0
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {what:<38} {value}");
    };
    line("documents", summary.checked.documents.to_string());
    line("new shape after", format!("{:.1} s", summary.reshard_s));
    line("compared before it took the name", summary.compared.to_string());
    line("writes refused for", format!("{} ms", summary.write_block_ms.unwrap_or(0)));
    let steps: Vec<String> =
        summary.block_steps.iter().map(|at| format!("{} {}", at.step, at.ms)).collect();
    line("its steps, in ms", steps.join(", "));
    if let (Some(block), Some(bare)) = (summary.predicted_block_ms, summary.bare_rename_ms) {
        line("predicted, with a bare rename of", format!("{block} ms, {bare} ms"));
    }
    line("longest time without a write", format!("{:.0} ms", summary.checked.write_gap_ms_max));
    line("longest time without a read", format!("{:.0} ms", summary.checked.read_gap_ms_max));
    line(
        "reads and writes that succeeded",
        format!(
            "{:.3} %, {:.3} %",
            summary.reads_succeeded_percent, summary.writes_succeeded_percent
        ),
    );
    line(
        "p99 of reads, before and during",
        format!(
            "{:.1} ms, {:.1} ms",
            summary.checked.read_p99_ms_before, summary.checked.read_p99_ms_during
        ),
    );
    line("acknowledged writes", summary.checked.acknowledged.to_string());
    line("lost", summary.checked.lost.to_string());
    line("resurrected", summary.checked.resurrected.to_string());
    line("duplicated", summary.checked.duplicated.to_string());
    text
}

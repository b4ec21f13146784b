//! `imago demo`: a live collection moves between two real clusters on this machine and is verified;
//! its clients are switched over, and every acknowledged operation is checked.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_bench::migration::{self, Operation};
use imago_job::control::Control as Steer;
use imago_job::id::JobId;
use imago_load::Schema;
use imago_load::mongo::{MongoTarget, preload};
use imago_mongo::copy::cutover::{self, Block};
use imago_mongo::copy::preflight::{self, Plan, Request};
use imago_mongo::copy::{self, Clusters};
use imago_mongo::namespace::{Namespace, Selector};
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::{Report, Spec, Unwatched, verify};
use imago_testbed::{Cluster, ClusterSpec, pool};
use imago_workload::history::{Fate, History, IdForm};
use imago_workload::mix::Kind;
use imago_workload::review::Reviews;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::load::{Checked, Clock, NAMESPACE, begin_load, check, finish, limits, load_ns, testbed};
use crate::cmd::copy::{WorkArgs, options};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// A migration to another cluster.
#[derive(Debug, clap::Args)]
pub(super) struct Migration {
    /// Documents in the collection.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    documents: u64,
    /// Operations per second: 40 % reads, 40 % updates, 15 % inserts, 5 % deletes.
    #[arg(long, value_name = "N", default_value_t = 300)]
    rate: u32,
    /// Members of the source, a replica set.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=7))]
    members: u32,
    /// Shards of the destination.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    shards: u32,
    /// Time for which the load runs before and after, in seconds.
    #[arg(long, value_name = "S", default_value_t = 8)]
    idle_s: u64,
    /// Speed of the bulk copy, in MB per second; 0 is the speed that clients hardly notice, at
    /// which a small machine may take several minutes.
    #[arg(long, value_name = "N", default_value_t = 10)]
    mb_s: u32,
    /// Draw throughput and latency of the clients, second by second, into this SVG file.
    #[arg(long, value_name = "FILE", value_parser = svg)]
    picture: Option<PathBuf>,
}

/// Parses the path of an SVG file, which must end in .svg.
fn svg(text: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(text);
    let is_svg = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    if is_svg { Ok(file) } else { Err("the picture is an SVG: end the name in .svg".to_owned()) }
}

/// The result of the demo of a migration: durations, differences, and the check of the clients' operations.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    checked: Checked,
    different: u64,
    compared: u64,
    copy_s: f64,
    verify_s: f64,
    write_block_ms: u64,
    drain_ms: u64,
    /// Ratio of the 99th percentile of read latencies during the copy to that before the copy; `p99_ratio_writes` is
    /// that of write latencies.
    p99_ratio_reads: f64,
    p99_ratio_writes: f64,
    total_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<PathBuf>,
}

/// Runs the demo of a migration and prints its result. Fails if the copy differs or contradicts an acknowledged
/// operation.
pub(super) async fn run(args: &Migration, context: &Context) -> Result<(), Failure> {
    let clock = Clock::start();
    let (old, new) = start_clusters(args, &clock).await?;
    let ns: Namespace = NAMESPACE.parse()?;
    let schema = Schema { id_form: IdForm::Text, reviews: Reviews::default() };
    clock.say(&format!("filling {ns} with {} reviews of about 1 KB", args.documents));
    let source = fill(&old, &ns, schema, args.documents).await?;

    clock.say(&format!("application traffic begins: {} operations/s", args.rate));
    let folder = tempfile::tempdir().map_err(|e| Failure::from_error(Exit::Failed, "demo", &e))?;
    let history = folder.path().join("history");
    let load = begin_load(args.documents, args.rate, source, schema, &ns, &history)?;
    tokio::time::sleep(Duration::from_secs(args.idle_s)).await;
    let copy_began_ns = load_ns(&load);

    let clusters = Clusters {
        source: Endpoint::connect(&old.admin_uri(), "source").await?,
        destination: Endpoint::connect(&new.admin_uri(), "destination").await?,
    };
    let (id, plan) = create_job(&clusters, &ns, args.mb_s).await?;
    clock.say(&format!("copying, as job {id}; the new cluster is sharded by userID"));
    let copying = Instant::now();
    let mut following = Box::pin(follow(&clusters, &id, context));
    wait_caught_up(&clusters, &id, &mut following).await?;
    let copy_s = copying.elapsed().as_secs_f64();
    let copy_ended_ns = load_ns(&load);
    clock.say(&format!(
        "copied and caught up in {copy_s:.1} s; verifying every document, both ways"
    ));

    let target = Arc::new(MongoTarget::connect(&new.uri(), &ns, schema).await?);
    let verifying = Instant::now();
    let report = tokio::select! {
        report = Box::pin(compare(&clusters, &plan)) => report?,
        ended = &mut following => { ended?; return Err(early()); }
    };
    let verify_s = verifying.elapsed().as_secs_f64();
    clock.say(&format!(
        "{} documents compared in {verify_s:.1} s, {} differ; cutting over",
        report.compared,
        report.document_differences()
    ));
    let cutover_began_ns = load_ns(&load);
    let switch = || _ = load.control().switch(Arc::clone(&target));
    let (ended, cut) = tokio::join!(following, Box::pin(cut_over(&clusters, &id, switch, context)));
    ended?;
    let cut = cut?;
    clock.say(&format!(
        "clients are on the new cluster; writes were refused for {} ms",
        cut.write_block_ms
    ));
    let moved_ns = load_ns(&load);
    tokio::time::sleep(Duration::from_secs(args.idle_s)).await;
    let load_report = finish(load).await?;
    clock.say("traffic ended; checking every acknowledged operation against the new cluster");
    let (verdict, latencies) = check(&history, &target, copy_began_ns, copy_ended_ns).await?;
    let moments = [
        (copy_began_ns, "copy"),
        (copy_ended_ns, "verify"),
        (cutover_began_ns, "cut-over"),
        (moved_ns, "moved"),
    ];
    let picture = args.picture.as_deref().map(|file| draw(file, &history, &moments)).transpose()?;
    let summary = Summary {
        different: report.document_differences(),
        compared: report.compared,
        copy_s,
        verify_s,
        write_block_ms: cut.write_block_ms,
        drain_ms: cut.drain_ms,
        p99_ratio_reads: latencies.read_during / latencies.read_before,
        p99_ratio_writes: latencies.write_during / latencies.write_before,
        checked: Checked::of(&verdict, &load_report, &latencies),
        total_s: clock.elapsed_s(),
        picture,
    };
    context.output.result(&summary, in_words)?;
    if verdict.holds() && report.is_clean() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Differences,
        "differences",
        "the copy contradicts the acknowledged operations",
    ))
}

async fn start_clusters(args: &Migration, clock: &Clock) -> Result<(Cluster, Cluster), Failure> {
    clock.say(&format!(
        "starting two real clusters: a replica set of {} and a cluster of {} shards",
        args.members, args.shards
    ));
    let old = ClusterSpec::replica_set("demo-old", args.members).with_auth();
    // In practice clusters have machines of their own: here the new one takes no processor time and
    // no disk bandwidth from the clients of the old one.
    let new = ClusterSpec {
        yields_cpu: true,
        folder: pool::folder(),
        ..ClusterSpec::sharded("demo-new", args.shards).with_auth()
    };
    clock.say(match &new.folder {
        Some(_) => {
            "the old cluster has priority for the processors; the files of the new one are in \
             memory"
        }
        None => "the old cluster has priority for the processors; both share the disk",
    });
    let old = Cluster::start(old).await.map_err(|error| testbed(&error))?;
    let new = Cluster::start(new).await.map_err(|error| testbed(&error))?;
    Ok((old, new))
}

/// Fills the collection `ns` of the old cluster with `documents` documents, and flushes the cluster's files to disk.
async fn fill(
    old: &Cluster,
    ns: &Namespace,
    schema: Schema,
    documents: u64,
) -> Result<MongoTarget, Failure> {
    let source = MongoTarget::connect(&old.uri(), ns, schema).await?;
    preload(&source, documents, |_| ()).await?;
    // The operating system would write them half a minute later, and slow clients down.
    let folder = old.folder().to_owned();
    let written = tokio::task::spawn_blocking(move || {
        rustix::fs::syncfs(std::fs::File::open(folder)?).map_err(std::io::Error::from)
    });
    let written = written.await.map_err(|e| Failure::from_error(Exit::Failed, "demo", &e))?;
    written.map_err(|e| Failure::from_error(Exit::Failed, "demo", &e))?;
    Ok(source)
}

async fn create_job(
    clusters: &Clusters,
    ns: &Namespace,
    mb_s: u32,
) -> Result<(JobId, Plan), Failure> {
    let request = Request {
        selectors: vec![Selector::One { from: ns.clone(), to: ns.clone() }],
        filter: None,
        into_existing: false,
        no_new: false,
        shard_key: Some(r#"{"userID": 1}"#.into()),
    };
    let plan = preflight::plan(&clusters.source, &clusters.destination, &request).await?;
    let id = copy::create(clusters, &plan, limits(mb_s)).await?;
    Ok((id, plan))
}

/// Compares all documents of the collection at both clusters, and returns the report.
async fn compare(clusters: &Clusters, plan: &Plan) -> Result<Report, Failure> {
    let pairs = preflight::pairs(plan, &clusters.source, &clusters.destination);
    let pairs = pairs.await?;
    let pair = &pairs[0].pair;
    let spec = Spec { structure: false, ..Spec::default() };
    let (control, mut watch) = (Steer::default(), Unwatched);
    Ok(verify(&pair.source, &pair.destination, &spec, &control, &mut watch).await?)
}

/// Cuts the job over; `switch` moves the clients to the new cluster and is called under the write block.
async fn cut_over(
    clusters: &Clusters,
    id: &JobId,
    switch: impl FnOnce(),
    context: &Context,
) -> Result<cutover::Outcome, Failure> {
    let options = cutover::Options {
        block: Block::UserWrites,
        reverse: false,
        keep_block: true,
        block_max: Duration::from_secs(30),
        last_changes: 2_000,
        sample: 1_000,
        ignore_new: false,
    };
    let me = format!("{}/cutover", process());
    let cancel = CancellationToken::new();
    let taking = cutover::take_over(clusters, id, &options, &me, context.events(), &cancel);
    let run = taking.await?;
    let hook = async || {
        switch();
        Ok(())
    };
    Ok(cutover::cutover(clusters, run, &me, &options, hook).await?)
}

/// Runs the copy job in this process until another process takes it over.
async fn follow(clusters: &Clusters, id: &JobId, context: &Context) -> Result<(), Failure> {
    let options = options(&WorkArgs::default());
    let led = copy::coordinate(clusters, id, &options, context.events(), &context.cancel);
    Ok(led.await.map(|_| ())?)
}

async fn wait_caught_up(
    clusters: &Clusters,
    id: &JobId,
    following: &mut (impl Future<Output = Result<(), Failure>> + Unpin),
) -> Result<(), Failure> {
    use imago_job::journal::Journal as _;
    let journal = imago_mongo::state::journal::MongoJournal::new(clusters.destination.clone());
    loop {
        let record = journal.load(id).await?;
        if record.progress.is_some_and(|progress| progress.cutover_ready == Some(true)) {
            return Ok(());
        }
        tokio::select! {
            ended = &mut *following => { ended?; return Err(early()); }
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
}

fn early() -> Failure {
    Failure::new(Exit::Failed, "demo", "the copy ended before it was cut over")
}

/// Draws the latencies of clients from the recorded history into the SVG file `file`, with labels at `moments`, in ns
/// since the start of the load. Returns the path of the file.
fn draw(file: &Path, history: &Path, moments: &[(u64, &'static str)]) -> Result<PathBuf, Failure> {
    let mut operations = Vec::new();
    let seconds = |ns: u64| ns as f64 / 1e9;
    History::scan(history, |_, op| {
        operations.push(Operation {
            due_s: seconds(op.intended_ns),
            ended_s: seconds(op.end_ns),
            is_read: op.kind == Kind::Read,
            is_acknowledged: matches!(op.fate, Fate::Acked | Fate::NotFound),
        });
    })
    .map_err(|error| Failure::from_error(Exit::Failed, "history", &error))?;
    let moments: Vec<(f64, &'static str)> =
        moments.iter().map(|&(ns, word)| (seconds(ns), word)).collect();
    migration::draw(file, &operations, &moments)
        .map_err(|error| Failure::from_error(Exit::Failed, "picture", &error))
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {what:<34} {value}");
    };
    line("documents at the new cluster", summary.checked.documents.to_string());
    line("copied in", format!("{:.1} s", summary.copy_s));
    line("compared, both ways", format!("{} in {:.1} s", summary.compared, summary.verify_s));
    line("different", summary.different.to_string());
    line("writes refused at the cut-over for", format!("{} ms", summary.write_block_ms));
    line("longest time without a write", format!("{:.0} ms", summary.checked.write_gap_ms_max));
    line("longest time without a read", format!("{:.0} ms", summary.checked.read_gap_ms_max));
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
    if let Some(file) = &summary.picture {
        line("drawn into", file.display().to_string());
    }
    text
}

//! `imago demo tune`: the clients of three real Cassandra nodes change from writes to scans. The
//! tuner detects this, rolls the cluster to the configuration that serves scans better, and
//! measures the gain. Every acknowledged operation is checked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use imago_load::Schema;
use imago_load::cassandra::{CassandraTarget, preload, show_content};
use imago_plan::tune::judge::Bounds;
use imago_plan::tune::roll::{CostClass, Costs};
use imago_testbed::CassandraSpec;
use imago_tune::cassandra::roll::{Roller, Spec};
use imago_tune::cassandra::tuned::{self, TunedCluster};
use imago_tune::cassandra::{Cassandra, ClusterFile, Consistency};
use imago_tune::configurations::{self, in_order};
use imago_tune::controller::{self, Event, Judged, Request};
use imago_tune::measurements::{CASSANDRA, Measurements};
use imago_workload::check::{Checker, Verdict};
use imago_workload::driver::{self, Arrival, Options, Report, Running};
use imago_workload::history::{Header, History, IdForm, Model, Recorder};
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use serde::Serialize;

use super::load::Clock;
use crate::cmd::cassandra_nodes::with_nodes;
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two configurations are known, by measurements of three such nodes that come with Imago: `uploads` merges data late, and \
writes less; `analysis` merges it early, and reads less. The cluster has the first. When its clients turn to scanning, the \
tuner sees another mix than it expected, plans, and finds that a change pays although it restarts each node. It rolls \
the cluster while clients go on at QUORUM, waits until throughput no longer rises, and compares.

predicted and realised are gains as shares of what the first configuration serves of the same mix; failed_for_availability \
counts operations for which too few replicas were there.

Exit code 3: an acknowledged write is missing, or a reply contradicts the history.

Example: imago demo tune --json")]
pub struct Args {
    /// Seconds in which clients write, before they turn to scanning.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(10..=600))]
    write_seconds: u16,
    /// The longest that all may take from the first client on, in seconds.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(60..=3_600))]
    seconds_max: u16,
    /// Rows of 1 KB.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    documents: u32,
    /// Operations at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    clients: u16,
}

/// The demo's two configurations of Cassandra, as TOML: `uploads` serves writes better, `analysis` serves scans
/// better.
const CONFIGURATIONS: &str = include_str!("../../../../tune/data/cassandra-5.toml");
const NODES: u8 = 3;
const HEAP_MB: u32 = 256;
const TABLE: (&str, &str) = ("shop", "reviews");
/// Length of an interval in which the tuner observes the load; a plan looks [`LOOK_AHEAD`] of them ahead.
const INTERVAL: Duration = Duration::from_secs(5);
const LOOK_AHEAD: usize = 72;
const WRITES: &str = "read=5,update=95";
const SCANS: &str = "read=8,update=2,scan=90";

/// The result of the demo of tuning: the change of configuration, its gain, and the check of the clients' operations.
#[derive(Debug, Serialize)]
struct Summary {
    nodes: u8,
    before: String,
    after: String,
    /// Predicted gain in throughput, as a share of what the first configuration serves of the same mix; `None` if no
    /// change was judged in time.
    predicted: Option<f64>,
    realised: Option<f64>,
    /// Twice the standard error of `realised`; `None` if no change was judged in time.
    noise: Option<f64>,
    changes: u64,
    undone: u64,
    /// Time from the stop of the first node to the return of the last one, in seconds; `None` if no change was made.
    roll_s: Option<f64>,
    operations: u64,
    acknowledged: u64,
    failed_for_availability: u64,
    failed: u64,
    lost: u64,
    stale: u64,
    contradictory: u64,
    total_s: f64,
}

/// Runs the demo of tuning and prints its result. Its Cassandra nodes are removed when it returns, even when it is
/// interrupted.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let clock = Clock::start();
    let folder = tempfile::tempdir().map_err(|cause| {
        Failure::new(Exit::Failed, "folder", "cannot make a temporary folder").because(&cause)
    })?;
    let name = format!("demo-tune-{}", std::process::id());
    let spec = CassandraSpec { racks: NODES, heap_mb: HEAP_MB, ..CassandraSpec::new(&name, NODES) };
    clock.say(&format!("starting {NODES} Cassandra nodes, one after the other"));
    let shown = with_nodes(spec, context, async |file| {
        show(args, file, folder.path(), &clock, context).await
    });
    let summary = Box::pin(shown).await?;
    context.output.result(&summary, in_words)?;
    if summary.lost + summary.stale + summary.contradictory == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Differences,
        "differences",
        "the table contradicts the acknowledged operations",
    ))
}

async fn show(
    args: &Args,
    cluster: &Path,
    folder: &Path,
    clock: &Clock,
    context: &Context,
) -> Result<Summary, Failure> {
    let file = ClusterFile::read(cluster).map_err(|error| cluster_failure(&error))?;
    let documents = u64::from(args.documents);
    let schema = Schema {
        id_form: IdForm::Text,
        reviews: Reviews { size_bytes: 1_000, ..Reviews::default() },
    };
    let connect = || CassandraTarget::connect(&file.uri, TABLE, Consistency::Quorum, schema);
    let target = connect().await.map_err(|error| cluster_failure(&error))?;
    clock.say(&format!("filling {}.{} with {documents} rows", TABLE.0, TABLE.1));
    preload(&target, documents, |_| {}).await.map_err(|error| cluster_failure(&error))?;
    let request = request(args, folder.join("seen.csv"));
    let cluster = tuned_cluster(file.clone(), &request.measurements)?;
    begin_with(&cluster, context).await.map_err(|error| cluster_failure(&error))?;

    let history = folder.join("history");
    let load = load(args, target, schema, &history)?;
    clock.say(&format!("{} clients write; after {} s they scan", args.clients, args.write_seconds));
    let tuned = tune(&cluster, &request, clock, context).await;
    load.control().stop();
    let ended = load.finish().await;
    let (summary, roll_s) = tuned?;
    let (report, _) = ended.map_err(|error| Failure::from_error(Exit::Failed, "load", &error))?;
    clock.say("checking all acknowledged operations");
    let read = History::read(&history)
        .map_err(|error| Failure::from_error(Exit::Failed, "history", &error))?;
    let mut checker = Checker::new(read);
    let target = connect().await.map_err(|error| cluster_failure(&error))?;
    show_content(&target, &mut checker).await.map_err(|error| cluster_failure(&error))?;
    Ok(summed(&request, &summary, roll_s, &report, &checker.finish(), clock))
}

/// Applies the compaction settings of the first configuration to the table. Its other settings are those with which
/// the nodes start.
async fn begin_with(
    cluster: &TunedCluster,
    context: &Context,
) -> imago_tune::cassandra::Result<()> {
    let Some(compaction) = cluster.configurations[0].compaction.clone() else { return Ok(()) };
    let table = format!("{}.{}", TABLE.0, TABLE.1);
    let spec = Spec {
        changes: BTreeMap::new(),
        compaction: BTreeMap::from([(table, compaction)]),
        consistency: cluster.consistency.clone(),
        tolerate: 0,
        is_at_once: false,
        canary_s: 0,
        is_of_controller: false,
    };
    let roller = Roller::connect(cluster.file.clone(), spec).await?;
    let events = imago_job::reporter::Events::default();
    Box::pin(roller.begin(&process(), &events, context.cancel.clone())).await.map(drop)
}

/// Returns the cluster of `file` as the tuner needs it, with the configurations that ship with the program, in the
/// order of `measurements`.
fn tuned_cluster(file: ClusterFile, measurements: &Measurements) -> Result<TunedCluster, Failure> {
    let all =
        configurations::parse::<Cassandra>(CONFIGURATIONS).expect("what is shipped can be read");
    let configurations = in_order(all, measurements).map_err(|error| cluster_failure(&error))?;
    Ok(TunedCluster::new(file, configurations, (TABLE.0.into(), TABLE.1.into())))
}

fn request(args: &Args, trace: PathBuf) -> Request {
    let measurements = Measurements::shipped(CASSANDRA).with_inserts_as_updates();
    let costs = Costs { catch_up: 0.4, ..Costs::guessed(NODES.into()) };
    Request {
        approved: [CostClass::Live, CostClass::Alter, CostClass::Restart].into(),
        changes_max: 1,
        busy_min: 0.0,
        look_ahead: Some(LOOK_AHEAD),
        // Nodes and clients share processors, so the slowest replies are no evidence here.
        bounds: Bounds { slowest: f64::INFINITY, ..Bounds::default() },
        duration: Some(Duration::from_secs(args.seconds_max.into())),
        ..Request::new(measurements, trace, INTERVAL, costs)
    }
}

/// Starts clients that write first and scan later, and records their operations in the file `history`.
fn load(
    args: &Args,
    target: CassandraTarget,
    schema: Schema,
    history: &Path,
) -> Result<Running<CassandraTarget>, Failure> {
    let mix = |text: &str| text.parse::<Mix>().expect("a mix");
    let documents = u64::from(args.documents);
    let header = Header {
        imago_history: Header::VERSION,
        preloaded: documents,
        reviews: schema.reviews,
        id_form: schema.id_form,
        model: Model::Registers,
        reads_are_current: true,
        namespace: format!("{}.{}", TABLE.0, TABLE.1),
        started_unix_ms: imago_job::clock::now_ms(),
    };
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::new(Exit::Failed, "load", "the load cannot start").because(error)
    };
    let recorder = Recorder::file(history, &header).map_err(|error| failed(&error))?;
    let options = Options {
        mix: mix(WRITES),
        turns: vec![(Duration::from_secs(args.write_seconds.into()), mix(SCANS))],
        arrival: Arrival::Closed,
        duration: None,
        in_flight_max: args.clients.into(),
        preloaded: documents,
        reviews: schema.reviews,
        ..Options::default()
    };
    driver::start(options, Arc::new(target), recorder).map_err(|error| failed(&error))
}

/// Runs the tuner until a change of configuration was judged or the time is over. Returns its summary, and the
/// duration of the change in seconds; `None` if there was no change.
async fn tune(
    cluster: &TunedCluster,
    request: &Request,
    clock: &Clock,
    context: &Context,
) -> Result<(controller::Summary, Option<f64>), Failure> {
    let judged = context.cancel.child_token();
    let roll_s = Mutex::new(None);
    let say = |event: &Event| {
        match event {
            // An interval takes five seconds; the important events are decisions.
            Event::Observed { .. } => return,
            Event::Changed { elapsed_s, .. } => {
                *roll_s.lock().unwrap_or_else(PoisonError::into_inner) = Some(*elapsed_s);
            }
            Event::Judged(_) => judged.cancel(),
            _ => {}
        }
        clock.say(&event.to_string());
    };
    let (process, events) = (process(), imago_job::reporter::Events::default());
    let tuned = tuned::run(cluster, request, &process, &events, judged.clone(), &say);
    let summary = Box::pin(tuned).await.map_err(|error| cluster_failure(&error))?;
    let roll_s = *roll_s.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((summary, roll_s))
}

fn summed(
    request: &Request,
    tuned: &controller::Summary,
    roll_s: Option<f64>,
    report: &Report,
    verdict: &Verdict,
    clock: &Clock,
) -> Summary {
    let judged = tuned.judged.first();
    let figure = |of: fn(&Judged) -> Option<f64>| judged.and_then(of);
    let before = request.measurements.names[0].clone();
    let failed = report.reads.tally.failed + report.writes.tally.failed;
    Summary {
        nodes: NODES,
        after: judged.map_or_else(|| before.clone(), |judged| judged.change.to.clone()),
        before,
        predicted: figure(|judged| judged.predicted),
        realised: figure(|judged| judged.realised),
        noise: figure(|judged| judged.noise),
        changes: tuned.changes,
        undone: tuned.undone,
        roll_s,
        operations: report.started,
        acknowledged: verdict.writes_acknowledged,
        failed_for_availability: report.unavailable,
        failed: failed.saturating_sub(report.unavailable),
        lost: verdict.counts.lost,
        stale: verdict.counts.stale,
        contradictory: verdict.counts.contradictory,
        total_s: clock.elapsed_s(),
    }
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {what:<34} {value}");
    };
    line("configuration", format!("{}, then {}", summary.before, summary.after));
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "-".into(), |share| format!("{:+.1} %", share * 100.0))
    };
    line("gain that was predicted", percent(summary.predicted));
    let noise =
        summary.noise.map_or_else(String::new, |noise| format!(" ± {:.1} %", noise * 100.0));
    line("gain that was measured", format!("{}{noise}", percent(summary.realised)));
    line("changes", format!("{}, {} undone", summary.changes, summary.undone));
    let seconds = |s: Option<f64>| s.map_or_else(|| "-".into(), |s| format!("{s:.0} s"));
    line("rolling three nodes took", seconds(summary.roll_s));
    line("operations", summary.operations.to_string());
    line("failed for want of replicas", summary.failed_for_availability.to_string());
    line("failed otherwise", summary.failed.to_string());
    line("acknowledged writes", summary.acknowledged.to_string());
    line("of them lost", summary.lost.to_string());
    line("all in", format!("{:.0} s", summary.total_s));
    text
}

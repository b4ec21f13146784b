//! `imago demo store`: a store of four sites changes its design and loses a site while clients run
//! transactions on it, and every acknowledged transaction is checked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_load::store::{self as load, Load, Measured, Probe};
use imago_store::engine::{LogOptions, Options, Store};
use imago_store::log::Sync;
use imago_store::record::Site;
use imago_store::resp::Settings;
use imago_workload::lists::{CrossCheck, History, Kind, Verdict, check, cross_check};
use serde::Serialize;

use super::load::p99_ms;
use crate::context::Context;
use crate::exit::{Exit, Failure};

mod change;

use change::{Changes, Times};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Clients that run transactions, each on a connection of its own.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
    sessions: u32,
    /// Number of times that each of the five changes of the design is made.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    times: u32,
    /// Time for which the load runs before and after, in seconds.
    #[arg(long, value_name = "S", default_value_t = 4)]
    idle_s: u64,
    /// The seed of the clients' transactions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The result of the demo of a store: the changes of its design, and the check of the clients' transactions.
#[derive(Debug, Serialize)]
struct Summary {
    sites: u16,
    operations: u64,
    acknowledged: u64,
    refused: u64,
    unknown_outcome: u64,
    appends: u64,
    partitions: usize,
    operators: BTreeMap<&'static str, Times>,
    /// Time from the crash of a site until the site took part in the store again, in ms.
    site_down_ms: f64,
    p99_ms_before: f64,
    p99_ms_during: f64,
    latency_ms_max: f64,
    lost: u64,
    anomalies: u64,
    anomaly_names: Vec<String>,
    second_checker: &'static str,
    total_s: f64,
}

const SITES: u16 = 4;
/// Delay of a client after each transaction; `PROBE_EVERY` is the interval between two operations of the probe.
const PAUSE: Duration = Duration::from_millis(1);
const PROBE_EVERY: Duration = Duration::from_millis(4);
/// Maximum time for all design changes together; `BACK_WAIT` is that for the return of a crashed site.
const CHANGES_WAIT: Duration = Duration::from_secs(15);
const BACK_WAIT: Duration = Duration::from_secs(30);

/// Runs the demo of a store and prints its result. Fails if the store contradicts an acknowledged transaction.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let began = Instant::now();
    let say = |what: &str| eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f64());
    let folder = tempfile::tempdir().map_err(|error| failed(&error))?;
    say(&format!("starting a store of {SITES} sites, with its log in {}", folder.path().display()));
    let store = start(folder.path().join("log")).await?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| failed(&error))?;
    let settings = Settings::new(env!("CARGO_PKG_VERSION"), 1);
    let address = store.listen(listener, settings, None).map_err(|error| failed(&error))?;

    say(&format!("{} clients run transactions on lists, over the Redis protocol", args.sessions));
    let options = load::Options { sessions: args.sessions, seed: args.seed, pause: PAUSE };
    let load = Load::start(address, options).map_err(|error| failed(&error))?;
    let probe = Probe::start(address, PROBE_EVERY).map_err(|error| failed(&error))?;
    tokio::time::sleep(Duration::from_secs(args.idle_s)).await;

    let changing = Instant::now();
    say(&format!(
        "changing the design under them: each of the five operators {} times",
        args.times
    ));
    let operators = Changes::new(&store, args.times).make(changing + CHANGES_WAIT).await?;
    let changed = Instant::now();
    let partitions = store.map().design.partitions().count();
    say(&format!("{} done; there are {partitions} partitions", in_a_row(&operators)));

    let site_down_ms = crash(&store, &say).await?;
    tokio::time::sleep(Duration::from_secs(args.idle_s)).await;
    say("traffic ends; checking every reply that the clients received");
    let (verdict, opinion, measured) = judge(load, probe, address).await?;
    _ = tokio::task::spawn_blocking(move || drop(store)).await;

    let latencies = |from: Instant, to: Instant| {
        let within = measured.iter().filter(|one| from <= one.at && one.at < to);
        within.map(|one| u64::try_from(one.latency.as_nanos()).unwrap_or(u64::MAX)).collect()
    };
    let slowest = measured.iter().map(|one| one.latency).max().unwrap_or_default();
    let (second_checker, names) = opinions(&verdict, opinion);
    let summary = Summary {
        sites: SITES,
        operations: verdict.transactions + measured.len() as u64,
        acknowledged: verdict.done + measured.len() as u64,
        refused: verdict.not_done,
        unknown_outcome: verdict.unknown,
        appends: verdict.appends,
        partitions,
        operators,
        site_down_ms,
        p99_ms_before: p99_ms(latencies(began, changing)),
        p99_ms_during: p99_ms(latencies(changing, changed)),
        latency_ms_max: slowest.as_secs_f64() * 1000.0,
        lost: verdict.count(Kind::Lost),
        anomalies: verdict.anomalies(),
        anomaly_names: names,
        second_checker,
        total_s: began.elapsed().as_secs_f64(),
    };
    context.output.result(&summary, in_words)?;
    if verdict.holds() && second_checker == "sound" {
        return Ok(());
    }
    for anomaly in verdict.named.iter().take(3) {
        say(&format!("{}: {}", anomaly.kind.name(), anomaly.why));
    }
    Err(Failure::new(
        Exit::Differences,
        "differences",
        "the store contradicts the acknowledged operations",
    ))
}

async fn start(folder: std::path::PathBuf) -> Result<Arc<Store>, Failure> {
    let segment_bytes = 16 * 1024 * 1024;
    let log = LogOptions::Files { folder, sync: Sync::Always, segment_bytes };
    let options = Options { sites: SITES, log: Some(log) };
    let started = tokio::task::spawn_blocking(move || Store::start(&options)).await;
    let started = started.map_err(|error| failed(&error))?;
    Ok(Arc::new(started.map_err(|error| failed(&error))?))
}

/// Crashes the site that masters the most partitions, and waits until that site takes part again. Returns the time
/// between, in ms.
async fn crash(store: &Store, say: &impl Fn(&str)) -> Result<f64, Failure> {
    let map = store.map();
    let masters = |site: Site| map.design.partitions().filter(|it| it.master == site).count();
    let site = (0..SITES).map(Site).max_by_key(|site| masters(*site)).unwrap_or(Site(0));
    say(&format!("{site} dies, the master of {} partitions", masters(site)));
    let (died, epoch) = (Instant::now(), map.design.epoch(site));
    store.crash(site).await.map_err(|error| failed(&error))?;
    loop {
        let map = store.map();
        if map.design.epoch(site) > epoch && !map.design.is_fenced(site) {
            break;
        }
        if died.elapsed() > BACK_WAIT {
            let message = format!("{site} did not come back within {BACK_WAIT:?}");
            return Err(Failure::new(Exit::Failed, "demo", message));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let down_ms = died.elapsed().as_secs_f64() * 1000.0;
    say(&format!("{site} is back from the log, after {down_ms:.0} ms"));
    Ok(down_ms)
}

async fn judge(
    load: Load,
    probe: Probe,
    address: SocketAddr,
) -> Result<(Verdict, CrossCheck, Vec<Measured>), Failure> {
    let judged = tokio::task::spawn_blocking(move || {
        let measured = probe.finish();
        let (transactions, lists) = load.finish();
        let history = History { transactions, last: lists.read(address)? };
        Ok::<_, load::ClientError>((check(&history), cross_check(&history), measured))
    });
    judged.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

/// Returns the verdict of the second checker (`sound`, `unsound` or `undecided`), and the names of the anomalies that
/// either checker found.
fn opinions(verdict: &Verdict, opinion: CrossCheck) -> (&'static str, Vec<String>) {
    let mut names: Vec<String> = verdict.counts.keys().map(|kind| kind.name().into()).collect();
    let (word, more) = match opinion {
        CrossCheck::Sound => ("sound", Vec::new()),
        CrossCheck::Unsound(more) => ("unsound", more),
        CrossCheck::None(more) => ("undecided", more),
    };
    names.extend(more);
    (word, names)
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::from_error(Exit::Failed, "demo", error)
}

fn in_a_row(operators: &BTreeMap<&'static str, Times>) -> String {
    let each = operators.iter().map(|(name, times)| format!("{} × {name}", times.times));
    each.collect::<Vec<_>>().join(", ")
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {what:<34} {value}");
    };
    for (name, times) in &summary.operators {
        let value = format!("{} times, median {:.1} ms", times.times, times.median_ms);
        line(&name.replace('_', " "), value);
    }
    line("partitions then", summary.partitions.to_string());
    line("a site died, and was back after", format!("{:.0} ms", summary.site_down_ms));
    line(
        "p99 of single keys, before, during",
        format!("{:.1} ms, {:.1} ms", summary.p99_ms_before, summary.p99_ms_during),
    );
    line("slowest in all", format!("{:.0} ms", summary.latency_ms_max));
    line("operations", summary.operations.to_string());
    line("acknowledged", summary.acknowledged.to_string());
    line("without a definite answer", summary.unknown_outcome.to_string());
    line("lost appends", format!("{} of {}", summary.lost, summary.appends));
    line(
        "anomalies",
        match summary.anomaly_names.as_slice() {
            [] => summary.anomalies.to_string(),
            names => format!("{}: {}", summary.anomalies, names.join(", ")),
        },
    );
    line("a second checker says", summary.second_checker.to_owned());
    line("all in", format!("{:.1} s", summary.total_s));
    text
}

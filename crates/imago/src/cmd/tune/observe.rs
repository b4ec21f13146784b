//! `imago tune observe`: counts the operations of a cluster's clients in each interval of time.

use std::path::PathBuf;
use std::time::Duration;

use imago_job::clock;
use imago_mongo::namespace::Namespace;
use imago_tune::cluster::observation::Observation;
use imago_tune::{cassandra, cluster, redis, trace};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::values::duration;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each node counts the operations that it coordinates; Cassandra does not tell inserts from updates, and both count as \
updates. Times are those of the nodes' own tables, in a unit that differs between versions: compare them with each other.

Redis: each node counts the commands that it ran (INFO commandstats); writes count at masters, and all as updates. Times are \
in microseconds, within the server.

Example:
  imago tune observe --cluster cluster.toml --interval 5m --trace seen.csv
  imago tune plan seen.csv --measurements here.csv")]
pub(super) struct Args {
    /// The file that says how the nodes are reached.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// The table to look at, as keyspace.table; without it all tables of clients (Cassandra only).
    #[arg(long, value_name = "TABLE")]
    ns: Option<Namespace>,
    /// Length of an interval.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    interval: Duration,
    /// Intervals to look at; without it until it is interrupted.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// A file that gets each interval, for `imago tune plan`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// The operations of a cluster's clients in one interval, for programs.
#[derive(Serialize)]
struct IntervalReport {
    /// Start of the interval, in seconds since 1970.
    start_s: u64,
    /// Mean rate of operations in the interval, per second.
    rate_s: f64,
    #[serde(flatten)]
    observation: Observation,
}

/// The reader of the operation counters of a cluster's nodes, by database.
enum Observer {
    Cassandra(cassandra::observe::Observer),
    Redis(redis::observe::Observer),
}

impl Observer {
    /// Connects to the nodes of the cluster and reads their counters for the first time.
    async fn begin(args: &Args) -> Result<Self, Failure> {
        let failed = |error| cluster_failure(&error);
        if cluster::file::database(&args.cluster).map_err(failed)? == "redis" {
            if args.ns.is_some() {
                let what = "--ns is for Cassandra: Redis counts by commands alone";
                return Err(Failure::new(Exit::Usage, "usage", what));
            }
            let file = redis::ClusterFile::read(&args.cluster).map_err(failed)?;
            return redis::observe::Observer::begin(&file).await.map(Self::Redis).map_err(failed);
        }
        let file = cassandra::ClusterFile::read(&args.cluster).map_err(failed)?;
        let table = args.ns.as_ref().map(|ns| (ns.db.clone(), ns.coll.clone()));
        let begun = cassandra::observe::Observer::begin(&file, table).await;
        begun.map(Self::Cassandra).map_err(failed)
    }

    /// Reads the counters of all nodes, and returns the difference from the previous reading.
    async fn observe(&mut self) -> Observation {
        match self {
            Self::Cassandra(observer) => observer.observe().await,
            Self::Redis(observer) => observer.observe().await,
        }
    }
}

/// Runs `imago tune observe`: observes `--count` intervals, or until the process is interrupted, and prints each.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let length_s = args.interval.as_secs();
    if length_s == 0 {
        return Err(Failure::new(Exit::Usage, "usage", "--interval must be 1s at least"));
    }
    if let Some(path) = &args.trace {
        trace::require_columns(path)
            .map_err(|error| Failure::from_error(Exit::Usage, "trace", &error))?;
    }
    let mut observer = Observer::begin(&args).await?;
    // Intervals are aligned to multiples of their length, as in every trace. The first one is incomplete, and left out.
    let mut start_s = 0;
    let mut seen = 0;
    while args.count.is_none_or(|count| seen < count) {
        let now_ms = clock::now_ms();
        let length_ms = length_s * 1_000;
        let wait = Duration::from_millis(length_ms - now_ms % length_ms);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = context.cancel.cancelled() => break,
        }
        let observation = observer.observe().await;
        let began_s = std::mem::replace(&mut start_s, (now_ms + length_ms) / length_ms * length_s);
        if began_s == 0 {
            continue;
        }
        if let Some(path) = &args.trace {
            trace::add(path, began_s, observation.operations, observation.record_bytes).map_err(
                |cause| {
                    let what = format!("cannot write {}", path.display());
                    Failure::new(Exit::Failed, "file", what).because(&cause)
                },
            )?;
        }
        seen += 1;
        let rate_s = observation.rate_s();
        context.output.result(&IntervalReport { start_s: began_s, rate_s, observation }, text)?;
    }
    Ok(())
}

/// Formats the observation of an interval as one line of text.
fn text(seen: &IntervalReport) -> String {
    let IntervalReport { start_s, rate_s, observation } = seen;
    let [reads, updates, _, scans] = observation.operations;
    let at = super::plan::moment(*start_s);
    let mut text =
        format!("{at}  {rate_s:>8.0}/s  {reads} reads, {updates} updates, {scans} scans");
    for (node, why) in &observation.missed {
        text += &format!("; no counts from {node}: {why}");
    }
    text + "\n"
}

//! `imago tune sample`: measures the throughput of each configuration of a real database with each mix of operations.

use std::path::PathBuf;
use std::time::Duration;

use imago_load::sample::cassandra::Table;
use imago_load::sample::redis::Records;
use imago_load::sample::{self, Caller, Request, Sample, Sampled};
use imago_mongo::namespace::Namespace;
use imago_tune::cassandra::{Cassandra, Consistency};
use imago_tune::cluster::{self, ClusterFile, Settings};
use imago_tune::configurations;
use imago_tune::redis::Redis;
use imago_workload::mix::Mix;

use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;
use crate::values::{consistency, duration};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On a cluster for tests: Cassandra's nodes are restarted all at once, a Redis master without a replica is restarted, too, and \
the load takes all that there is. Each measurement is a line of the file as soon as it is made; a run that is begun again \
makes those that are missing.

A key of Redis keeps the encoding that it was written with. So its records are deleted and written anew whenever the \
configuration changes, and each measurement has the memory in use then (memory_bytes), and the processor time per operation \
(cpu_us), of all masters. The load may be slower than the server: throughput is then the load's, and cpu_us the server's.

The configurations:

  [[configuration]]
  name = \"writes\"
  settings = { concurrent_writes = 64 }
  compaction = { class = \"UnifiedCompactionStrategy\", scaling_parameters = \"T8\" }

  [[configuration]]
  name = \"reads\"
  settings = { concurrent_reads = 64 }
  compaction = { class = \"UnifiedCompactionStrategy\", scaling_parameters = \"L10\" }

Those of Redis have no compaction: settings = { hash-max-listpack-entries = 512, hash-max-listpack-value = 128 }

Examples:
  imago tune sample --cluster cluster.toml --ns shop.sample --configurations two.toml --out here.csv
  imago tune sample --cluster redis.toml --ns shop.sample --configurations two.toml --documents 20000 --window 1s \
--out here.csv")]
pub(super) struct Args {
    /// The file that says how the nodes are reached.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// The table that is loaded, as keyspace.table; it is made and filled if it is empty. Of Redis what keys begin with, as
    /// db:coll:; records under such keys are deleted and written anew.
    #[arg(long, value_name = "TABLE")]
    ns: Namespace,
    /// The file with the configurations.
    #[arg(long, value_name = "FILE")]
    configurations: PathBuf,
    /// A mix to measure, as read=90,update=10; without any: only reads, only updates, half of each.
    #[arg(long = "mix", value_name = "MIX")]
    mixes: Vec<Mix>,
    /// The file that gets the measurements, for `imago tune plan --measurements`.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Records; of Cassandra, rows that an empty table is filled with.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..))]
    documents: u64,
    /// Size of a record.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(400..=1_000_000))]
    size_bytes: u32,
    /// The consistency level of all operations (Cassandra only); without it quorum.
    #[arg(long, value_name = "LEVEL", value_parser = consistency)]
    consistency: Option<Consistency>,
    /// Operations at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    clients: u32,
    /// How often each configuration is measured, forth and back in turn.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    rounds: u8,
    /// Length of a window; throughput is compared from one to the next.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    window: Duration,
    /// Windows that are measured once throughput no longer rises.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=100))]
    windows: u8,
    /// The longest that warming up may take.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = duration)]
    warm_max: Duration,
}

/// Runs `imago tune sample` on the database that the cluster file describes.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let database =
        cluster::file::database(&args.cluster).map_err(|error| cluster_failure(&error))?;
    let namespace = (args.ns.db.clone(), args.ns.coll.clone());
    if database == "redis" {
        if args.consistency.is_some() {
            let what = "--consistency is for Cassandra, but the cluster file is for Redis";
            return Err(Failure::new(Exit::Usage, "usage", what));
        }
        let file = ClusterFile::read(&args.cluster).map_err(|error| cluster_failure(&error))?;
        let records = Records::new(file, args.cluster.clone(), namespace);
        return measure::<Redis, _>(args, records, context).await;
    }
    let file = ClusterFile::read(&args.cluster).map_err(|error| cluster_failure(&error))?;
    let consistency = args.consistency.unwrap_or(Consistency::Quorum);
    measure::<Cassandra, _>(args, Table { file, name: namespace, consistency }, context).await
}

/// Measures the configurations of `database`, whose settings are those of `D`, and prints the measurements.
async fn measure<D: Settings, S: Sampled>(
    args: Args,
    mut database: S,
    context: &Context,
) -> Result<(), Failure> {
    let configurations =
        configurations::read::<D>(&args.configurations).map_err(|error| cluster_failure(&error))?;
    let usual =
        || ["read=100", "update=100", "read=50,update=50"].map(|mix| mix.parse().expect("a mix"));
    let mixes = if args.mixes.is_empty() { usual().to_vec() } else { args.mixes };
    if let Some(mix) = mixes.iter().find(|mix| mix.delete > 0.0) {
        let what = format!(
            "the mix {mix} contains deletes, which would remove the records that are measured"
        );
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    if args.window < Duration::from_millis(200) {
        return Err(Failure::new(Exit::Usage, "usage", "--window must be 200ms at least"));
    }
    let request = Request {
        documents: args.documents,
        size_bytes: args.size_bytes,
        configurations,
        mixes,
        rounds: args.rounds.into(),
        clients: args.clients,
        window: args.window,
        windows: args.windows.into(),
        warm_max: args.warm_max,
        out: args.out,
    };
    let (process, say) = (process(), |what: String| eprintln!("{what}"));
    let caller = Caller { process: &process, cancel: &context.cancel, say: &say };
    let measured = Box::pin(sample::run(&mut database, &request, &caller)).await;
    let samples = measured.map_err(|error| cluster_failure(&error))?;
    context.output.result(&samples, |samples| text(samples))?;
    if context.cancel.is_cancelled() {
        let what = "interrupted: the same command goes on with what is missing";
        return Err(Failure::new(Exit::Interrupted, "interrupted", what));
    }
    Ok(())
}

/// Formats the measurements as text.
fn text(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return "everything was measured already\n".into();
    }
    let heads =
        ["CONFIGURATION", "MIX", "ROUND", "OPERATIONS/S", "SPREAD", "WARM AFTER", "MEMORY", "CPU"];
    let tells_use = samples.iter().any(|sample| sample.memory_bytes.is_some());
    let heads = &heads[..if tells_use { heads.len() } else { heads.len() - 2 }];
    let row = |sample: &Sample| {
        let memory = sample.memory_bytes.map(|bytes| format!("{:.1} MB", bytes as f64 / 1e6));
        let cells = [
            sample.configuration.clone(),
            sample.mix.clone(),
            (sample.round + 1).to_string(),
            format!("{:.0}", sample.operations_s),
            format!("{:.0} %", 100.0 * sample.spread),
            format!("{:.0} s", sample.warm_s),
            memory.unwrap_or_default(),
            sample.cpu_us.map(|of| format!("{of:.1} µs")).unwrap_or_default(),
        ];
        cells.into_iter().take(heads.len())
    };
    table(heads, samples.iter().map(row), &[])
}

//! `imago tune sample`: measures the throughput of each configuration of a real database with each mix of operations.

use std::path::PathBuf;
use std::time::Duration;

use imago_load::sample::series::{self, Rounds};
use imago_load::sample::{Caller, Request, Sample, Sampled};
use imago_workload::mix::Mix;

use super::measured::{Database, MeasuredArgs};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;
use crate::values::duration;

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
    #[command(flatten)]
    measured: MeasuredArgs,
    /// A mix to measure, as read=90,update=10; without any: only reads, only updates, half of each.
    #[arg(long = "mix", value_name = "MIX")]
    mixes: Vec<Mix>,
    /// The file that gets the measurements, for `imago tune plan --measurements`.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How often each configuration is measured, in an order that is drawn at random and back in
    /// turn.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    rounds: u8,
    /// Length of a window; throughput is compared from one to the next.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    window: Duration,
    /// Windows that are measured once the database is warm.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=100))]
    windows: u8,
}

/// Runs `imago tune sample` on the database that the cluster file describes.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let (database, configurations) = args.measured.open()?;
    let usual =
        || ["read=100", "update=100", "read=50,update=50"].map(|mix| mix.parse().expect("a mix"));
    let mixes = if args.mixes.is_empty() { usual().to_vec() } else { args.mixes };
    let request = args.measured.request(configurations, mixes, (args.windows, args.window))?;
    let rounds = Rounds { rounds: args.rounds.into(), out: args.out };
    match database {
        Database::Cassandra(mut table) => measure(&mut table, &request, &rounds, context).await,
        Database::Redis(mut records) => measure(&mut records, &request, &rounds, context).await,
    }
}

/// Measures the configurations of `database`, and prints the measurements.
async fn measure(
    database: &mut impl Sampled,
    request: &Request,
    rounds: &Rounds,
    context: &Context,
) -> Result<(), Failure> {
    let (process, say) = (process(), |what: String| eprintln!("{what}"));
    let caller = Caller { process: &process, cancel: &context.cancel, say: &say };
    let measured = Box::pin(series::run(database, request, rounds, &caller)).await;
    let samples = measured.map_err(|error| cluster_failure(&error))?;
    context.output.result(&samples, |samples| text(samples))?;
    if context.cancel.is_cancelled() {
        let what = "interrupted: the same command goes on with what is missing";
        return Err(Failure::new(Exit::Interrupted, "interrupted", what));
    }
    Ok(())
}

fn milliseconds(us: f64) -> String {
    format!("{:.1} ms", us / 1_000.0)
}

/// Formats how long it took until a measurement began; an exclamation mark says that the database was not warm then.
fn warmth(sample: &Sample) -> String {
    let mark = if sample.not_warm.is_some() { " (!)" } else { "" };
    format!("{:.0} s{mark}", sample.warm_s)
}

/// Formats the measurements as text.
fn text(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return "everything was measured already\n".into();
    }
    let heads = [
        "CONFIGURATION",
        "MIX",
        "ROUND",
        "OPERATIONS/S",
        "SPREAD",
        "MEDIAN",
        "P99",
        "WARM AFTER",
        "MEMORY",
        "CPU",
    ];
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
            sample.median_us.map(milliseconds).unwrap_or_default(),
            sample.p99_us.map(milliseconds).unwrap_or_default(),
            warmth(sample),
            memory.unwrap_or_default(),
            sample.cpu_us.map(|of| format!("{of:.1} µs")).unwrap_or_default(),
        ];
        cells.into_iter().take(heads.len())
    };
    table(heads, samples.iter().map(row), &[])
}

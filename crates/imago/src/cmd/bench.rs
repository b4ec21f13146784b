//! `imago bench`: the cost of Imago, as ratios to baselines measured in the same run.

mod adapting;
mod args;
mod chained;
mod command;
mod designs;
mod drawn;
mod fetching;
mod flows_real;
mod reuse;
mod text;
mod tuning;

use std::fmt::Write as _;
use std::time::Duration;

use imago_bench::morphosys::Of;
use imago_bench::morphus::{availability, placing, scaling};
use imago_bench::replay::Steady;
use imago_bench::{
    BENCHMARKS, Size, adapt, cache_hits, chain_fetch, copy, flows, foresight, placement, replay,
    reshard, schedule, shard_keys, sophia, store, verify,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cmd::process::program;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use args::{Benchmark, Chunks, Networks, ShardKeys};
use tuning::{Schedules, Traces};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the benchmarks.
    List,
    /// Run a benchmark; the clusters that it needs are started and stopped.
    Run {
        #[command(subcommand)]
        benchmark: Benchmark,
    },
    /// Be a host of `flows-real`; its orders come on stdin.
    #[command(hide = true)]
    Host,
}

/// Runs the chosen benchmark and prints its report, or lists the benchmarks.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::List => list(context),
        Action::Host => flows_real::host().await,
        Action::Run { benchmark } => {
            let measuring = async {
                let report = Box::pin(measure(&benchmark, context)).await?;
                context.output.result(&report, text::text)
            };
            tokio::select! {
                done = measuring => done,
                () = context.cancel.cancelled() => Err(interrupted()),
            }
        }
    }
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    measures: &'static str,
}

fn list(context: &Context) -> Result<(), Failure> {
    let listed = BENCHMARKS.map(|(name, measures)| Listed { name, measures });
    context.output.result(&listed, |listed| {
        listed.iter().fold(String::new(), |mut text, one| {
            let _ = writeln!(text, "{:18}{}", one.name, one.measures);
            text
        })
    })
}

async fn measure(benchmark: &Benchmark, context: &Context) -> Result<Value, Failure> {
    let commands = command::commands()?;
    let report = match benchmark {
        Benchmark::Copy(documents) => {
            json!(copy::run(documents.size(), &commands).await?)
        }
        Benchmark::Replay(documents) => {
            let size = documents.size();
            let size = Size { documents: size.documents * 3 / 10, ..size };
            let seconds = if documents.quick { 3 } else { 20 };
            let steady = Steady { rate_per_s: 2_000, duration: Duration::from_secs(seconds) };
            json!(replay::run(size, steady, &commands).await?)
        }
        Benchmark::Verify(documents) => {
            json!(verify::run(documents.size(), &commands).await?)
        }
        Benchmark::Reshard(resharding) => {
            json!(reshard::run(resharding.size(), &commands).await?)
        }
        Benchmark::Foresight(asked) => {
            let (documents, folder) = (&asked.documents, asked.drawn.pictures.as_deref());
            let (times, load_s) =
                if documents.quick { (1, 6) } else { (documents.size().runs, 30) };
            let others = foresight::Others { beside_clients: times, reshards: times, load_s };
            let say = |step: &str| eprintln!("{step}");
            json!(foresight::run(documents.size(), others, folder, &commands, &say).await?)
        }
        Benchmark::ChainFetch(asked) => json!(chain_fetch::run(asked.size()).await?),
        Benchmark::Placement(chunks) => json!(placement(chunks).await?),
        Benchmark::Flows(networks) => {
            let &Networks { runs, servers_max, ref window_kib, ref drawn, quick } = networks;
            let size = flows::Size { runs, servers_max };
            let size = if quick { flows::Size { runs: 2, servers_max: 9 } } else { size };
            json!(flows::run(size, window_kib, drawn.pictures.as_deref()).await?)
        }
        Benchmark::FlowsReal(args) => json!(flows_real::measure(args).await?),
        Benchmark::Store(asked) => {
            let (size, program) = (asked.size(), program()?);
            let measured = tokio::task::spawn_blocking(move || store::run(size, &program)).await;
            let stopped = |cause| Failure::from_error(Exit::Failed, "benchmark", &cause);
            json!(measured.map_err(stopped)??)
        }
        Benchmark::StorePostgres(asked) => {
            json!(store::postgres::run(asked.size(), &program()?).await?)
        }
        Benchmark::Adapt(asked) => {
            let size = asked.size();
            let say = |what: &str| eprintln!("{what}");
            let measured = tokio::task::spawn_blocking(move || adapt::run(size, &say)).await;
            let stopped = |cause| Failure::from_error(Exit::Failed, "benchmark", &cause);
            json!(measured.map_err(stopped)??)
        }
        Benchmark::MorphosysFig3(asked) => designs::measure(Of::Ycsb, asked).await?,
        Benchmark::MorphosysFig4(asked) => designs::learned(asked).await?,
        Benchmark::MorphosysFig5(asked) => designs::measure(Of::TpcC, asked).await?,
        Benchmark::MorphosysFig6(asked) => designs::measure(Of::Twitter, asked).await?,
        Benchmark::TuneSchedule(asked) => {
            let &Schedules { intervals, configurations, runs, quick } = asked;
            let size = schedule::Size { intervals, configurations, runs };
            let quickest = schedule::Size { intervals: 24, configurations: 3, runs: 2 };
            json!(schedule::run(if quick { quickest } else { size }))
        }
        Benchmark::ShardKeys(asked) => {
            let &ShardKeys { documents, operations, quick } = asked;
            let size = shard_keys::Size { documents, operations, keys: 10, has_profiler: true };
            let quickest = shard_keys::Size {
                documents: 2_000,
                operations: 400,
                keys: 2,
                has_profiler: false,
            };
            let size = if quick { quickest } else { size };
            json!(shard_keys::run(size, &commands, &|step| eprintln!("{step}")).await?)
        }
        Benchmark::CacheHits(asked) => {
            json!(cache_hits::run(asked.size(), &|load| eprintln!("{load}")).await?)
        }
        Benchmark::Reuse(asked) => json!(imago_bench::reuse::run(asked.size())),
        Benchmark::SophiaTraces(asked) => {
            let &Traces { days, jobs, seed, quick, ref measurements } = asked;
            let (days, jobs) = if quick { (6, 40) } else { (days, jobs) };
            let size = sophia::Size { days, jobs, seed };
            let own = measurements.as_deref().map(super::tune::measurements).transpose()?;
            let lived = sophia::run(size, own.as_ref());
            json!(lived.map_err(|error| Failure::from_error(Exit::Failed, "benchmark", &error))?)
        }
        Benchmark::SophiaScenarios(asked) => json!(asked.measure().await?),
        Benchmark::SophiaBuses(asked) => json!(asked.measure(context).await?),
        Benchmark::SophiaRoll(asked) => json!(asked.measure(context).await?),
        Benchmark::SophiaRedis(asked) => json!(asked.measure(context).await?),
        Benchmark::ChainedMr(asked) => json!(asked.measure(context).await?),
        Benchmark::MorphusTable1(asked) => {
            let folder = asked.drawn.pictures.as_deref();
            json!(availability::run(asked.size(), folder, &commands).await?)
        }
        Benchmark::MorphusFig7(asked) => {
            let folder = asked.drawn.pictures.as_deref();
            json!(placing::run(asked.size(), folder, &commands).await?)
        }
        Benchmark::MorphusFig8(asked) => {
            let folder = asked.drawn.pictures.as_deref();
            json!(scaling::run(&asked.size(), folder, &commands).await?)
        }
    };
    Ok(report)
}

async fn placement(chosen: &Chunks) -> Result<placement::Report, Failure> {
    let &Chunks { chunks, servers, ref hungarian_chunks, runs, quick } = chosen;
    let report = if quick {
        let size = placement::Size { chunks: 2_000, servers: 20, runs: 2 };
        placement::run(size, &[200]).await?
    } else {
        let size = placement::Size { chunks, servers, runs };
        placement::run(size, hungarian_chunks).await?
    };
    Ok(report)
}

fn interrupted() -> Failure {
    Failure::new(Exit::Failed, "interrupted", "interrupted; nothing of the benchmark remains")
}

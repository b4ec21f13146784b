//! `imago provision measure`: runs a job on chosen shapes of real servers, and compares its times with the prediction.

use std::fmt::Write as _;
use std::path::PathBuf;

use imago_bench::provision::cell::{CacheAt, Cell, Reads};
use imago_bench::provision::compare::Compared;
use imago_bench::provision::file::Common;
use imago_bench::provision::grid::{cells, even};
use imago_bench::provision::present::{Present, present};
use imago_bench::provision::{CACHE_MB, Outcome, Setup, predicted};

use imago_provision::chain::map::Options;

use super::values::{self, CacheAtArg, ReadsArg};
use crate::cmd::process::program;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::table::table;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Servers are started on this machine, on loopback addresses, filled with messages of a hundred characters, and ended. Each \
member with data is held to a share of the processors, so that shards slow each other down no more than on machines of their \
own; that needs control groups, and a user who may make them (root). Each run begins with restarted servers and an empty \
cache. The first shape is probed, and a chain without a cache recorded there: what is predicted comes from these two alone.

Each run is a line of the file as soon as it was made; the same command goes on with what is missing. Beside the file are \
the trace (.imt) and the probe (.probe.json), for `imago provision plan`.

Examples:
  imago provision measure --out cells.jsonl --documents 500000 --shards 1,2 --cache 0,16MiB --runs 2
  imago provision measure --out cells.jsonl --shards 4 --share 14,14,39,33 --json
  imago provision measure --out here.jsonl --uri \"$ROUTER\" --ns shop.messages --documents 1000000 --probe probe.json")]
pub struct Args {
    /// The file of runs.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Measure the present shape of this cluster instead: nothing is started, restarted or emptied.
    #[arg(long, value_name = "URI", requires_all = ["ns", "probe"], conflicts_with_all = ["shards", "share", "replicas", "cache", "cache_at", "reads", "cpu_share", "probe_seconds"])]
    uri: Option<String>,
    /// The collection there.
    #[arg(long, value_name = "DB.COLL", requires = "uri")]
    ns: Option<String>,
    /// A Redis there, for one run with a cache: it fills with the documents that are read.
    #[arg(long, value_name = "URI", requires = "uri")]
    cache_uri: Option<String>,
    /// A probe of that cluster.
    #[arg(long, value_name = "PROBE", requires = "uri")]
    probe: Option<PathBuf>,
    /// Documents of the collection; with --uri those whose `_id`s are the integers from 0 on.
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    documents: u64,
    /// Keys with which a chain begins.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// Phases of a chain.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    length: u32,
    /// The job: hash draws the next keys evenly, zipf some of them far more often.
    #[arg(long, value_name = "JOB", default_value = "hash", value_parser = ["hash", "zipf"])]
    job: String,
    /// Numbers of shards, with even shares.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=16))]
    shards: Vec<u32>,
    /// Shares of uneven shards, in whole percent, as 44,56. Repeatable.
    #[arg(long, value_name = "PERCENT,…", value_parser = values::shares)]
    share: Vec<Percent>,
    /// Numbers of members of each shard.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=5))]
    replicas: Vec<u32>,
    /// Sizes of the cache, 0 for none.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "0,16MiB", value_parser = values::size)]
    cache: Vec<u64>,
    /// Where the cache is asked: by the job, or by a proxy in front of the router.
    #[arg(long, value_enum, value_name = "PLACE", value_delimiter = ',', default_value = "worker")]
    cache_at: Vec<CacheAtArg>,
    /// Members to read from.
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        value_delimiter = ',',
        default_value = "primary"
    )]
    reads: Vec<ReadsArg>,
    /// Runs of each cell.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Batches that the job reads at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=Options::WORKERS_MAX as i64))]
    workers: u32,
    /// Keys of a batch.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
    /// Processors of each member with data.
    #[arg(long, value_name = "SHARE", default_value = "0.15", value_parser = crate::cmd::testbed::cpu_percent)]
    cpu_share: u16,
    /// Seconds that the probe measures.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..=3_600))]
    probe_seconds: u32,
    /// Draw the first keys by another seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

/// The shares of the keys on each shard, in percent, for one number of shards. It is a separate type, since clap
/// takes a list for repeated values.
type Percent = Vec<f64>;

impl Args {
    /// Returns the cells to measure: each combination of the flags' values (shards, replicas, cache, reads), once.
    fn cells(&self) -> Result<Vec<Cell>, Failure> {
        let mut shards: Vec<Vec<u32>> = self.shards.iter().map(|shards| even(*shards)).collect();
        for percent in &self.share {
            if percent.iter().any(|share| share.fract() != 0.0 || *share < 1.0) {
                let told = "shares are measured in whole percent, each at least 1";
                return Err(Failure::new(Exit::Usage, "share", told));
            }
            shards.push(percent.iter().map(|share| *share as u32).collect());
        }
        let mut all = Vec::new();
        for cell in cells(&shards, &self.replicas, &self.cache) {
            for reads in &self.reads {
                for cache_at in &self.cache_at {
                    let reads = match reads {
                        ReadsArg::Primary => Reads::Primary,
                        ReadsArg::Nearest => Reads::Nearest,
                    };
                    let cache_at = match cache_at {
                        CacheAtArg::Worker => CacheAt::Worker,
                        CacheAtArg::Router => CacheAt::Router,
                    };
                    let cell = Cell { reads, cache_at, ..cell.clone() }.canonical();
                    if !all.contains(&cell) {
                        all.push(cell);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Returns the settings that all measured runs share.
    fn common(&self) -> Common {
        Common {
            documents: self.documents,
            keys: self.keys,
            length: self.length,
            batch: self.batch,
            workers: self.workers,
            job: self.job.clone(),
            cpu_percent: self.uri.is_none().then_some(self.cpu_share),
            cache_mb: self.uri.is_none().then_some(CACHE_MB),
            seed: self.seed,
        }
    }
}

/// Runs `imago provision measure`: measures the cells, or the servers that `--uri` names, and prints the comparison
/// with the predictions.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    if args.keys > args.documents {
        let told = format!("{} keys cannot be drawn from {} documents", args.keys, args.documents);
        return Err(Failure::new(Exit::Usage, "keys", told));
    }
    let (cells, common, program) = (args.cells()?, args.common(), program()?);
    let setup = Setup {
        program: &program,
        out: &args.out,
        common,
        runs: args.runs,
        probe_s: args.probe_seconds,
        cancel: &context.cancel,
        say: &|what: String| eprintln!("{what}"),
    };
    let outcome = match (&args.uri, &args.ns, &args.probe) {
        (Some(uri), Some(ns), Some(probe)) => {
            let there = Present { uri, ns, cache: args.cache_uri.as_deref(), probe };
            Box::pin(present(&there, &setup)).await
        }
        _ => Box::pin(predicted(&cells, &setup)).await,
    };
    if context.cancel.is_cancelled() {
        let told = "interrupted: the same command goes on with what is missing";
        return Err(Failure::new(Exit::Interrupted, "interrupted", told));
    }
    context.output.result(&outcome?, text)
}

/// Formats the measurements and the accuracy of their predictions as text.
pub(super) fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(why) = &outcome.unshared {
        _ = writeln!(text, "CPU limits unavailable: {why}\n");
    }
    text += &rows(&outcome.cells);
    if let Some(accuracy) = &outcome.accuracy {
        _ = writeln!(
            text,
            "\n{} cells whose shape was not probed: job times are {:.1} % off in the median, {:.1} % at most, and {:.0} % of them in \
             their 90 % intervals; hit ratios {:.4} at most.",
            accuracy.held_out,
            accuracy.time_error_median * 100.0,
            accuracy.time_error_max * 100.0,
            accuracy.time_inside * 100.0,
            accuracy.hit_ratio_error_max,
        );
    }
    text
}

/// Formats a table of cells, with the measured values and the predicted ones.
pub fn rows(cells: &[Compared]) -> String {
    let row = |cell: &Compared| {
        let job_s = cell.measured.job_s;
        [
            cell.measured.cell.to_string(),
            cell.measured.runs.to_string(),
            match job_s.interval {
                Some(half) => format!("{:.2} s ± {half:.2}", job_s.mean),
                None => format!("{:.2} s", job_s.mean),
            },
            format!("{:.2} s", cell.predicted_s),
            format!("{:+.0} %", cell.time_error * 100.0),
            format!("{:.2} %", cell.measured.hit_ratio * 100.0),
            format!("{:.2} %", cell.predicted_hit_ratio * 100.0),
            cell.measured.cpu_mean.map_or_else(String::new, |cpu| format!("{:.2}", cpu.mean)),
            cell.bottleneck.clone(),
        ]
    };
    let heads =
        ["CELL", "RUNS", "MEASURED", "PREDICTED", "OFF", "HITS", "PREDICTED", "CPU", "BOUND BY"];
    table(&heads, cells.iter().map(row), &[1, 2, 3, 4, 5, 6, 7])
}

//! `imago demo provision`: a chained job is recorded, its servers are probed, a shape is
//! recommended, and three shapes are measured and compared with their predictions.

use std::fmt::Write as _;
use std::path::Path;

use imago_bench::provision::cell::Cell;
use imago_bench::provision::compare::Compared;
use imago_bench::provision::file::Common;
use imago_bench::provision::grid::{cells, even};
use imago_bench::provision::{CACHE_MB, Setup, predicted};
use imago_plan::provision::reuse::Start;
use imago_plan::provision::{CacheAt, Job, Reads, Shares};
use imago_provision::advice::{Advice, CachePolicy, Origin, Settings, advise};
use imago_provision::probe::Probe;
use imago_provision::trace::Trace;
use serde::Serialize;

use super::load::Clock;
use crate::cmd::process::program;
use crate::cmd::provision::measured_rows;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A chain of eight jobs reads twenty thousand keys a phase, by a hash of each document, from messages of a hundred characters. \
On one shard its keys are recorded and the costs of its requests probed; both are enough to predict all other shapes. Then \
one, two and four shards are measured, each member held to a share of the processors by a control group.

Example: imago demo provision --json")]
pub struct Args {
    /// Documents.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(10_000..=10_000_000))]
    documents: u64,
    /// Keys with which the chain begins.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    keys: u64,
    /// Processors of each member with data, in percent of one.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(10..=6_400))]
    cpu_percent: u16,
    /// The part of one shard's time within which the job has to end.
    #[arg(long, value_name = "PART", default_value_t = 0.65, value_parser = part)]
    deadline_part: f64,
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part: &f64| part.is_finite() && *part > 0.0);
    part.ok_or_else(|| "it must be a number above 0, for example 0.65".into())
}

const LENGTH: u32 = 8;
const WORKERS: u32 = 4;
const BATCH: u32 = 512;
const PROBE_S: u32 = 30;
/// Number of runs of the job on each measured shape.
const RUNS: u32 = 2;

/// The result of the demo: the advice, and measured times of three shapes beside their predictions.
#[derive(Debug, Serialize)]
struct Summary {
    /// The recommended shape and its reason, in one sentence.
    advice: String,
    deadline_s: f64,
    /// Median of the absolute relative errors of the predicted times, over the three shapes; 0.1 is 10 %.
    time_error_median: f64,
    time_error_max: f64,
    /// Number of keys that the recorded chain read, over all phases.
    keys: u64,
    /// The reason why the CPU limits of database servers were not applied; `None` if they were.
    unshared: Option<String>,
    measured: Vec<Compared>,
    total_s: f64,
}

/// Runs the demo and prints its result. The servers that it started are removed when it returns.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    if args.keys > args.documents {
        let told = format!("{} keys cannot be drawn from {} documents", args.keys, args.documents);
        return Err(Failure::new(Exit::Usage, "keys", told));
    }
    let clock = Clock::start();
    let folder = tempfile::tempdir().map_err(|cause| {
        Failure::new(Exit::Failed, "folder", "cannot make a temporary folder").because(&cause)
    })?;
    let out = folder.path().join("cells.jsonl");
    let program = program()?;
    let shapes: Vec<Cell> = cells(&[even(1), even(2), even(4)], &[1], &[0]);
    let setup = Setup {
        program: &program,
        out: &out,
        common: Common {
            documents: args.documents,
            keys: args.keys,
            length: LENGTH,
            batch: BATCH,
            workers: WORKERS,
            job: "hash".into(),
            cpu_percent: Some(args.cpu_percent),
            cache_mb: Some(CACHE_MB),
            seed: 1,
        },
        runs: RUNS,
        probe_s: PROBE_S,
        cancel: &context.cancel,
        say: &|what: String| clock.say(&what),
    };
    let outcome = Box::pin(predicted(&shapes, &setup)).await;
    if context.cancel.is_cancelled() {
        let told = "the demo was stopped; what it had started is gone";
        return Err(Failure::new(Exit::Interrupted, "interrupted", told));
    }
    let outcome = outcome?;
    let one_s = outcome.cells[0].predicted_s;
    let deadline_s = one_s * args.deadline_part;
    let advice = advice(&out, deadline_s, args)?;
    let errors: Vec<f64> = outcome.cells.iter().map(|cell| cell.time_error.abs()).collect();
    let figure = imago_bench::statistics::Figure::of(errors);
    let summary = Summary {
        advice: advice.advice,
        deadline_s,
        time_error_median: figure.median,
        time_error_max: figure.max,
        keys: outcome.keys,
        unshared: outcome.unshared,
        measured: outcome.cells,
        total_s: clock.elapsed_s(),
    };
    context.output.result(&summary, in_words)
}

/// Returns the advice for the deadline, computed from the trace and the probe in the files next to `out`.
fn advice(out: &Path, deadline_s: f64, args: &Args) -> Result<Advice, Failure> {
    let failed = |cause: &(dyn std::error::Error + 'static)| {
        Failure::new(Exit::Failed, "plan", "cannot plan by what was recorded").because(cause)
    };
    let trace = Trace::read(&out.with_extension("imt")).map_err(|cause| failed(&cause))?;
    let probe = Probe::read(&out.with_extension("probe.json")).map_err(|cause| failed(&cause))?;
    let machine = imago_plan::provision::Machine {
        shard_cores: f64::from(args.cpu_percent) / 100.0,
        ..probe.machine()
    };
    let settings = Settings {
        deadline_s,
        prices: None,
        shards: vec![1, 2, 4],
        replicas: vec![1],
        storage_bytes: None,
        cache_bytes: None,
        reads: vec![Reads::Primary],
        cache_at: vec![CacheAt::Worker],
        shares: Shares::even(),
        machine,
        job: Job { workers: WORKERS, batch: BATCH, variation: 0.1 },
        policy: CachePolicy::default(),
        start: Start::Cold,
        documents: None,
    };
    let origin = Origin {
        costs: probe.costs(),
        errors: probe.errors(),
        from: "a probe of one shard".into(),
        is_own: true,
        shards: u32::try_from(probe.shards.len()).ok(),
        storage_bytes: probe.sizes.storage_cache_bytes,
        page_bytes: probe.page_bytes(),
        has_pages: probe.costs.page.is_some(),
        borrowed: probe.borrowed(),
    };
    advise(&trace, &origin, &settings).map_err(|cause| failed(&cause))
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    if let Some(why) = &summary.unshared {
        _ = writeln!(text, "CPU limits unavailable: {why}\n");
    }
    text += &measured_rows(&summary.measured);
    _ = writeln!(
        text,
        "\nFrom one probe and {} recorded keys: predicted times are {:.1} % off in the median, {:.1} % at most.",
        summary.keys,
        summary.time_error_median * 100.0,
        summary.time_error_max * 100.0,
    );
    _ = writeln!(text, "To end within {:.1} s: {}", summary.deadline_s, summary.advice);
    text
}

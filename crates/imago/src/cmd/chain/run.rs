//! `imago chain run`: a whole chained job in this process.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use imago_provision::chain::recorder::Recorder;
use imago_provision::chain::run::{Chain, Report, Start, run as run_chain};

use imago_provision::trace::Ending;

use super::failure;
use super::reading::{Drawing, Reading};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::table::table;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The phases are those of `map` and `reduce` one after the other, in memory, and the last keys are the same: their SHA-256 is \
what sha256sum says of the last reduce's output.

Example:
  imago chain run --uri \"$ROUTER\" --ns shop.messages --modulo 1000000 --keys 20000 --length 8 --json
  imago chain run --uri \"$ROUTER\" --ns shop.messages --modulo 1000 --keys 1000 --job merkle")]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    drawing: Drawing,
    /// The keys of the first phase: a number of keys to draw, or a file with one key a line. Of a Merkle tree, the first
    /// keys.
    #[arg(long, value_name = "N|FILE")]
    keys: String,
    /// Seed of the draw of the first keys.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Write the keys of all phases to a trace for `imago provision plan`: also those that the cache answers.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Phases, each a map and a reduce; a Merkle tree has as many as it needs.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    length: u32,
}

/// Runs all phases of a chain and prints the report; writes the trace of its reads if one was requested.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let start = match args.keys.parse::<u64>() {
        Ok(count) => Start::Drawn { count, seed: args.seed },
        Err(_) => Start::read(Path::new(&args.keys)).map_err(failure)?,
    };
    let next = args.drawing.next().map_err(failure)?;
    let (job, length, map) = (args.drawing.job, args.length, args.reading.options());
    let chain = Chain { job, next, length, start, map };
    let fetcher = args.reading.fetcher().await.map_err(failure)?;
    let namespace = fetcher.source().namespace().to_string();
    let recorder = args.trace.as_deref().map(|path| Recorder::create(path, namespace));
    let recorder = recorder.transpose().map_err(|error| unrecorded(&error))?;
    let observer = recorder.as_ref().map(Recorder::observer);
    let ran = run_chain(&chain, &fetcher, observer, &context.cancel).await;
    if let Some(recorder) = recorder {
        let ending = match &ran {
            Ok(_) => Ending::Complete,
            Err(error) => Ending::Incomplete(error.to_string()),
        };
        recorder.finish(&ending).map_err(|error| unrecorded(&error))?;
    }
    let report = ran.map_err(failure)?;
    context.output.result(&report, text)
}

fn unrecorded(error: &imago_provision::trace::Error) -> Failure {
    Failure::from_error(Exit::Failed, "trace", error)
}

fn text(report: &Report) -> String {
    let read = &report.read;
    let mut text = format!(
        "{} phases of {} over {} in {:.2} s: {} keys, {} hits, {} misses",
        report.phases.len(),
        report.job,
        report.namespace,
        report.seconds,
        read.keys,
        read.hits,
        read.misses,
    );
    if read.missing > 0 {
        _ = write!(text, ", of which {} have no document", read.missing);
    }
    text += "\n";
    if let Some(failure) = &report.cache_failure {
        _ = writeln!(text, "the cache failed, and was no longer used: {failure}");
    }
    let rows = report.phases.iter().map(|phase| {
        [
            phase.phase.to_string(),
            phase.read.keys.to_string(),
            phase.read.hits.to_string(),
            phase.read.misses.to_string(),
            phase.unique.to_string(),
            format!("{:.3}", phase.map_s),
            format!("{:.3}", phase.sort_s),
            format!("{:.3}", phase.reduce_s),
        ]
    });
    let heads = ["PHASE", "KEYS", "HITS", "MISSES", "UNIQUE", "MAP, s", "SORT, s", "REDUCE, s"];
    text += &table(&heads, rows, &[0, 1, 2, 3, 4, 5, 6, 7]);
    _ = match &report.root {
        Some(root) => writeln!(text, "\nroot {root}"),
        None => writeln!(text, "\n{} keys, SHA-256 {}", report.result_keys, report.result_sha256),
    };
    text
}

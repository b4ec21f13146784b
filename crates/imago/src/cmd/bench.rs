//! `imago bench`: what Imago costs, as ratios to floors that are measured beside it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use imago_bench::replay::Steady;
use imago_bench::subject::{Commands, Ends, Subject};
use imago_bench::{BENCHMARKS, Size, copy, replay, verify};
use serde::Serialize;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// What may be typed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Say which benchmarks there are.
    List,
    /// Start two clusters, measure, and end them.
    #[command(
        after_help = "Figures of a debug build, or with --quick, say only that the benchmark \
                            works. A busy machine disturbs floors and figures alike, but not \
                            equally: look at `spread`."
    )]
    Run(Run),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Which benchmark.
    #[arg(value_enum)]
    benchmark: Benchmark,
    /// Documents; a replay takes three tenths of them, and makes as many changes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..))]
    documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    size_bytes: u32,
    /// How often everything is measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Only show that the benchmark works: 20,000 documents, one run.
    #[arg(long, conflicts_with_all = ["documents", "runs"])]
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Benchmark {
    /// A copy until it has caught up.
    Copy,
    /// Catching up with changes, and the lag while following.
    Replay,
    /// A full verification.
    Verify,
}

/// Runs a benchmark, or lists them.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::List => list(context),
        Action::Run(run) => {
            let measuring = async {
                let report = Box::pin(measure(&run)).await?;
                context.output.result(&report, text)
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
            let _ = writeln!(text, "{:8}{}", one.name, one.measures);
            text
        })
    })
}

async fn measure(run: &Run) -> Result<Value, Failure> {
    let commands = commands()?;
    let documents = if run.quick { 20_000 } else { run.documents };
    let runs = if run.quick { 1 } else { run.runs };
    let size = Size { documents, size_bytes: run.size_bytes, runs };
    let report = match run.benchmark {
        Benchmark::Copy => json!(Box::pin(copy::run(size, &commands)).await?),
        Benchmark::Replay => {
            let size = Size { documents: documents * 3 / 10, ..size };
            let seconds = if run.quick { 3 } else { 20 };
            let steady = Steady { rate_per_s: 2_000, duration: Duration::from_secs(seconds) };
            json!(Box::pin(replay::run(size, steady, &commands)).await?)
        }
        Benchmark::Verify => json!(Box::pin(verify::run(size, &commands)).await?),
    };
    Ok(report)
}

/// What is measured is this very program, in processes of their own.
fn commands() -> Result<Commands, Failure> {
    let program = std::env::current_exe().map_err(|cause| {
        Failure::new(Exit::Failed, "program", "cannot tell where this program lies").because(&cause)
    })?;
    Ok(Arc::new(move |subject, ends| command(&program, subject, ends)))
}

fn command(program: &PathBuf, subject: &Subject, ends: &Ends) -> Command {
    let mut command = Command::new(program);
    match subject {
        Subject::Copy => command.args(["copy", "--ns", &ends.ns, "--until", "caught-up"]),
        Subject::CatchUp { job } => command.args(["job", "resume", job, "--until", "caught-up"]),
        Subject::Follow { job } => command.args(["job", "resume", job, "--until", "handed-over"]),
        Subject::Verify => command.args(["verify", "--ns", &ends.ns]),
    };
    command.args(["--from", &ends.from, "--to", &ends.to, "--json", "--progress", "json"]);
    command
}

fn interrupted() -> Failure {
    Failure::new(Exit::Failed, "interrupted", "interrupted; nothing of the benchmark remains")
}

/// The report's figures, one a line; what is nested in it is for programs.
fn text(report: &Value) -> String {
    let mut text = String::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        let shown = match value {
            Value::Number(number) if number.is_f64() => {
                format!("{:.3}", number.as_f64().unwrap_or(f64::NAN))
            }
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::String(word) => word.clone(),
            _ => continue,
        };
        let _ = writeln!(text, "{name:22} {shown}");
    }
    for peer in report["peers"].as_array().into_iter().flatten() {
        let shown = match (&peer["seconds"], &peer["note"]) {
            (Value::Number(seconds), _) => format!("{seconds} s"),
            (_, note) => note.as_str().unwrap_or_default().to_owned(),
        };
        let _ = writeln!(text, "{:22} {shown}", peer["name"].as_str().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn what_is_measured_is_what_the_command_line_takes() {
        let ends = Ends { from: "mongodb://a".into(), to: "mongodb://b".into(), ns: "c.d".into() };
        let job = imago_job::id::JobId::from_parts(1, 1).to_string();
        for subject in [
            Subject::Copy,
            Subject::CatchUp { job: job.clone() },
            Subject::Follow { job },
            Subject::Verify,
        ] {
            let command = command(&PathBuf::from("imago"), &subject, &ends);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            crate::cli::Cli::try_parse_from(words).unwrap();
        }
    }
}

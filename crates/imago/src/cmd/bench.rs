//! `imago bench`: what Imago costs, as ratios to floors that are measured beside it.

mod flows_real;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use imago_bench::replay::Steady;
use imago_bench::subject::{Commands, Ends, Subject};
use imago_bench::{BENCHMARKS, Size, copy, flows, placement, replay, reshard, verify};
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
    /// Measure; what clusters that takes are started and ended.
    Run {
        #[command(subcommand)]
        benchmark: Benchmark,
    },
    /// Be a host of `flows-real`; its orders come on stdin.
    #[command(hide = true)]
    Host,
}

const QUICK: &str = "Figures of a debug build, or with --quick, say only that the benchmark works. \
                     A busy machine disturbs floors and figures alike, but not equally: look at \
                     `spread`.";

#[derive(Debug, clap::Subcommand)]
enum Benchmark {
    /// A copy until it has caught up.
    #[command(after_help = QUICK)]
    Copy(Documents),
    /// Catching up with changes, and the lag while following.
    #[command(after_help = QUICK)]
    Replay(Documents),
    /// A full verification.
    #[command(after_help = QUICK)]
    Verify(Documents),
    /// A change of the shard key, beside the server's own; and what clients notice of it.
    #[command(after_help = QUICK)]
    Reshard(Resharding),
    /// Deciding where new chunks go; starts no cluster.
    #[command(after_help = QUICK)]
    Placement(Chunks),
    /// Strategies of sockets in simulated networks; starts no cluster.
    #[command(after_help = QUICK)]
    Flows(Networks),
    /// The same with real processes in network namespaces; needs root, and starts no cluster.
    #[command(after_help = QUICK)]
    FlowsReal(flows_real::Args),
}

#[derive(Debug, clap::Args)]
struct Documents {
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

impl Documents {
    fn size(&self) -> Size {
        let documents = if self.quick { 20_000 } else { self.documents };
        let runs = if self.quick { 1 } else { self.runs };
        Size { documents, size_bytes: self.size_bytes, runs }
    }
}

#[derive(Debug, clap::Args)]
struct Resharding {
    /// Documents; the clients' loads take a twentieth and a fifth of them.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    size_bytes: u32,
    /// Shards, of one member each.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    shards: u32,
    /// The share of documents whose new key follows from the old one, in reverse order.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    correlation: f64,
    /// How often both are measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Changes of the key, there and back, under a load of 500 writes/s.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    cutovers: u32,
    /// Leave out the server's own as it is shipped, which takes five minutes at least.
    #[arg(long)]
    no_shipped: bool,
    /// Only show that the benchmark works: 20,000 documents, one run, two cut-overs, not as shipped.
    #[arg(long, conflicts_with_all = ["documents", "runs", "cutovers"])]
    quick: bool,
}

impl Resharding {
    fn size(&self) -> reshard::Size {
        let asked = reshard::Size {
            documents: self.documents,
            size_bytes: self.size_bytes,
            shards: self.shards,
            correlation: self.correlation,
            runs: self.runs,
            cutovers: self.cutovers,
            idle_s: 15,
            as_shipped: !self.no_shipped,
        };
        if !self.quick {
            return asked;
        }
        reshard::Size {
            documents: 20_000,
            runs: 1,
            cutovers: 2,
            idle_s: 3,
            as_shipped: false,
            ..asked
        }
    }
}

#[derive(Debug, clap::Args)]
struct Chunks {
    /// New chunks to be placed.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    chunks: u32,
    /// Servers on which they lie and are placed.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    servers: u32,
    /// Chunks with which the textbook's Hungarian algorithm is compared; its time grows as their
    /// third power.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [500, 1_000, 2_000])]
    hungarian_chunks: Vec<u32>,
    /// How often everything is measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Only show that the benchmark works: 2,000 chunks, 20 servers, a comparison with 200, one run.
    #[arg(long, conflicts_with_all = ["chunks", "servers", "hungarian_chunks", "runs"])]
    quick: bool,
}

#[derive(Debug, clap::Args)]
struct Networks {
    /// How often members and data are drawn; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Leave out the networks with more servers; there are two with 9, one with 30, one with 300.
    #[arg(long, value_name = "N", default_value_t = flows::SERVERS_MAX, value_parser = clap::value_parser!(u32).range(9..))]
    servers_max: u32,
    /// The largest windows of a simulated connection.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [16, 64])]
    window_kib: Vec<u32>,
    /// Only show that the benchmark works: the networks with 9 servers, two runs.
    #[arg(long, conflicts_with_all = ["runs", "servers_max"])]
    quick: bool,
}

/// Runs a benchmark, or lists them.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::List => list(context),
        Action::Host => flows_real::host().await,
        Action::Run { benchmark } => {
            let measuring = async {
                let report = Box::pin(measure(&benchmark)).await?;
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
            let _ = writeln!(text, "{:11}{}", one.name, one.measures);
            text
        })
    })
}

async fn measure(benchmark: &Benchmark) -> Result<Value, Failure> {
    let commands = commands()?;
    let report = match benchmark {
        Benchmark::Copy(documents) => {
            json!(Box::pin(copy::run(documents.size(), &commands)).await?)
        }
        Benchmark::Replay(documents) => {
            let size = documents.size();
            let size = Size { documents: size.documents * 3 / 10, ..size };
            let seconds = if documents.quick { 3 } else { 20 };
            let steady = Steady { rate_per_s: 2_000, duration: Duration::from_secs(seconds) };
            json!(Box::pin(replay::run(size, steady, &commands)).await?)
        }
        Benchmark::Verify(documents) => {
            json!(Box::pin(verify::run(documents.size(), &commands)).await?)
        }
        Benchmark::Reshard(resharding) => {
            json!(Box::pin(reshard::run(resharding.size(), &commands)).await?)
        }
        Benchmark::Placement(chunks) => json!(Box::pin(placement(chunks)).await?),
        Benchmark::Flows(networks) => {
            let &Networks { runs, servers_max, ref window_kib, quick } = networks;
            let size = flows::Size { runs, servers_max };
            let size = if quick { flows::Size { runs: 2, servers_max: 9 } } else { size };
            json!(Box::pin(flows::run(size, window_kib)).await?)
        }
        Benchmark::FlowsReal(args) => json!(Box::pin(flows_real::measure(args)).await?),
    };
    Ok(report)
}

async fn placement(chosen: &Chunks) -> Result<placement::Report, Failure> {
    let &Chunks { chunks, servers, ref hungarian_chunks, runs, quick } = chosen;
    let report = if quick {
        let size = placement::Size { chunks: 2_000, servers: 20, runs: 1 };
        Box::pin(placement::run(size, &[200])).await?
    } else {
        let size = placement::Size { chunks, servers, runs };
        Box::pin(placement::run(size, hungarian_chunks)).await?
    };
    Ok(report)
}

/// What is measured is this very program, in processes of their own.
fn commands() -> Result<Commands, Failure> {
    let program = program()?;
    Ok(Arc::new(move |subject, ends| command(&program, subject, ends)))
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|cause| {
        Failure::new(Exit::Failed, "program", "cannot tell where this program lies").because(&cause)
    })
}

fn command(program: &PathBuf, subject: &Subject, ends: &Ends) -> Command {
    let mut command = Command::new(program);
    match subject {
        Subject::Copy => command.args(["copy", "--ns", &ends.ns, "--until", "caught-up"]),
        Subject::CatchUp { job } => command.args(["job", "resume", job, "--until", "caught-up"]),
        Subject::Follow { job } => command.args(["job", "resume", job, "--until", "handed-over"]),
        Subject::Verify => command.args(["verify", "--ns", &ends.ns]),
        Subject::PlanReshard { key } => reshape(&mut command, "plan", ends, key),
        Subject::ReshardBy { key } => reshape(&mut command, "run", ends, key),
        Subject::Reshard { plan } => {
            command.args(["reshard", "run", "--uri", &ends.to, "--plan"]).arg(plan)
        }
    };
    let is_within_one = matches!(
        subject,
        Subject::PlanReshard { .. } | Subject::ReshardBy { .. } | Subject::Reshard { .. }
    );
    if !is_within_one {
        command.args(["--from", &ends.from, "--to", &ends.to]);
    }
    command.args(["--json", "--progress", "json"]);
    command
}

fn reshape<'a>(command: &'a mut Command, verb: &str, ends: &Ends, field: &str) -> &'a mut Command {
    let key = json!({ field: 1 }).to_string();
    command.args(["reshard", verb, "--uri", &ends.to, "--ns", &ends.ns, "--key", &key])
}

fn interrupted() -> Failure {
    Failure::new(Exit::Failed, "interrupted", "interrupted; nothing of the benchmark remains")
}

/// The report's figures, one a line, then its tables; what else is nested in it is for programs.
fn text(report: &Value) -> String {
    let mut text = String::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        if let Some(shown) = scalar(value) {
            let _ = writeln!(text, "{name:22} {shown}");
        }
    }
    for peer in report["peers"].as_array().into_iter().flatten() {
        let shown = match (&peer["seconds"], &peer["note"]) {
            (Value::Number(seconds), _) => format!("{seconds} s"),
            (_, note) => note.as_str().unwrap_or_default().to_owned(),
        };
        let _ = writeln!(text, "{:22} {shown}", peer["name"].as_str().unwrap_or_default());
    }
    for (name, columns) in TABLES {
        if let Some(rows) = report[name].as_array() {
            text.push('\n');
            text.push_str(&table(rows, columns));
        }
    }
    text
}

/// The lists of a report that are shown, with what is shown of each of their items.
const TABLES: [(&str, &[&str]); 3] = [
    (
        "patterns",
        &["pattern", "chunks", "servers", "seconds", "moved", "moved_greedy", "moved_random"],
    ),
    (
        "hungarian",
        &["pattern", "chunks", "seconds", "hungarian_seconds", "ratio_to_hungarian", "costs_equal"],
    ),
    (
        "strategies",
        &[
            "topology",
            "window_kib",
            "strategy",
            "sockets",
            "makespan_s",
            "ratio_to_fixed",
            "ratio_to_floor",
            "chunk_median_s",
            "last_to_median",
            "simulated_s",
            "ratio_to_simulated",
            "lost_packets",
        ],
    ),
];

/// Words to the left, everything else to the right; without the columns that no row has.
fn table(rows: &[Value], columns: &[&str]) -> String {
    let mut lines = vec![String::new(); rows.len() + 1];
    for column in columns.iter().filter(|column| rows.iter().any(|row| !row[**column].is_null())) {
        let cells = rows.iter().map(|row| scalar(&row[column]).unwrap_or_default());
        let cells: Vec<String> = std::iter::once((*column).to_owned()).chain(cells).collect();
        let width = cells.iter().map(String::len).max().unwrap_or(0);
        let is_word = rows.iter().all(|row| row[column].is_string());
        for (line, cell) in lines.iter_mut().zip(cells) {
            let gap = if line.is_empty() { "" } else { "  " };
            let _ = if is_word {
                write!(line, "{gap}{cell:width$}")
            } else {
                write!(line, "{gap}{cell:>width$}")
            };
        }
    }
    lines.iter().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// A value that is no list of others, in few characters.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map(short),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::String(word) => Some(word.clone()),
        _ => None,
    }
}

/// Three decimals, or as many as three digits need.
fn short(number: f64) -> String {
    let zeros = if number == 0.0 { 0.0 } else { -number.abs().log10().floor() - 1.0 };
    let decimals = 3 + zeros.clamp(0.0, 9.0) as usize;
    format!("{number:.decimals$}")
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
            Subject::PlanReshard { key: "k".into() },
            Subject::Reshard { plan: "p".into() },
            Subject::ReshardBy { key: "k".into() },
        ] {
            let command = command(&PathBuf::from("imago"), &subject, &ends);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            crate::cli::Cli::try_parse_from(words).unwrap();
        }
    }

    #[test]
    fn a_small_figure_keeps_its_digits() {
        let shown = [12.345_678, 0.123_45, 0.001_234_5, 0.0].map(short);
        assert_eq!(shown, ["12.346", "0.123", "0.00123", "0.000"]);
    }

    #[test]
    fn a_table_has_its_columns_below_their_names() {
        let rows = [json!({"a": "long word", "n": 5}), json!({"a": "b", "n": 1_000, "x": 0})];
        assert_eq!(
            table(&rows, &["a", "n", "absent"]),
            "a             n\nlong word     5\nb          1000\n"
        );
    }
}

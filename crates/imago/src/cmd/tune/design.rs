//! `imago tune design`: draws the set of configurations to measure.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use imago_tune::cassandra::Cassandra;
use imago_tune::design::{Design, Request, Varied, design};
use imago_tune::dimensions::COMPACTION;
use imago_tune::redis::Redis;
use serde::Serialize;

use super::database::Database;
use super::plan::computed;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
No server is needed. `imago tune knobs` lists the settings, their bounds, and what a change of each costs. A range takes as \
many values as there are configurations, a list takes each of its values equally often. Of a number whose bounds are far \
apart ratios are even, not differences: 16, 32, 64. The first configuration of the file is the default.

Twelve configurations tell about four settings apart, twenty-four about eight.

Examples:
  imago tune design --knob concurrent_reads=16..64 --knob memtable_heap_space=32MiB,48MiB,64MiB --runs 12 \
--out sampled.toml
  imago tune sample --cluster cluster.toml --ns shop.sample --configurations sampled.toml --out sampled.csv
  imago tune search --configurations sampled.toml --measurements sampled.csv

  imago tune design --database redis --knob hash-max-listpack-entries=8..512 --knob hash-max-listpack-value=64,128 \
--out sampled.toml")]
pub(super) struct Args {
    /// The database: Cassandra 5.0 or Redis 7.
    #[arg(long, value_enum, default_value = "cassandra")]
    database: Database,
    /// A setting to vary: between two bounds, as NAME=16..64, or among values, as NAME=32MiB,64MiB.
    #[arg(long = "knob", value_name = "NAME=VALUES")]
    knobs: Vec<String>,
    /// A compaction to vary, as {"class": "UnifiedCompactionStrategy", "scaling_parameters": "T8"}; the first one named is
    /// the default's (Cassandra only).
    #[arg(long = "compaction", value_name = "JSON")]
    compactions: Vec<String>,
    /// Configurations to draw, besides the default.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=500))]
    runs: u16,
    /// Seed of the draw.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The file that gets the configurations; it must not be there yet.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// The set of configurations that was drawn, and its file, for programs.
#[derive(Serialize)]
struct Drawn<'d> {
    /// Path of the file to which the configurations were written.
    out: &'d Path,
    #[serde(flatten)]
    design: Design,
}

/// Runs `imago tune design`: draws the configurations, writes them to a new file and prints a summary.
pub(super) async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (knobs, compactions) = (args.knobs.clone(), args.compactions.clone());
    let (database, runs, seed) = (args.database, args.runs.into(), args.seed);
    let drawn = move || {
        let request = Request { knobs: &knobs, compactions: &compactions, runs, seed };
        match database {
            Database::Cassandra => design::<Cassandra>(&request),
            Database::Redis => design::<Redis>(&request),
        }
    };
    let design = computed(context, drawn).await?.map_err(|error| cluster_failure(&error))?;
    create(&args.out, &design.text)?;
    context.output.result(&Drawn { out: &args.out, design }, shown)
}

/// Creates a file with `text` and syncs it; a file that exists already is an error.
pub(super) fn create(path: &Path, text: &str) -> Result<(), Failure> {
    let made = std::fs::File::create_new(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    made.map_err(|cause| {
        let what = format!("cannot write {}", path.display());
        let failure = Failure::new(Exit::Precondition, "file", what).because(&cause);
        match cause.kind() {
            std::io::ErrorKind::AlreadyExists => failure
                .help("measurements belong to one file of configurations: give --out another name"),
            _ => failure,
        }
    })
}

/// Formats the drawn set of configurations as text.
fn shown(drawn: &Drawn<'_>) -> String {
    let design = &drawn.design;
    let row = |one: &Varied| {
        let values = if one.name == COMPACTION || one.values.len() <= 5 {
            one.values.join(", ")
        } else {
            let (first, last) = (&one.values[0], &one.values[one.values.len() - 1]);
            format!("{} values from {first} to {last}", one.values.len())
        };
        [one.name.clone(), one.class.to_owned(), values]
    };
    let text = table(&["SETTING", "CLASS", "VALUES"], design.knobs.iter().map(row), &[]);
    format!(
        "{}: {} configurations, the default first (seed {})\n\n{text}\nThe largest correlation of two settings is {:.2}: \
         below about 0.3 their effects can be told apart.\n",
        drawn.out.display(),
        design.configurations.len(),
        design.seed,
        design.correlation
    )
}

//! `imago tune search`: ranks the settings by their effect, and searches the configuration with the highest predicted
//! throughput for each mix.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use imago_plan::tune::workload::Mix;
use imago_tune::cassandra::Cassandra;
use imago_tune::cluster::Settings;
use imago_tune::configurations;
use imago_tune::measurements::{By, Measurements};
use imago_tune::optima::{
    Answer, LookUp, Optimum, Question, Ranked, Tried, ValidationReport, VarianceDrop, answer,
    percent,
};
use imago_tune::redis::Redis;
use imago_workload::mix::Mix as Weights;
use serde::Serialize;

use super::database::Database;
use super::plan::computed;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
No server is needed. The settings in which the configurations differ are ranked by an analysis of variance of the logarithm \
of what was served. A surrogate of those that count is learned, and searched for the configuration that serves most of each \
mix, within the values that were measured. Its error is that of predictions for configurations, and for mixes, that it was \
not shown. A predicted optimum is to be measured before it is trusted.

A load is often slower than a server of Redis, so that all configurations serve the same of it: compare them by --by cpu.

Examples:
  imago tune design --knob concurrent_reads=16..64 --knob memtable_heap_space=32MiB..64MiB --out sampled.toml
  imago tune sample --cluster cluster.toml --ns shop.sample --configurations sampled.toml --out sampled.csv
  imago tune search --configurations sampled.toml --measurements sampled.csv --out optima.toml
  imago tune sample --cluster cluster.toml --ns shop.sample --configurations optima.toml --out optima.csv

  imago tune search --database redis --configurations sampled.toml --measurements sampled.csv --by cpu")]
pub(super) struct Args {
    /// The database: Cassandra 5.0 or Redis 7.
    #[arg(long, value_enum, default_value = "cassandra")]
    database: Database,
    /// The file with the configurations, the default first.
    #[arg(long, value_name = "FILE")]
    configurations: PathBuf,
    /// What was measured of them.
    #[arg(long, value_name = "FILE")]
    measurements: PathBuf,
    /// What is compared: operations a second, or operations for a second of the server's processor time (of Redis).
    #[arg(long, value_enum, default_value = "throughput")]
    by: ByArg,
    /// Settings to search over at most; without it all that the ranking keeps.
    #[arg(long, value_name = "N", default_value_t = 64, hide_default_value = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    knobs_max: u8,
    /// A mix to look the best configuration up for, as read=95,update=5.
    #[arg(long = "mix", value_name = "MIX")]
    mixes: Vec<Weights>,
    /// A file that gets the default and the best configurations, for `imago tune sample`; it must not be there yet.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Seed of the forest and of the starting points of the search.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ByArg {
    Throughput,
    Cpu,
}

impl ByArg {
    /// Converts the argument into the measure by which configurations are compared.
    fn by(self) -> By {
        match self {
            Self::Throughput => By::Throughput,
            Self::Cpu => By::Cpu,
        }
    }

    /// Returns the unit of the predicted value, twice: as a remark in a file of configurations has it, and as a
    /// table's heading.
    fn units(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("operations/s", "OPERATIONS/S"),
            Self::Cpu => ("operations for a second of processor time", "OPERATIONS/CPU S"),
        }
    }
}

/// The ranking, the predictions and the optima, with the measure by which configurations were compared, for programs.
#[derive(Serialize)]
struct SearchReport {
    /// The measure by which configurations were compared.
    by: ByArg,
    #[serde(flatten)]
    answer: Answer,
}

/// Runs `imago tune search` for the chosen kind of database.
pub(super) async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match args.database {
        Database::Cassandra => search::<Cassandra>(args, context).await,
        Database::Redis => search::<Redis>(args, context).await,
    }
}

/// Ranks the settings of a database of the kind `D`, searches the best configurations, writes them to a file if one
/// is given, and prints the result.
async fn search<D: Settings>(args: &Args, context: &Context) -> Result<(), Failure> {
    let configurations =
        configurations::read::<D>(&args.configurations).map_err(|error| cluster_failure(&error))?;
    let measurements = measurements(&args.measurements, args.by.by())?;
    let asked: Vec<Mix> = args.mixes.iter().map(mix).collect::<Result<_, _>>()?;
    let (knobs_max, seed) = (args.knobs_max.into(), args.seed);
    let searched = move || {
        let question = Question {
            configurations: &configurations,
            measurements: &measurements,
            knobs_max,
            asked: &asked,
            seed,
        };
        (answer::<D>(question), configurations)
    };
    let (answer, configurations) = computed(context, searched).await?;
    let answer = answer.map_err(|error| cluster_failure(&error))?;
    if let Some(out) = &args.out {
        if answer.optima.is_empty() {
            let what = "no setting has a significant effect, so there is nothing to write";
            let help = "measure more rounds, more configurations, or wider ranges";
            return Err(Failure::new(Exit::Precondition, "chance", what).help(help));
        }
        let (all, remarks) = answer.to_measure(&configurations[0], args.by.units().0);
        let head = format!(
            "Predicted by `imago tune search` from {}: to be measured before they are trusted.",
            args.measurements.display()
        );
        super::design::create(out, &configurations::write(&head, &all, &remarks))?;
    }
    context.output.result(&SearchReport { by: args.by, answer }, text)
}

/// Converts the mix of a load into a mix of reads, updates, inserts and scans; a mix with deletes is an error.
pub(super) fn mix(of: &Weights) -> Result<Mix, Failure> {
    let known = Mix::of([of.read, of.update, of.insert, of.scan]).filter(|_| of.delete == 0.0);
    known.ok_or_else(|| {
        let what = format!("the mix {of} is not one of reads, updates, inserts and scans alone");
        Failure::new(Exit::Usage, "usage", what)
    })
}

/// Reads a file of measurements, with the value `by` which configurations are compared.
fn measurements(path: &Path, by: By) -> Result<Measurements, Failure> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|cause| {
        let what = format!("cannot read {shown}");
        Failure::new(Exit::Usage, "file", what).because(&cause)
    })?;
    let read = Measurements::read_by(&shown, file, by);
    read.map_err(|error| Failure::from_error(Exit::Usage, "measurements", &error))
}

/// Formats the result of the search as text.
fn text(told: &SearchReport) -> String {
    let SearchReport { by, answer } = told;
    let mut text = ranking(answer);
    let Some(belief) = &answer.surrogate else {
        text += "\nNo setting has a significant effect: stay with the default, or measure more rounds, \
                 more configurations, or wider ranges.\n";
        return text;
    };
    text.push('\n');
    text += &surrogate(belief);
    text.push('\n');
    text += &optima(&answer.optima, by.units().1);
    for one in &answer.asked {
        text.push('\n');
        text += &look_up(one);
    }
    text
}

/// Formats the ranking of the settings as text; the settings that the search varies have a number.
fn ranking(answer: &Answer) -> String {
    let ranking = &answer.ranking;
    let error = if ranking.is_without_replicates {
        "the residual of the settings, as no configuration was measured twice"
    } else {
        "by rounds of one configuration"
    };
    let mut text = format!(
        "{} configurations, {} mixes; mixes explain {} of the variance.\n\
         Error ({error}, {} degrees of freedom): {} in single measurements, {} more in all of one roll.\n",
        answer.configurations,
        answer.mixes.len(),
        percent(ranking.mixes_share),
        ranking.freedom,
        percent(ranking.within_rolls),
        percent(ranking.between_rolls)
    );
    if !answer.left_out.is_empty() {
        let names = answer.left_out.join(", ");
        _ = writeln!(
            text,
            "Left out of the ranking, because a setting depends on the machine there: {names}."
        );
    }
    text.push('\n');
    let row = |(place, one): (usize, &Ranked)| {
        let optional = |of: Option<String>| of.unwrap_or_else(|| "-".into());
        [
            if place < ranking.kept { format!("{}", place + 1) } else { "-".into() },
            one.name.clone(),
            one.class.into(),
            percent(one.share),
            number(one.f),
            probability(one.p),
            optional(one.f_by_mix.map(number)),
            optional(one.p_by_mix.map(probability)),
            probability(one.p_in_all),
        ]
    };
    let heads = ["", "SETTING", "CLASS", "SHARE", "F", "P", "F BY MIX", "P", "P IN ALL"];
    let rows = ranking.knobs.iter().enumerate().map(row);
    text += &table(&heads, rows, &[3, 4, 5, 6, 7, 8]);
    if let Some(VarianceDrop { from, to, is_to_chance }) = ranking.cut {
        let to_chance = if is_to_chance { "the " } else { "" };
        let of_chance = if is_to_chance { " that chance explains" } else { "" };
        let (from, to) = (percent(from), percent(to));
        _ = writeln!(
            text,
            "The list is cut where the share falls most: from {from} to {to_chance}{to}{of_chance}."
        );
    } else if ranking.kept > 0 {
        text += "The list is cut by --knobs-max.\n";
    }
    if let Some(p) = ranking.lack_of_fit_p.filter(|p| *p < 0.05) {
        _ = writeln!(
            text,
            "The effects do not add up (lack of fit, P {}): some settings interact.",
            probability(p)
        );
    }
    text
}

/// Formats an F statistic with two decimals.
fn number(of: f64) -> String {
    if of.is_finite() { format!("{of:.2}") } else { "beyond any".into() }
}

/// Formats a probability with four decimals.
fn probability(of: f64) -> String {
    if of < 0.0001 { "< 0.0001".into() } else { format!("{of:.4}") }
}

/// Formats the validation of the surrogates (models that predict throughput from settings) as text.
fn surrogate(belief: &ValidationReport) -> String {
    let error = |of: Option<f64>| of.map_or_else(|| "-".into(), percent);
    let row = |one: &Tried| {
        let mark = if one.surrogate == belief.chosen { "chosen" } else { "" };
        [
            one.surrogate.to_owned(),
            error(one.error_at_mixes),
            error(one.error_at_configurations),
            mark.to_owned(),
        ]
    };
    let heads = ["SURROGATE", "ERROR AT NEW MIXES", "AT NEW CONFIGURATIONS", ""];
    let mut text = table(&heads, belief.tried.iter().map(row), &[1, 2]);
    let mixes = belief.error_at_mixes.map_or_else(
        || "unknown with fewer than three mixes".to_owned(),
        |mean| format!("{} at mixes", percent(mean)),
    );
    _ = writeln!(
        text,
        "With the choice made anew each time, without what was left out: {mixes}, {} at configurations ({} if each is \
         taken to serve what the others do).",
        percent(belief.error_at_configurations),
        percent(belief.error_without_settings)
    );
    if belief.error_at_configurations >= belief.error_without_settings {
        text += "The settings predict no better than that: do not trust the optima below.\n";
    }
    text
}

/// Formats the settings of an optimum as `name=value …`.
fn settings(of: &Optimum) -> String {
    of.settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Formats the optima of all mixes as a table, with predictions in `unit`.
fn optima(all: &[Optimum], unit: &str) -> String {
    let gain = |of: f64| format!("{:+.1} %", 100.0 * of);
    let row = |one: &Optimum| {
        [
            one.mix.clone(),
            format!("{:.0}", one.predicted_s),
            one.gain_over_default.map_or_else(|| "-".into(), gain),
            gain(one.gain_over_sampled),
            format!("± {}", percent(one.error)),
            settings(one),
        ]
    };
    let heads = ["BEST FOR", unit, "DEFAULT", "BEST MEASURED", "ERROR", "SETTINGS"];
    let mut text = table(&heads, all.iter().map(row), &[1, 2, 3]);
    for one in all {
        _ = writeln!(text, "{}: {}.", one.mix, one.verdict);
    }
    text
}

/// Formats the optimum that was looked up for one requested mix as text.
fn look_up(of: &LookUp) -> String {
    let how = if of.is_near {
        format!("the optimum of {}, at a distance of {:.3}", of.nearest, of.distance)
    } else {
        format!("searched for, as {} is {:.3} away", of.nearest, of.distance)
    };
    let best = &of.optimum;
    format!("{}: {how}\n  {}\n  {}\n", of.mix, settings(best), best.verdict)
}

//! `imago tune compare`: by how much two configurations of a real database differ, with what certainty.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use imago_load::sample::compare::{self, Bounds, Compared, Effect, EndedBy, Verdict};
use imago_load::sample::{Caller, Request, Sampled};
use imago_plan::tune::workload::Mix as Shares;
use imago_tune::configurations::Configuration;
use imago_workload::mix::Mix;
use serde::Serialize;

use super::measured::{Database, MeasuredArgs};
use super::plan::measurements;
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::values::{duration, share};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first two configurations of the file take turns under one load, in blocks of four (A B B A or B A A B, drawn at random), \
so that what drifts evenly is no difference. The load pauses while the configuration changes: in running nodes if the \
settings are live; otherwise nodes are restarted, or keys written anew, and each turn warms up first. After each block from the third on it is told whether throughput \
differs beyond the noise, which two turns of the same configuration show. At last the cluster has the first configuration \
again.

On a cluster for tests: the load takes all that there is.

Example: imago tune compare --cluster cluster.toml --ns shop.sample --configurations two.toml --mix read=100")]
pub(super) struct Args {
    #[command(flatten)]
    measured: MeasuredArgs,
    /// The mix of operations.
    #[arg(long, value_name = "MIX", default_value = "read=50,update=50")]
    mix: Mix,
    /// The longest that the turns may take; no further block begins then.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    duration_max: Duration,
    /// Blocks, at most.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(3..=1_000))]
    blocks_max: u16,
    /// Difference below which both count as alike, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = share)]
    alike: f64,
    /// Length of a window; throughput is compared from one to the next.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    window: Duration,
    /// Windows of a turn, once throughput has settled.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=100))]
    windows: u8,
    /// Measurements by `imago tune sample`: what they predict is shown beside what was measured.
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// Seed of the order of turns; without it, another one each time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs `imago tune compare` on the database that the cluster file describes.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let (database, configurations) = args.measured.open()?;
    if configurations.len() != 2 {
        let what =
            format!("two configurations are compared, and the file has {}", configurations.len());
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    let predicted = args.measurements.as_deref();
    let predicted =
        predicted.map(|file| predicted_gain(file, &configurations, args.mix)).transpose()?;
    let measure = (args.windows, args.window);
    let request = args.measured.request(configurations, vec![args.mix], measure)?;
    let bounds = Bounds {
        blocks_max: args.blocks_max.into(),
        duration_max: args.duration_max,
        alike: args.alike,
        seed: args.seed,
    };
    match database {
        Database::Cassandra(mut table) => {
            compared(&mut table, &request, &bounds, predicted, context).await
        }
        Database::Redis(mut records) => {
            compared(&mut records, &request, &bounds, predicted, context).await
        }
    }
}

/// The result, with what measurements of each configuration for itself predict.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    compared: Compared,
    /// Predicted change of the operations served per second, as a share; null without measurements.
    predicted: Option<f64>,
}

/// Returns the gain of the second configuration over the first one by measurements, as a share.
fn predicted_gain(file: &Path, configurations: &[Configuration], mix: Mix) -> Result<f64, Failure> {
    let measured = measurements(file)?;
    let number = |one: &Configuration| {
        let found = measured.number(&one.name);
        found.map_err(|error| Failure::from_error(Exit::Usage, "measurements", &error))
    };
    let (from, to) = (number(&configurations[0])?, number(&configurations[1])?);
    let shares = Shares::of([mix.read, mix.update, mix.insert, mix.scan]);
    let rates = measured.throughputs.of(shares.expect("a mix has operations"));
    Ok(rates[to] / rates[from].max(f64::MIN_POSITIVE) - 1.0)
}

/// Compares the configurations on `database`, and prints the result.
async fn compared(
    database: &mut impl Sampled,
    request: &Request,
    bounds: &Bounds,
    predicted: Option<f64>,
    context: &Context,
) -> Result<(), Failure> {
    let (process, say) = (process(), |what: String| eprintln!("{what}"));
    let caller = Caller { process: &process, cancel: &context.cancel, say: &say };
    let compared = Box::pin(compare::compare(database, request, bounds, &caller)).await;
    let compared = compared.map_err(|error| cluster_failure(&error))?;
    let answer = Answer { compared, predicted };
    context.output.result(&answer, |answer| text(answer, bounds))?;
    if answer.compared.ended_by == EndedBy::Interrupted {
        let what = "interrupted: the cluster has the first configuration again";
        return Err(Failure::new(Exit::Interrupted, "interrupted", what));
    }
    Ok(())
}

/// Formats the result as text.
fn text(Answer { compared, predicted }: &Answer, bounds: &Bounds) -> String {
    let [first, second] = &compared.configurations;
    let mut text = match compared.verdict {
        Verdict::More => format!("{second} serves more than {first}.\n"),
        Verdict::Less => format!("{second} serves less than {first}.\n"),
        Verdict::Alike => {
            format!("{second} and {first} differ by less than {:.0} %.\n", 100.0 * bounds.alike)
        }
        Verdict::Undecided => {
            let why = match compared.ended_by {
                EndedBy::Blocks => format!("{} blocks (--blocks-max)", compared.blocks),
                EndedBy::Time => {
                    format!("{} s (--duration-max)", bounds.duration_max.as_secs())
                }
                EndedBy::Verdict | EndedBy::Interrupted => format!("{} blocks", compared.blocks),
            };
            format!("{second} and {first} cannot be told apart by {why}.\n")
        }
    };
    let effects = [
        ("throughput", compared.throughput),
        ("median", compared.median),
        ("99th percentile", compared.p99),
    ];
    for (what, effect) in effects {
        let Some(Effect { change, interval: [low, high] }) = effect else { continue };
        let [change, low, high] = [change, low, high].map(|share| 100.0 * share);
        _ = writeln!(
            text,
            "  {what:<15} {change:+6.1} % (90 % interval {low:+.1} to {high:+.1} %)"
        );
    }
    if let Some(predicted) = predicted {
        _ = writeln!(
            text,
            "  Predicted by the measurements: {:+.1} % throughput.",
            100.0 * predicted
        );
    }
    if let Some(placebo) = compared.placebo {
        _ = writeln!(
            text,
            "  Two turns of the same configuration differ by up to {:.1} %, in nine of ten cases.",
            100.0 * placebo
        );
    }
    let how = if compared.is_live { "in running nodes" } else { "by restarts or with new records" };
    _ = writeln!(
        text,
        "  {} blocks of {} in {:.0} s, changed {how}; warm after {:.0} s.",
        compared.blocks, compared.mix, compared.elapsed_s, compared.warm_s
    );
    if let Some(why) = &compared.not_warm {
        _ = writeln!(text, "  It was not warm when the turns began: {why}.");
    }
    text
}

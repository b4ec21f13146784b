//! `imago tune compare`: by how much two configurations of a real database differ, with what certainty.

use std::fmt::Write as _;
use std::time::Duration;

use imago_load::sample::compare::{self, Bounds, Compared, Effect, EndedBy, Verdict};
use imago_load::sample::{Caller, Request, Sampled};
use imago_workload::mix::Mix;

use super::measured::{Database, MeasuredArgs};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::values::{duration, share};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first two configurations of the file take turns under one load, in blocks of four (A B B A or B A A B, drawn at random), \
so that what drifts evenly is no difference. Settings that are live change while the load goes on; for others the load \
ends, the nodes are restarted, and it begins again. After each block from the third on it is told whether throughput \
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
    let measure = (args.windows, args.window);
    let request = args.measured.request(configurations, vec![args.mix], measure)?;
    let bounds = Bounds {
        blocks_max: args.blocks_max.into(),
        duration_max: args.duration_max,
        alike: args.alike,
        seed: args.seed,
    };
    match database {
        Database::Cassandra(mut table) => compared(&mut table, &request, &bounds, context).await,
        Database::Redis(mut records) => compared(&mut records, &request, &bounds, context).await,
    }
}

/// Compares the configurations on `database`, and prints the result.
async fn compared(
    database: &mut impl Sampled,
    request: &Request,
    bounds: &Bounds,
    context: &Context,
) -> Result<(), Failure> {
    let (process, say) = (process(), |what: String| eprintln!("{what}"));
    let caller = Caller { process: &process, cancel: &context.cancel, say: &say };
    let compared = Box::pin(compare::compare(database, request, bounds, &caller)).await;
    let compared = compared.map_err(|error| cluster_failure(&error))?;
    context.output.result(&compared, |compared| text(compared, bounds))?;
    if compared.ended_by == EndedBy::Interrupted {
        let what = "interrupted: the cluster has the first configuration again";
        return Err(Failure::new(Exit::Interrupted, "interrupted", what));
    }
    Ok(())
}

/// Formats the result as text.
fn text(compared: &Compared, bounds: &Bounds) -> String {
    let [first, second] = &compared.configurations;
    let mut text = match compared.verdict {
        Verdict::More => format!("{second} serves more than {first}.\n"),
        Verdict::Less => format!("{second} serves less than {first}.\n"),
        Verdict::Alike => {
            format!("{second} and {first} differ by less than {:.0} %.\n", 100.0 * bounds.alike)
        }
        Verdict::Open => {
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
    if let Some(placebo) = compared.placebo {
        _ = writeln!(
            text,
            "  Two turns of the same configuration differ by up to {:.1} %, in nine of ten cases.",
            100.0 * placebo
        );
    }
    let how = if compared.is_live { "while the load went on" } else { "with the load ended" };
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

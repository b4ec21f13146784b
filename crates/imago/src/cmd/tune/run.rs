//! `imago tune run`: the loop that observes, decides, rolls and judges.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use imago_mongo::namespace::Namespace;
use imago_plan::tune::judge::Bounds;
use imago_plan::tune::roll::{CostClass, Costs};
use imago_tune::basis::FORECASTS;
use imago_tune::cassandra::controller::{self, Event, Request, Summary};
use imago_tune::cassandra::{Cassandra, ClusterFile};
use imago_tune::configurations::{self, in_order};

use super::plan::{measurements, share};
use super::roll::level;
use crate::cmd::load::{cluster_failure, duration};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What clients ask for is counted by the nodes themselves, and added to the trace interval by interval. At the end of each \
interval a plan is made if it is time for one: by the forecast that would have done best so far, the exact planner, and \
what past rolls took. A change that is due and approved is rolled out, and judged when throughput behind it no longer \
rises: by what is served now against what the old configuration is known to serve of the same mix. One that is worse \
beyond its noise is undone, and not made again for a day.

`imago tune decisions` lists what was decided, and why; `imago tune hold` has the loop change nothing until \
`imago tune go-on`. Ctrl-C lets a node that is under way come back first.

Classes of changes: live (in running nodes), alter (a table's compaction), restart (each node restarts). Without \
--approve only the first two are made.

Example:
  imago tune run --cluster cluster.toml --ns shop.reviews --configurations two.toml --measurements here.csv \
--trace seen.csv --advise")]
pub(super) struct Args {
    /// The file that says how the nodes are reached.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// The table that matters, as keyspace.table.
    #[arg(long, value_name = "TABLE")]
    ns: Namespace,
    /// The file with the configurations.
    #[arg(long, value_name = "FILE")]
    configurations: PathBuf,
    /// What each configuration served of each mix, by `imago tune sample`.
    #[arg(long, value_name = "FILE")]
    measurements: PathBuf,
    /// The file that the past is read from, and that gets each interval; it is made if it is not there.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Decide and say so; change nothing.
    #[arg(long)]
    advise: bool,
    /// Classes of changes that may be made.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CLASS", default_values = ["live", "alter"])]
    approve: Vec<Class>,
    /// Length of an interval.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    interval: Duration,
    /// Time after which it ends; without it when it is interrupted.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Changes within 24 hours, at most.
    #[arg(long, value_name = "N", default_value_t = 12)]
    changes_max: usize,
    /// Gain that a plan needs to be followed, as a share of what is served without it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = share)]
    gain_min: f64,
    /// Share of what the configuration serves that clients have to ask for; below it no change is noticed.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    busy_min: f64,
    /// Forecast to use; without it the one that would have served most.
    #[arg(long, value_name = "NAME", value_parser = FORECASTS)]
    forecast: Option<String>,
    /// Intervals to plan for; without it as many as would have served most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    look_ahead: Option<u16>,
    /// Looks that a change is judged by; there are six to an interval, none of them longer than 20 s.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(3..=100))]
    judged_by: u8,
    /// Loss beyond which a change is undone, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    loss_max: f64,
    /// How many times as long the slowest answers may take before a change is undone.
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    slowest_max: f64,
    /// Share of a machine's memory beyond which a change is undone.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    memory_max: f64,
    /// Consistency level that clients need while nodes restart.
    #[arg(long, value_name = "LEVEL", default_value = "quorum", value_parser = level)]
    consistency: String,
    /// Further failures that have to be withstood meanwhile.
    #[arg(long, value_name = "N", default_value_t = 0)]
    tolerate: usize,
    /// Time for which the first node is compared with the others before and behind its change; the change goes on only if
    /// it does better. 0s: it is not compared.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    canary: Duration,
    /// Time that the restart of a node takes, until a roll has shown it.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    restart: Duration,
}

/// Classes of changes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Class {
    /// In running nodes.
    Live,
    /// By a statement, for all nodes at once.
    Alter,
    /// By a restart of each node.
    Restart,
}

/// Runs the command.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    if args.interval < Duration::from_secs(5) || args.interval.subsec_nanos() > 0 {
        let what = "--interval must be 5s at least, in whole seconds";
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    let cassandra = |error| cluster_failure(&error);
    let file = ClusterFile::read(&args.cluster).map_err(cassandra)?;
    let mut measurements = measurements(&args.measurements)?;
    // Cassandra does not tell inserts from updates.
    measurements.throughputs =
        measurements.throughputs.map(imago_plan::tune::workload::Mix::with_inserts_as_updates);
    let all = configurations::read::<Cassandra>(&args.configurations).map_err(cassandra)?;
    let configurations = in_order(all, &measurements).map_err(cassandra)?;
    if let Some(asked) = args.look_ahead
        && u64::from(asked) * args.interval.as_secs() > 7 * 86_400
    {
        return Err(Failure::new(Exit::Usage, "usage", "--look-ahead reaches beyond a week"));
    }
    let class = |class: &Class| match class {
        Class::Live => CostClass::Live,
        Class::Alter => CostClass::Alter,
        Class::Restart => CostClass::Restart,
    };
    let approved: BTreeSet<CostClass> = args.approve.iter().map(class).collect();
    let costs = Costs { restart_s: args.restart.as_secs_f64(), ..Costs::guessed(file.nodes.len()) };
    let request = Request {
        file,
        configurations,
        table: (args.ns.db, args.ns.coll),
        measurements,
        trace: args.trace,
        interval: args.interval,
        consistency: args.consistency,
        tolerate: args.tolerate,
        canary: args.canary,
        approved,
        is_advising: args.advise,
        changes_max: args.changes_max,
        gain_min: args.gain_min,
        busy_min: args.busy_min,
        forecast: args.forecast,
        look_ahead: args.look_ahead.map(usize::from),
        judged_by: args.judged_by.into(),
        bounds: Bounds { loss: args.loss_max, slowest: args.slowest_max, memory: args.memory_max },
        costs,
        duration: args.duration,
    };
    let say = |event: &Event| {
        // A reader who has gone is found when the result is written.
        let _ = context.output.result(event, |event| format!("{event}\n"));
    };
    let (process, cancel) = (process(), context.cancel.clone());
    let tuned = controller::run(&request, &process, context.events(), cancel, &say);
    let summary = Box::pin(tuned).await.map_err(cassandra)?;
    context.output.result(&summary, text)
}

fn text(summary: &Summary) -> String {
    let Summary { intervals, decisions, changes, undone, failed, .. } = summary;
    format!(
        "{intervals} intervals, {decisions} decisions, {changes} changes; {undone} were undone, {failed} failed\n"
    )
}

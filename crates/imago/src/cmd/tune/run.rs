//! `imago tune run`: the control loop that observes a cluster, decides on changes, rolls them out, and judges them.

use std::path::PathBuf;
use std::time::Duration;

use imago_mongo::namespace::Namespace;
use imago_plan::tune::judge::Bounds;
use imago_plan::tune::roll::{CostClass, Costs};
use imago_tune::cassandra::{self, Cassandra};
use imago_tune::cluster::{self, Database as _, Settings};
use imago_tune::configurations::{self, Configuration, in_order};
use imago_tune::controller::{Event, Request, Summary};
use imago_tune::decision_inputs::{FORECASTS, unusable};
use imago_tune::redis::{self, Redis};

use super::plan::{WeighBy, measurements, season_s};
use super::roll::level;
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::values::{duration, share};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What clients ask for is counted by the nodes themselves, and added to the trace interval by interval. At the end of \
each interval a plan is made if it is time for one: by the forecast that would have done best so far, the exact \
planner, and what past rolls took. A change that is due and approved is rolled out, and judged when throughput after \
it no longer rises: the present throughput is compared with that of the old configuration under the same mix. A change \
that is worse beyond its noise is undone, and not made again for a day.

`imago tune decisions` lists what was decided, and why; `imago tune hold` has the loop change nothing until \
`imago tune go-on`. Ctrl-C lets a node that is under way come back first.

Classes of changes: live (in running nodes), alter (a table's compaction), restart (each node restarts), rewrite (another \
compaction strategy, by which all data is rewritten). Without --approve only the first two are made.

Of Redis all keys count, and decisions are kept beside the cluster file.

Examples:
  imago tune run --cluster cluster.toml --ns shop.reviews --configurations two.toml --measurements here.csv \
--trace seen.csv --advise
  imago tune run --cluster redis.toml --configurations sizes.toml --measurements redis.csv --trace seen.csv")]
pub(super) struct Args {
    /// The file that says how the nodes are reached.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// The table of Cassandra that matters, as keyspace.table.
    #[arg(long, value_name = "TABLE")]
    ns: Option<Namespace>,
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
    /// Minimum load, as a share of the configuration's throughput, now or until the plan's next
    /// change; below it clients would not notice a change.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    busy_min: f64,
    /// What an interval weighs by.
    #[arg(long, value_enum, default_value = "demand", value_name = "WHAT")]
    weigh_by: WeighBy,
    /// Period after which the load of clients repeats, a whole number of intervals, as 8h; by
    /// default a day.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    season: Option<Duration>,
    /// Forecast to use; without it the one that would have served most.
    #[arg(long, value_name = "NAME", value_parser = FORECASTS)]
    forecast: Option<String>,
    /// Intervals to plan for; without it as many as would have served most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    look_ahead: Option<u16>,
    /// Samples by which a change is judged; an interval has six, and none is longer than 20 s.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(3..=100))]
    judged_by: u8,
    /// Judge a live change by the samples before and after it alone; without it both configurations take turns for that
    /// long.
    #[arg(long)]
    no_turns: bool,
    /// Loss beyond which a change is undone, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    loss_max: f64,
    /// Factor by which the slowest replies may slow down before a change is undone.
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    slowest_max: f64,
    /// Share of a machine's memory, or of Redis's maxmemory, beyond which a change is undone.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    memory_max: f64,
    /// Consistency level that clients of Cassandra need while nodes restart; without it quorum.
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    consistency: Option<String>,
    /// Further node failures that the cluster must tolerate meanwhile.
    #[arg(long, value_name = "N", default_value_t = 0)]
    tolerate: usize,
    /// Time for which the first node of Cassandra is compared with the others before and after its
    /// change; the change goes on only if it improves. 0s: no comparison.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    canary: Duration,
    /// Time that the restart of a node takes, until a roll has shown it; without it 60 s, for Redis 5 s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    restart: Option<Duration>,
    /// Time for all data to be rewritten for another compaction strategy, after which such a change
    /// is judged.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    rewrite: Duration,
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
    /// By a statement, after which all data is rewritten: another compaction strategy.
    Rewrite,
}

/// Assumed duration of a restart of a Cassandra node, used until a roll has measured it.
const RESTART: Duration = Duration::from_secs(60);

/// Runs `imago tune run`: tunes the cluster until the given duration is over or the process is interrupted, and
/// prints a summary.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    if args.interval < Duration::from_secs(5) || args.interval.subsec_nanos() > 0 {
        let what = "--interval must be 5s at least, in whole seconds";
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    // Invalid flags are reported before the cluster is contacted.
    let season_s = season_s(args.season, args.interval.as_secs())?;
    if let Some(name) = &args.forecast
        && let Some(why) = unusable(name, season_s, args.interval.as_secs())
    {
        return Err(Failure::new(Exit::Usage, "usage", format!("--forecast {name}: {why}")));
    }
    if let Some(asked) = args.look_ahead
        && u64::from(asked) * args.interval.as_secs() > 7 * 86_400
    {
        return Err(Failure::new(Exit::Usage, "usage", "--look-ahead reaches beyond a week"));
    }
    let database = cluster::file::database(&args.cluster);
    let is_redis = database.map_err(|error| cluster_failure(&error))? == Redis::NAME;
    let summary =
        if is_redis { of_redis(args, context).await } else { of_cassandra(args, context).await };
    context.output.result(&summary?, text)
}

/// Runs the control loop on a Cassandra cluster, and returns its summary.
async fn of_cassandra(args: Args, context: &Context) -> Result<Summary, Failure> {
    if args.ns.is_none() {
        let what = "name the table that matters: --ns KEYSPACE.TABLE";
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    let failed = |error| cluster_failure(&error);
    let file = cassandra::ClusterFile::read(&args.cluster).map_err(failed)?;
    let costs = Costs::guessed(file.nodes.len());
    let request = args.request(Costs { restart_s: RESTART.as_secs_f64(), ..costs })?;
    let configurations = args.configurations::<Cassandra>(&request)?;
    let cluster = cassandra::tuned::TunedCluster {
        file,
        configurations,
        table: args.ns.map(|table| (table.db, table.coll)).expect("it was just looked for"),
        consistency: args.consistency.unwrap_or_else(|| "quorum".into()),
        tolerate: args.tolerate,
        canary: args.canary,
    };
    let (process, cancel) = (process(), context.cancel.clone());
    let say = |event: &Event| say(event, context);
    let tuned = cassandra::tuned::run(&cluster, &request, &process, context.events(), cancel, &say);
    Box::pin(tuned).await.map_err(failed)
}

/// Runs the control loop on a Redis Cluster or a single Redis server, and returns its summary.
async fn of_redis(args: Args, context: &Context) -> Result<Summary, Failure> {
    for (is_named, flag) in [
        (args.ns.is_some(), "--ns"),
        (args.consistency.is_some(), "--consistency"),
        (!args.canary.is_zero(), "--canary"),
    ] {
        if is_named {
            let what = format!("{flag} is for Cassandra, but the cluster file is for Redis");
            return Err(Failure::new(Exit::Usage, "usage", what));
        }
    }
    let failed = |error| cluster_failure(&error);
    let file = redis::ClusterFile::read(&args.cluster).map_err(failed)?;
    let request = args.request(redis::tuned::guessed(file.nodes.len()))?;
    let configurations = args.configurations::<Redis>(&request)?;
    let (path, tolerate) = (args.cluster, args.tolerate);
    let cluster = redis::tuned::TunedCluster { file, path, configurations, tolerate };
    let (process, cancel) = (process(), context.cancel.clone());
    let say = |event: &Event| say(event, context);
    let tuned = redis::tuned::run(&cluster, &request, &process, context.events(), cancel, &say);
    Box::pin(tuned).await.map_err(failed)
}

/// Prints an event of the control loop as a result on stdout.
fn say(event: &Event, context: &Context) {
    // A closed output is detected when the result is written.
    let _ = context.output.result(event, |event| format!("{event}\n"));
}

impl Args {
    /// Reads the configurations, and orders them as the measurements of `request` are ordered.
    fn configurations<D: Settings>(
        &self,
        request: &Request,
    ) -> Result<Vec<Configuration>, Failure> {
        let all = configurations::read::<D>(&self.configurations);
        let ordered = all.and_then(|all| in_order(all, &request.measurements));
        ordered.map_err(|error| cluster_failure(&error))
    }

    /// Returns the settings of the control loop. `guessed` has the costs of changes that no roll has measured yet.
    fn request(&self, guessed: Costs) -> Result<Request, Failure> {
        let measurements = measurements(&self.measurements)?.with_inserts_as_updates();
        let class = |class: &Class| match class {
            Class::Live => CostClass::Live,
            Class::Alter => CostClass::Alter,
            Class::Restart => CostClass::Restart,
            Class::Rewrite => CostClass::Rewrite,
        };
        let restart_s = self.restart.map_or(guessed.restart_s, |restart| restart.as_secs_f64());
        Ok(Request {
            measurements,
            trace: self.trace.clone(),
            interval: self.interval,
            season: Duration::from_secs(season_s(self.season, self.interval.as_secs())?),
            approved: self.approve.iter().map(class).collect(),
            is_advising: self.advise,
            changes_max: self.changes_max,
            gain_min: self.gain_min,
            busy_min: self.busy_min,
            weight: self.weigh_by.weight(),
            forecast: self.forecast.clone(),
            look_ahead: self.look_ahead.map(usize::from),
            judged_by: self.judged_by.into(),
            takes_turns: !self.no_turns,
            bounds: Bounds {
                loss: self.loss_max,
                slowest: self.slowest_max,
                memory: self.memory_max,
            },
            costs: Costs { restart_s, rewrite_s: self.rewrite.as_secs_f64(), ..guessed },
            duration: self.duration,
        })
    }
}

/// Formats the summary of the control loop as text.
fn text(summary: &Summary) -> String {
    let Summary { intervals, decisions, changes, undone, failed, .. } = summary;
    format!(
        "{intervals} intervals, {decisions} decisions, {changes} changes; {undone} were undone, {failed} failed\n"
    )
}

//! `imago tune plan`: advice on changes of a database's configuration, from a trace and measurements.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use imago_plan::tune::planner::Weight;
use imago_plan::tune::roll::{CostClass, Costs, Rule};
use imago_plan::tune::workload::Mix;
use imago_tune::advice::{Advice, Question, advise};
use imago_tune::cassandra::costs;
use imago_tune::cassandra::{Cassandra, ClusterFile};
use imago_tune::cluster::{self, Database as _, Settings};
use imago_tune::configurations::{self, in_order};
use imago_tune::decision_inputs::{
    DAY_S, DecisionInputs, FORECASTS, Planning, Transition, uniform_transitions,
};
use imago_tune::error::Error;
use imago_tune::measurements::{CASSANDRA, Measurements, REDIS};
use imago_tune::redis::{self, Redis};
use imago_tune::trace::Trace;
use imago_tune::transition_costs;
use serde::Serialize;

use super::database::Database;
use super::roll::level;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;
use crate::values::{duration, share};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
TRACE is a CSV of what clients asked for, interval by interval: start,reads,updates,inserts,scans. - is standard input; a file \
may be packed (gzip). \
Starts (or time, timestamp) are seconds, milli-, micro- or nanoseconds since 1970, which is told by their size, or as 2014-04-10T00:04:00Z. \
`imago tune import` makes one of Prometheus' answers and of cassandra-stress's log. It may tell what records they asked for: record_bytes, the mean size; \
reuse_distance, the other records between two requests of one. If the measurements tell that, too, and differ by more than a \
factor of two, the advice says so. The measurements are a CSV of what each \
configuration served of a mix: configuration,operations_s,reads,updates,inserts,scans. Columns of \
operations that there are not may be left out.

Intervals are weighted by the demand of clients (--weigh-by). The planner learns from the first two thirds of the \
trace, and its plans for the last third are simulated and compared with other policies; then it learns from the whole \
trace, and its plan for the time after the trace is the advice.

Examples:
  imago tune plan buses.csv
  imago tune plan buses.csv --measurements here.csv --current size-tiered --nodes 6 --at-once 2 --restart 60s
  imago tune plan seen.csv --measurements here.csv --current uploads --cluster cluster.toml")]
pub struct Args {
    /// The trace of the operations of clients.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// The throughput of each configuration with each mix; by default the measurements that come
    /// with Imago, of a small cluster of --database.
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// The database whose measurements are taken, without --measurements, and whose settings --configurations has; with
    /// --cluster that of the cluster.
    #[arg(long, value_enum, default_value = "cassandra", value_name = "DATABASE")]
    database: Database,
    /// The file with the configurations: it tells what each change takes, in place of --class.
    #[arg(long, value_name = "FILE", conflicts_with = "class", requires = "measurements")]
    configurations: Option<PathBuf>,
    /// The known load after the trace, likewise as a CSV: a queue of jobs, for example. The plan is
    /// made for this load.
    #[arg(long, value_name = "FILE", conflicts_with = "look_ahead")]
    queue: Option<PathBuf>,
    /// The configuration at present; without it the first one in the measurements.
    #[arg(long, value_name = "NAME")]
    current: Option<String>,
    /// The default configuration, to compare with; without it the first one in the measurements.
    #[arg(long, value_name = "NAME")]
    default: Option<String>,
    /// The file that says how a cluster's nodes are reached: their number, how many may be away together, and what restarts
    /// took in its past rolls are then told by the cluster.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "at_once", "restart", "catch_up"])]
    cluster: Option<PathBuf>,
    /// The consistency level that clients need while nodes are away, with --cluster.
    #[arg(long, value_name = "LEVEL", default_value = "quorum", value_parser = level)]
    consistency: String,
    /// Further node failures that the cluster must tolerate meanwhile, with --cluster.
    #[arg(long, value_name = "F", default_value_t = 0)]
    tolerate: usize,
    /// The number of nodes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    nodes: u16,
    /// Nodes that may be away together.
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    at_once: u16,
    /// Dearest change between two configurations.
    #[arg(long, value_enum, default_value = "restart", value_name = "CLASS")]
    class: Class,
    /// Time from a node's stop until it has what it missed; for example 60s, 5m.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    restart: Duration,
    /// Share of that time in which the node serves again and catches up.
    #[arg(long, value_name = "SHARE", default_value_t = 0.65, value_parser = share)]
    catch_up: f64,
    /// Capacity of a node that catches up, as a share of its own.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    catch_up_capacity: f64,
    /// Time for all data to be rewritten, for the class rewrite.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    rewrite: Duration,
    /// Share of the capacity that rewriting takes.
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, value_parser = share)]
    rewrite_takes: f64,
    /// Rule by which a roll is counted: phase by phase, or by SOPHIA's Eq. 8 as it is printed.
    #[arg(long, value_enum, default_value = "phases", value_name = "HOW")]
    rule: By,
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
    /// Changes of a plan, at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    changes_max: Option<u16>,
    /// Gain that a plan needs to be followed, as a share of what is served without it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = share)]
    gain_min: f64,
}

/// What it takes to change a configuration.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Class {
    /// In running nodes.
    Live,
    /// By a statement, for all nodes at once.
    Alter,
    /// By a restart of each node.
    Restart,
    /// By a statement, after which all data is rewritten.
    Rewrite,
}

/// How a roll is counted.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
    /// What is served in each phase.
    Phases,
    /// Eq. 8 as it is printed.
    Printed,
}

/// What an interval weighs by.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum WeighBy {
    /// What clients ask for in it: a change goes into a quiet time.
    Demand,
    /// What could be served in it, as in SOPHIA.
    Capacity,
}

impl WeighBy {
    /// Converts the argument into the planner's weight of intervals.
    pub(super) fn weight(self) -> Weight {
        match self {
            Self::Demand => Weight::Demand,
            Self::Capacity => Weight::Capacity,
        }
    }
}

impl Args {
    /// Returns the costs of a change: measured by the cluster's past rolls, or given by flags.
    async fn costs(&self) -> Result<Costs, Failure> {
        let costs = match &self.cluster {
            Some(path) => {
                let told = async {
                    if cluster::file::database(path)? == Redis::NAME {
                        let file = redis::ClusterFile::read(path)?;
                        return redis::tuned::costs(&file, path).await;
                    }
                    let file = ClusterFile::read(path)?;
                    costs::costs(&file, &self.consistency, self.tolerate).await
                };
                told.await.map_err(|error| cluster_failure(&error))?
            }
            None => Costs {
                at_once: self.at_once.min(self.nodes).into(),
                restart_s: self.restart.as_secs_f64(),
                catch_up: self.catch_up,
                ..Costs::guessed(self.nodes.into())
            },
        };
        Ok(Costs {
            catch_up_capacity: self.catch_up_capacity,
            rewrite_s: self.rewrite.as_secs_f64(),
            rewrite_takes: self.rewrite_takes,
            ..costs
        })
    }
}

/// The advice and the origin of its measurements, for programs.
#[derive(Serialize)]
struct Planned<'p> {
    /// Path of the file of measurements; for those that ship with Imago, a description.
    measurements: &'p str,
    #[serde(flatten)]
    advice: Advice,
}

/// Runs `imago tune plan`: computes and prints the advice.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let read = async |path: &Path| -> Result<(String, Trace), Failure> {
        let file = path.display().to_string();
        let (name, from) = (file.clone(), opened(path)?);
        let trace = computed(context, move || Trace::read(&name, from)).await?;
        Ok((file, trace.map_err(failure)?))
    };
    let (file, mut trace) = read(&args.trace).await?;
    let mut queue = match &args.queue {
        Some(path) => Some(read(path).await?),
        None => None,
    };
    let database = match &args.cluster {
        None => args.database,
        Some(path) => match cluster::file::database(path) {
            Ok(name) if name == Redis::NAME => Database::Redis,
            Ok(_) => Database::Cassandra,
            Err(error) => return Err(cluster_failure(&error)),
        },
    };
    let shipped = match database {
        Database::Cassandra => CASSANDRA,
        Database::Redis => REDIS,
    };
    let (measured_by, measurements) = match &args.measurements {
        Some(path) => (path.display().to_string(), measurements(path)?),
        None => (
            format!("{}, which comes with Imago: {}", shipped.file, shipped.origin),
            Measurements::shipped(shipped),
        ),
    };
    if measurements.samples.iter().all(|one| one.measured.mix.shares()[2] == 0.0) {
        // Without a measured mix that has inserts, inserts count as updates.
        let queued = queue.iter_mut().flat_map(|(_, queue)| &mut queue.intervals);
        for interval in trace.intervals.iter_mut().chain(queued) {
            interval.mix = interval.mix.map(Mix::with_inserts_as_updates);
        }
    }
    let number = |name: &Option<String>| match name {
        Some(name) => measurements.number(name).map_err(failure),
        None => Ok(0),
    };
    let class = match args.class {
        Class::Live => CostClass::Live,
        Class::Alter => CostClass::Alter,
        Class::Restart => CostClass::Restart,
        Class::Rewrite => CostClass::Rewrite,
    };
    let transitions = match &args.configurations {
        None => uniform_transitions(measurements.names.len(), class),
        Some(path) => match database {
            Database::Cassandra => transitions::<Cassandra>(path, &measurements)?,
            Database::Redis => transitions::<Redis>(path, &measurements)?,
        },
    };
    let (season_s, costs) = (season_s(args.season, trace.interval_s)?, args.costs().await?);
    let (current, default) = (number(&args.current)?, number(&args.default)?);
    let (is_shipped, together) = (args.measurements.is_none(), trace.together);
    let advice = computed(context, move || {
        let planning = Planning {
            interval_s: trace.interval_s,
            season_s,
            costs,
            transitions,
            rule: match args.rule {
                By::Phases => Rule::Phases,
                By::Printed => Rule::Published,
            },
            gain_min: args.gain_min,
            forecast: args.forecast,
            look_ahead: args.look_ahead.map(usize::from),
            changes_max: args.changes_max.map(usize::from),
            weight: args.weigh_by.weight(),
        };
        let basis = DecisionInputs { measurements: &measurements, planning: &planning, current };
        let queue = queue.as_ref().map(|(file, queue)| (queue, &**file));
        advise(&Question { trace: &trace, file: &file, default, queue, basis })
    });
    let planned = Planned { measurements: &measured_by, advice: advice.await?.map_err(failure)? };
    context.output.result(&planned, |planned| {
        let mut told = text(&planned.advice);
        if together > 1 {
            let (lasts_s, whole) = (planned.advice.interval_s, planned.advice.intervals);
            _ = writeln!(
                told,
                "\nEach {together} intervals of the trace were merged: decisions are based on \
                 {whole} intervals of {lasts_s} s."
            );
        }
        if is_shipped {
            _ = writeln!(told, "\nBy {measured_by}. Measure your own: imago tune sample.");
        }
        told
    })
}

/// Returns the cost class of the change from each configuration to each other one. All classes are approved.
fn transitions<D: Settings>(
    path: &Path,
    measurements: &Measurements,
) -> Result<Vec<Vec<Transition>>, Failure> {
    let every = [CostClass::Live, CostClass::Alter, CostClass::Restart, CostClass::Rewrite].into();
    let told = configurations::read::<D>(path)
        .and_then(|all| in_order(all, measurements))
        .and_then(|all| transition_costs::transitions::<D>(&all, &every));
    told.map_err(|error| cluster_failure(&error))
}

/// Returns the length of a season in seconds: a day by default. A given season must be a whole number of intervals.
pub(super) fn season_s(season: Option<Duration>, interval_s: u64) -> Result<u64, Failure> {
    let Some(season) = season else { return Ok(DAY_S.max(interval_s)) };
    let season_s = season.as_secs();
    if season.subsec_nanos() == 0 && season_s >= interval_s && season_s.is_multiple_of(interval_s) {
        return Ok(season_s);
    }
    let what =
        format!("--season is {season_s} s, and intervals of {interval_s} s do not divide it");
    Err(Failure::new(Exit::Usage, "usage", what))
}

/// Reads a file of measurements of configurations.
pub(in crate::cmd) fn measurements(path: &Path) -> Result<Measurements, Failure> {
    Measurements::read(&path.display().to_string(), opened(path)?).map_err(failure)
}

/// Opens a file for reading; `-` is standard input.
pub(super) fn opened(path: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(std::io::stdin()));
    }
    match File::open(path) {
        Ok(file) => Ok(Box::new(file)),
        Err(cause) => {
            let problem = format!("cannot read {}", path.display());
            Err(Failure::new(Exit::Usage, "file", problem).because(&cause))
        }
    }
}

/// Runs a long computation on another thread and returns its result; a signal ends the wait with a failure.
pub(super) async fn computed<T: Send + 'static>(
    context: &Context,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let computing = tokio::task::spawn_blocking(compute);
    tokio::select! {
        done = computing => done.map_err(|cause| {
            Failure::new(Exit::Failed, "computation", "the computation ended early").because(&cause)
        }),
        () = context.cancel.cancelled() => {
            let what = "interrupted; nothing was changed, and nothing is persisted";
            Err(Failure::new(Exit::Interrupted, "interrupted", what))
        }
    }
}

/// Converts an error of a trace or of measurements into a failure.
pub(super) fn failure(error: Error) -> Failure {
    Failure::from_error(Exit::Usage, "trace", &error)
}

/// Formats the advice as text.
fn text(advice: &Advice) -> String {
    // Adding 0.0 removes the sign of a negative zero.
    let rounded = |share: f64| (share * 1_000.0).round() / 10.0 + 0.0;
    let percent = |share: f64| format!("{:+.1} %", rounded(share));
    let minutes = |intervals: usize| intervals as f64 * advice.interval_s as f64 / 60.0;
    let mut text = match advice.plan.first() {
        None => format!("Stay with {}: no change pays.\n", advice.current),
        Some(first) => {
            format!(
                "Change from {} to {}: {}.\n",
                advice.current,
                first.to,
                percent(advice.expected.gain)
            )
        }
    };
    for change in &advice.plan {
        _ = writeln!(text, "  at {}  {}", moment(change.at_s), change.to);
    }
    _ = writeln!(
        text,
        "  expected by {} within {} intervals ({:.0} min); a roll takes {:.0} s",
        advice.forecast,
        advice.look_ahead,
        minutes(advice.look_ahead),
        advice.roll_s
    );
    if let Some(peak) = advice.busy_peak {
        _ = writeln!(
            text,
            "  until the plan's next change clients ask for {:.1} % of what {} serves, at their peak",
            peak * 100.0,
            advice.current
        );
    }
    if let Some(sure) = &advice.confidence {
        let (low, high) = (percent(sure.gain_low), percent(sure.gain_high));
        _ = writeln!(
            text,
            "  between {low} and {high} in eight of ten cases, by the results of {} past plans; \
             {:.0} % of them gained",
            sure.plans,
            sure.gained * 100.0
        );
    }
    for doubt in &advice.records.doubts {
        _ = writeln!(text, "  {doubt}");
    }
    for other in &advice.alternatives {
        _ = writeln!(text, "  {}", other.because);
    }
    let lived = &advice.replay;
    _ = writeln!(
        text,
        "\nThe last {} of {} intervals, simulated: {} changes, {} plans, {} of them because the \
         load differed from the forecast{}.",
        lived.lived,
        advice.intervals,
        lived.changes,
        lived.plans,
        lived.departures,
        if advice.missing > 0 {
            format!("; {} intervals of the trace are missing", advice.missing)
        } else {
            String::new()
        }
    );
    let rows = advice.baselines.iter().map(|one| {
        let against = percent(one.planned_ratio - 1.0);
        [one.name.to_owned(), format!("{:.0}", one.served), one.changes.to_string(), against]
    });
    text.push_str(&table(&["BESIDE", "SERVED", "CHANGES", "PLANNED"], rows, &[1, 2, 3]));
    text.push('\n');
    let error = |rmse: Option<&Option<f64>>| {
        rmse.copied()
            .flatten()
            .map_or_else(|| "-".into(), |error| format!("{:.1} %", error * 100.0))
    };
    let rows = advice.forecasts.iter().map(|one| {
        let at = |distance: usize| error(one.rmse.get(distance - 1));
        [one.name.to_owned(), at(1), at(3), at(12)]
    });
    text.push_str(&table(&["FORECAST", "RMSE 1", "3", "12 INTERVALS"], rows, &[1, 2, 3]));
    if let Some(demand) = &advice.demand {
        let share = |rmse: Option<f64>| {
            rmse.filter(|_| demand.mean_s > 0.0).map(|rmse| rmse / demand.mean_s)
        };
        let rows = demand.forecasts.iter().map(|one| {
            let at =
                |distance: usize| error(one.rmse.get(distance - 1).map(|of| share(*of)).as_ref());
            [one.name.to_owned(), at(1), at(3), at(12)]
        });
        _ = writeln!(
            text,
            "\nClients ask for {:.1} operations a second in the mean; the forecast of the rate is \
             {}.",
            demand.mean_s, demand.forecast
        );
        text.push_str(&table(&["DEMAND", "RMSE 1", "3", "12 INTERVALS"], rows, &[1, 2, 3]));
    }
    text
}

/// Formats a time in seconds since 1970 as a date and time in UTC.
pub(super) fn moment(at_s: u64) -> String {
    let at =
        i64::try_from(at_s).ok().and_then(|s| time::OffsetDateTime::from_unix_timestamp(s).ok());
    let told = at.map(|at| {
        format!("{} {:02}:{:02}:{:02} UTC", at.date(), at.hour(), at.minute(), at.second())
    });
    told.unwrap_or_else(|| format!("{at_s} s"))
}

//! The benchmark `sophia-buses`: the bus-tracking workload of SOPHIA (§5) on real nodes, a day in minutes. The fixed
//! configurations and the tuner take turns.
//!
//! A method is a fixed configuration or the tuner. All methods serve the same phases, in rounds of alternating order,
//! on nodes that two phases have warmed up. Each starts with a newly filled table with the same rows. The tuner
//! starts with the default configuration, so the cost of its changes counts. Its trace has ten earlier days like the
//! present one, and its throughputs are those of the fixed configurations in the rounds so far. A client sends its
//! next operation as soon as one is answered, so the operations served measure the capacity of the cluster.

mod past;
mod served;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use imago_job::clock;
use imago_job::reporter::Events;
use imago_plan::tune::judge::Bounds;
use imago_plan::tune::planner::Weight;
use imago_plan::tune::records::Records;
use imago_plan::tune::roll::Costs;
use imago_plan::tune::sampling::order;
use imago_plan::tune::throughput::{Measured, Throughputs};
use imago_plan::tune::workload::Mix as Shares;
use imago_tune::cassandra::ClusterFile;
use imago_tune::cassandra::roll::{Roller, Spec};
use imago_tune::cassandra::tuned::{self, TunedCluster};
use imago_tune::cassandra::{Consistency, Error, Result};
use imago_tune::configurations::{Configuration, in_order};
use imago_tune::controller::{self, Request};
use imago_tune::measurements::{Measurements, Sample};
use imago_workload::driver::{self, Arrival, Options, Report as LoadReport};
use imago_workload::history::{IdForm, Recorder};
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::served::{compared, default_seconds, rate, served, slots};
use super::drawing;
use crate::Header;
use crate::statistics::Figure;
use imago_load::Schema;
use imago_load::cassandra::{CassandraTarget, preload};

/// Mix of operations while buses move.
const MOVING: &str = "read=1,update=93,insert=6";
/// Mix of operations while passengers search for buses.
const SEARCHING: &str = "read=1,update=5,scan=94";
const TABLE: (&str, &str) = ("buses", "positions");
/// Length of the tuner's intervals, which stand for a quarter of an hour each.
const INTERVAL: Duration = Duration::from_secs(5);
/// Look-ahead of the tuner's plans, in intervals.
const LOOK_AHEAD: usize = 12;
const ROW_BYTES: u32 = 1_000;
/// Duration of a load before each measurement, so that no method starts with unfinished work of the previous one.
const WARM: Duration = Duration::from_secs(10);

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of rounds; in each, every method serves all phases.
    pub rounds: u32,
    /// Number of phases: buses that move and buses that are searched for, alternately.
    pub phases: u32,
    /// Mean length of a phase, in seconds; lengths vary by up to a quarter.
    pub phase_s: u32,
    /// Number of rows before the load.
    pub rows: u64,
    /// Number of operations in flight.
    pub clients: u32,
    /// Number of nodes of the cluster.
    pub nodes: u8,
    /// CPU limit of each node, in percent of one processor; 0 is no limit.
    pub cpu_percent: u16,
    /// Seed of the phases.
    pub seed: u64,
}

/// Inputs of the benchmark.
#[derive(Debug)]
pub struct Setup<'s> {
    /// Access to the nodes.
    pub file: ClusterFile,
    /// The configurations, the default first. No difference between them needs a restart.
    pub configurations: Vec<Configuration>,
    /// Name of the process that rolls the cluster.
    pub process: &'s str,
    /// Folder of the tuner's traces.
    pub folder: &'s Path,
    /// Folder of the picture; None draws none.
    pub pictures: Option<&'s Path>,
}

/// Result of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Lengths of the phases, in seconds.
    pub phases_s: Vec<f64>,
    /// The methods: the fixed configurations, the default first, and the tuner last.
    pub ways: Vec<Way>,
    /// Name of the best fixed configuration, by the median of its operations.
    pub static_optimal: String,
    /// Operations of the tuner divided by those of the default configuration in the same round.
    pub ratio_to_default: Figure,
    /// Operations of the tuner divided by those of the best fixed configuration in the same round.
    pub ratio_to_static_optimal: Figure,
    /// Name of the best fixed configuration by normalised operations, as in the paper's Fig. 4: an operation counts
    /// as the time that the default configuration needs for one of its mix.
    pub static_optimal_normalised: String,
    /// [`Self::ratio_to_default`], with normalised operations.
    pub normalised_ratio_to_default: Figure,
    /// [`Self::ratio_to_static_optimal`], with normalised operations.
    pub normalised_ratio_to_static_optimal: Figure,
    /// Changes of the tuner that were judged.
    pub judged: Vec<Change>,
    /// Median of the absolute differences between the realised and the predicted gains, as shares of the predicted
    /// gains; null if no change was judged.
    pub prediction_error_median: Option<f64>,
    /// Files of the picture.
    pub pictures: Vec<PathBuf>,
}

/// Measurements of a method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Name of the configuration, or `tuned`.
    pub name: String,
    /// Number of operations served in each round.
    pub operations: Vec<u64>,
    /// Time that the default configuration would need for the operations of each round, in seconds.
    pub default_seconds: Vec<f64>,
    /// Operations per second while buses move, without the start of each phase.
    pub moving_s: Figure,
    /// Operations per second while buses are searched for, without the start of each phase.
    pub searching_s: Figure,
    /// 99th percentile of the latency of writes, in milliseconds.
    pub write_p99_ms: Figure,
    /// 99th percentile of the latency of reads and scans, in milliseconds.
    pub read_p99_ms: Figure,
    /// Number of changes of the configuration in all rounds.
    pub changes: u64,
    /// Number of changes that were reverted.
    pub undone: u64,
    /// Number of operations that failed because too few replicas were available or answered in time.
    pub failed_for_availability: u64,
    /// Number of operations that failed for other reasons.
    pub failed: u64,
}

/// A change that was judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Round of the change, from 0 on.
    pub round: usize,
    /// Name of the new configuration.
    pub to: String,
    /// Predicted gain, as a share.
    pub predicted: f64,
    /// Realised gain, as a share.
    pub realised: f64,
    /// Twice the standard error of [`Self::realised`].
    pub noise: f64,
}

/// One run of a method.
struct Run {
    report: LoadReport,
    tuned: controller::Summary,
}

/// Runs all rounds of all methods.
///
/// # Errors
/// Fails if the cluster cannot be loaded, rolled or observed, or if a picture cannot be drawn.
#[crate::boxed(?Send)]
pub async fn run(
    size: Size,
    setup: &Setup<'_>,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Report> {
    let phases = phases(size);
    let ways = setup.configurations.len() + 1;
    let mut runs: Vec<Vec<Run>> = (0..ways).map(|_| Vec::new()).collect();
    let mut made: Vec<Vec<usize>> = vec![Vec::new(); ways];
    // The JVMs compile frequent code first: without this load, the first method would be the slowest.
    let first = phases.iter().take(2).copied().collect::<Vec<_>>();
    one(size, setup, None, &first, (0, 0), cancel).await?;
    say("the nodes are warm".into());
    for (round, way) in order(ways, size.rounds as usize) {
        if cancel.is_cancelled() {
            return Err(Error::Failed {
                what: "the benchmark was interrupted".into(),
                help: "nothing of it remains".into(),
            });
        }
        let measurements = measurements(setup, &runs[..ways - 1], &phases);
        let run = one(size, setup, measurements, &phases, (round, way), cancel).await?;
        let (name, served) = (name(setup, way), served(&run.report));
        say(format!("round {}: {name} served {served}, {} changes", round + 1, run.tuned.changes));
        runs[way].push(run);
        made[way].push(round);
    }
    let default_rates = [0, 1].map(|parity| {
        let of = |run: &Run| rate(&run.report, &phases, parity);
        runs[0].iter().map(of).sum::<f64>() / runs[0].len() as f64
    });
    let all: Vec<Way> =
        (0..ways).map(|way| totals(name(setup, way), &runs[way], &phases, default_rates)).collect();
    let operations = |way: &Way| way.operations.iter().map(|n| *n as f64).collect::<Vec<_>>();
    let normalised = |way: &Way| way.default_seconds.clone();
    let (best, ratios) = compared(&all, operations);
    let (best_normalised, normalised_ratios) = compared(&all, normalised);
    let judged = judged(&runs[ways - 1], &made[ways - 1]);
    let error =
        |change: &Change| (change.realised - change.predicted).abs() / change.predicted.abs();
    let errors: Vec<f64> =
        judged.iter().filter(|change| change.predicted != 0.0).map(error).collect();
    let phases_s: Vec<f64> = phases.iter().map(|(length, _)| length.as_secs_f64()).collect();
    let drawn = drawing::buses(&over_time(setup, &runs), &phases_s, setup.pictures);
    let pictures = drawn.map_err(|error| Error::Usage(error.to_string()))?;
    Ok(Report {
        header: Header::of("sophia-buses", size),
        static_optimal: best,
        ratio_to_default: ratios.0,
        ratio_to_static_optimal: ratios.1,
        static_optimal_normalised: best_normalised,
        normalised_ratio_to_default: normalised_ratios.0,
        normalised_ratio_to_static_optimal: normalised_ratios.1,
        phases_s,
        prediction_error_median: (!errors.is_empty()).then(|| Figure::of(errors).median),
        judged,
        pictures,
        ways: all,
    })
}

fn mix(text: &str) -> Mix {
    text.parse().expect("a mix")
}

/// Returns the shares of a mix as Cassandra counts operations: inserts are updates.
fn shares(mix: &Mix) -> Shares {
    let shares = Shares::of([mix.read, mix.update, mix.insert, mix.scan]);
    shares.expect("a mix has operations").with_inserts_as_updates()
}

fn name(setup: &Setup<'_>, way: usize) -> String {
    setup.configurations.get(way).map_or_else(|| "tuned".to_owned(), |one| one.name.clone())
}

/// Returns the length and the mix of each phase.
fn phases(size: Size) -> Vec<(Duration, Mix)> {
    let mut dice = StdRng::seed_from_u64(size.seed);
    let one = |number| {
        // Phases have whole intervals, so that all days have the same number of them.
        let intervals = f64::from(size.phase_s) * dice.random_range(0.75..1.25);
        let intervals = (intervals / INTERVAL.as_secs_f64()).round().max(1.0);
        let asked = if number % 2 == 0 { MOVING } else { SEARCHING };
        (INTERVAL * intervals as u32, mix(asked))
    };
    (0..size.phases).map(one).collect()
}

fn schema() -> Schema {
    Schema {
        id_form: IdForm::Text,
        reviews: Reviews { size_bytes: ROW_BYTES, ..Reviews::default() },
    }
}

/// Runs a method once, on a newly filled table.
async fn one(
    size: Size,
    setup: &Setup<'_>,
    measurements: Option<Measurements>,
    phases: &[(Duration, Mix)],
    (round, way): (usize, usize),
    cancel: &CancellationToken,
) -> Result<Run> {
    let is_tuned = way == setup.configurations.len();
    let table = format!("{}.{}", TABLE.0, TABLE.1);
    let begins = Spec::of(&setup.configurations, if is_tuned { 0 } else { way }, &table);
    let connect =
        || CassandraTarget::connect(&setup.file.uri, TABLE, Consistency::Quorum, schema());
    let target = connect().await?;
    target.truncate().await?;
    let roller = Roller::connect(setup.file.clone(), begins).await?;
    Box::pin(roller.begin(setup.process, &Events::default(), cancel.clone())).await?;
    preload(&target, size.rows, |_| {}).await?;
    let warm = [(WARM, mix("read=1,update=49,scan=50"))];
    serve(size, target, &warm, round).await?;

    let target = connect().await?;
    let over = CancellationToken::new();
    let day_s = phases.iter().map(|(length, _)| length.as_secs()).sum();
    let trace = setup.folder.join(format!("seen-{round}.csv"));
    if is_tuned {
        let begins_s = begin_of_an_interval().await;
        past::write(&trace, begins_s, phases, INTERVAL.as_secs(), size.seed + round as u64)
            .map_err(|cause| Error::Usage(format!("cannot write {}: {cause}", trace.display())))?;
    }
    let serving = async {
        let served = serve(size, target, phases, round).await;
        over.cancel();
        served
    };
    let tuning = async {
        let Some(measurements) = measurements.filter(|_| is_tuned) else {
            return Ok(controller::Summary::default());
        };
        let configurations = in_order(setup.configurations.clone(), &measurements)?;
        let table = (TABLE.0.into(), TABLE.1.into());
        let cluster = TunedCluster::new(setup.file.clone(), configurations, table);
        let (request, events) = (request(setup, measurements, trace, day_s), Events::default());
        let (process, over) = (setup.process, over.clone());
        let tuned = tuned::run(&cluster, &request, process, &events, over, &|_| {});
        Box::pin(tuned).await
    };
    let (report, tuned) = tokio::join!(Box::pin(serving), Box::pin(tuning));
    Ok(Run { report: report?, tuned: tuned? })
}

/// Runs a load with one mix after the other; a client sends its next operation as soon as one is answered.
async fn serve(
    size: Size,
    target: CassandraTarget,
    phases: &[(Duration, Mix)],
    seed: usize,
) -> Result<LoadReport> {
    let mut begins = Duration::ZERO;
    let mut turns = Vec::new();
    for (length, asked) in phases {
        turns.push((begins, *asked));
        begins += *length;
    }
    let (_, first) = turns.remove(0);
    let options = Options {
        mix: first,
        turns,
        arrival: Arrival::Closed,
        duration: Some(begins),
        in_flight_max: size.clients,
        preloaded: size.rows,
        reviews: schema().reviews,
        seed: seed as u64 + 1,
        ..Options::default()
    };
    let wrong = |error: driver::DriverError| Error::Failed {
        what: error.to_string(),
        help: "the benchmark can be begun again".into(),
    };
    let running = driver::start(options, Arc::new(target), Recorder::nothing()).map_err(wrong)?;
    Ok(running.finish().await.map_err(wrong)?.0)
}

/// Waits for the start of an interval by the tuner's clock, and returns it in seconds since 1970.
async fn begin_of_an_interval() -> u64 {
    let length_ms = INTERVAL.as_millis() as u64;
    let now_ms = clock::now_ms();
    let begins_ms = now_ms.next_multiple_of(length_ms);
    tokio::time::sleep(Duration::from_millis(begins_ms - now_ms)).await;
    begins_ms / 1_000
}

fn request(setup: &Setup<'_>, measurements: Measurements, trace: PathBuf, day_s: u64) -> Request {
    let costs = Costs::guessed(setup.file.nodes.len());
    Request {
        season: Duration::from_secs(day_s),
        changes_max: 1_000,
        busy_min: 0.0,
        weight: Weight::Capacity,
        look_ahead: Some(LOOK_AHEAD),
        // Nodes and clients share the processors, so the slowest replies do not show the quality of a change.
        bounds: Bounds { slowest: f64::INFINITY, ..Bounds::default() },
        ..Request::new(measurements, trace, INTERVAL, costs)
    }
}

fn totals(name: String, runs: &[Run], phases: &[(Duration, Mix)], default_rates: [f64; 2]) -> Way {
    let p99 = |of: fn(&LoadReport) -> u64| {
        Figure::of(runs.iter().map(|run| of(&run.report) as f64 / 1_000.0))
    };
    let of_phases = |parity| Figure::of(runs.iter().map(|run| rate(&run.report, phases, parity)));
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let all_failed = |run: &Run| run.report.reads.tally.failed + run.report.writes.tally.failed;
    let unavailable = sum(|run| run.report.unavailable);
    Way {
        name,
        operations: runs.iter().map(|run| served(&run.report)).collect(),
        default_seconds: runs
            .iter()
            .map(|run| default_seconds(&run.report, phases, default_rates))
            .collect(),
        moving_s: of_phases(0),
        searching_s: of_phases(1),
        write_p99_ms: p99(|report| report.writes.latency.p99_us),
        read_p99_ms: p99(|report| report.reads.latency.p99_us),
        changes: sum(|run| run.tuned.changes),
        undone: sum(|run| run.tuned.undone),
        failed_for_availability: unavailable,
        failed: sum(all_failed).saturating_sub(unavailable),
    }
}

/// Returns the throughputs that the fixed configurations have shown so far; None until each has been run.
fn measurements(
    setup: &Setup<'_>,
    alone: &[Vec<Run>],
    phases: &[(Duration, Mix)],
) -> Option<Measurements> {
    let mut all = Vec::new();
    for (configuration, runs) in alone.iter().enumerate() {
        for (parity, text) in [MOVING, SEARCHING].into_iter().enumerate() {
            let of = |run: &Run| Measured {
                configuration,
                mix: shares(&mix(text)),
                rate_s: rate(&run.report, phases, parity),
            };
            all.extend(runs.iter().map(of));
        }
    }
    let throughputs = Throughputs::new(alone.len(), &all).ok()?;
    let names = setup.configurations.iter().map(|one| one.name.clone()).collect();
    let samples = all.into_iter().map(|measured| Sample { measured, round: None }).collect();
    let (records, latencies) = (Records::default(), None);
    Some(Measurements { names, throughputs, samples, records, latencies })
}

fn judged(runs: &[Run], rounds: &[usize]) -> Vec<Change> {
    let of = |(run, round): (&Run, &usize)| {
        let round = *round;
        let told = |one: &controller::Judged| {
            Some(Change {
                round,
                to: one.change.to.clone(),
                predicted: one.predicted?,
                realised: one.realised?,
                noise: one.noise?,
            })
        };
        run.tuned.judged.iter().filter_map(told).collect::<Vec<Change>>()
    };
    runs.iter().zip(rounds).flat_map(of).collect()
}

/// Returns the operations per second over time for each method, as the mean of its rounds.
fn over_time(setup: &Setup<'_>, runs: &[Vec<Run>]) -> Vec<drawing::OverTime> {
    const EVERY_S: f64 = 2.0;
    let of = |(way, runs): (usize, &Vec<Run>)| {
        let mut sums: Vec<f64> = Vec::new();
        for (at_s, answered) in runs.iter().flat_map(|run| slots(&run.report)) {
            let number = (at_s / EVERY_S) as usize;
            if sums.len() <= number {
                sums.resize(number + 1, 0.0);
            }
            sums[number] += answered as f64 / EVERY_S / runs.len() as f64;
        }
        // The last slot is incomplete.
        sums.pop();
        let points = (0_u32..).zip(sums).map(|(number, rate)| (f64::from(number) * EVERY_S, rate));
        drawing::OverTime { name: name(setup, way), points: points.collect() }
    };
    runs.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        rounds: 3,
        phases: 4,
        phase_s: 60,
        rows: 20_000,
        clients: 16,
        nodes: 3,
        cpu_percent: 50,
        seed: 1,
    };

    #[test]
    fn phases_alternate_and_are_about_as_long_as_asked() {
        let phases = phases(SIZE);
        assert_eq!(phases.len(), 4);
        for (number, (length, asked)) in phases.iter().enumerate() {
            assert!((45..=75).contains(&length.as_secs()), "{phases:?}");
            assert_eq!(length.as_secs() % INTERVAL.as_secs(), 0, "{phases:?}");
            assert_eq!(asked.scan > 50.0, number % 2 == 1, "{phases:?}");
        }
        assert_ne!(phases[0].0, phases[2].0);
    }
}

//! The workloads of SOPHIA's evaluation (§5, §6), drawn from the statistics that the paper gives. The tuner and the
//! baselines are replayed on them, with measurements of real nodes.
//!
//! The traces themselves were not published. These are synthetic, except for the request rates of one of them. The
//! throughput of each configuration at each mix and the costs of a roll were measured; the operations that would have
//! been served over weeks are computed from these. Parts of the evaluation run on real nodes: [`buses`], [`rolling`],
//! and [`redis`].

pub mod buses;
mod drawing;
pub mod redis;
pub mod rolling;
pub mod scenarios;
mod traces;

use imago_plan::tune::baselines::{Baseline, Comparison};
use imago_plan::tune::forecast::{LastValue, Queue, backtest};
use imago_plan::tune::replay::{Weight, real, replay};
use imago_plan::tune::roll::{CostClass, Costs};
use imago_plan::tune::workload::{Interval, Mix};
use imago_tune::advice::{Question, ReplayReport, advise};
use imago_tune::decision_inputs::{DecisionInputs, Planning, uniform_transitions};
use imago_tune::measurements::{CASSANDRA, Measurements};
use imago_tune::trace::Trace;
use serde::Serialize;

use crate::Header;
use traces::Drawn;

/// Measured costs of a roll of these nodes (docs/tune.md).
const COSTS: Costs = Costs {
    nodes: 3,
    at_once: 1,
    restart_s: 25.0,
    catch_up: 0.4,
    catch_up_capacity: 0.5,
    live_s: 1.3,
    alter_s: 2.0,
    rewrite_s: 600.0,
    rewrite_takes: 0.25,
};

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Length of the synthetic traces, in days; at most three days of the flip-flop trace.
    pub days: u32,
    /// Number of jobs in the batch queue.
    pub jobs: u32,
    /// Seed of all traces.
    pub seed: u64,
}

/// The results of the replays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Results of each workload.
    pub workloads: Vec<Workload>,
}

/// The results of replaying one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Name of the workload.
    pub name: String,
    /// Source of the throughputs of the configurations: `measured`, the shipped or the given measurements; or
    /// `published`, those that the paper prints. The costs of a roll are measured ones in both cases.
    pub basis: &'static str,
    /// Length of an interval, in seconds.
    pub interval_s: u64,
    /// Number of intervals that were replayed, after those that served as training data.
    pub lived: usize,
    /// Number of shifts per day: changes of more than 80 % of the mix from one interval to the next.
    pub shifts_per_day: f64,
    /// Name of the forecast: the one that serves most, or `job queue`.
    pub forecast: String,
    /// Look-ahead, in intervals.
    pub look_ahead: usize,
    /// Number of changes of configuration.
    pub changes: usize,
    /// Weight of an interval: `capacity`, the operations that could be served, as in the paper; or `demand`, the
    /// operations that clients request.
    pub weighed_by: &'static str,
    /// Amount that the tuner served, as a ratio to each baseline.
    pub ratios: Vec<Ratio>,
    /// Errors of each forecast of mixes, one, three and twelve intervals ahead (the form of Table 1).
    pub rmse: Vec<Rmse>,
    /// Errors of each forecast of request rates, as a share of the mean rate; empty where intervals weigh by
    /// capacity.
    pub demand_rmse: Vec<Rmse>,
}

/// Amount that the tuner served, compared with a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Name of the baseline.
    pub to: &'static str,
    /// The ratio; above 1, the tuner served more.
    pub ratio: f64,
    /// Number of changes of configuration of the baseline.
    pub changes: usize,
}

/// Errors of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rmse {
    /// Name of the forecast.
    pub forecast: &'static str,
    /// Root mean square error one interval ahead; null if the forecast makes no prediction for that distance.
    pub one: Option<f64>,
    /// Root mean square error three intervals ahead, or null.
    pub three: Option<f64>,
    /// Root mean square error twelve intervals ahead, or null.
    pub twelve: Option<f64>,
}

/// Replays all workloads, on the given measurements or on the shipped ones.
///
/// # Errors
/// Returns an error if a trace is too short to learn from.
pub fn run(size: Size, own: Option<&Measurements>) -> imago_tune::error::Result<Report> {
    let shipped = Measurements::shipped(CASSANDRA);
    let measurements = own.unwrap_or(&shipped);
    let mut workloads = vec![
        by_forecast(traces::metagenomics(size), measurements, Weight::Capacity)?,
        by_forecast(traces::buses(size), measurements, Weight::Capacity)?,
        by_forecast(traces::flip_flop(size), measurements, Weight::Capacity)?,
    ];
    for at_once in [1, 5, 10] {
        workloads.push(by_queue(traces::jobs(size, at_once), measurements));
    }
    workloads.push(by_forecast(traces::buses_at_real_rates(size), measurements, Weight::Demand)?);
    // With the throughputs that the paper prints, more can be gained and lost than with those that were measured
    // here.
    let published = scenarios::published();
    let of_paper = |workload: Workload| Workload { basis: "published", ..workload };
    let flips = by_forecast(traces::flip_flop(size), &published, Weight::Capacity)?;
    workloads.push(of_paper(flips));
    Ok(Report { header: Header::of("sophia-traces", size), workloads })
}

/// Replays a workload whose future is forecast.
fn by_forecast(
    drawn: Drawn,
    measurements: &Measurements,
    weight: Weight,
) -> imago_tune::error::Result<Workload> {
    let Drawn { name, interval_s, intervals } = drawn;
    let shifts_per_day = traces::shifts_per_day(&intervals, interval_s);
    let missing = intervals.iter().filter(|one| one.rate_s.is_none()).count();
    let trace = Trace { interval_s, intervals, missing, records: Vec::new(), together: 1 };
    let transitions = uniform_transitions(measurements.names.len(), CostClass::Restart);
    let planning = Planning { weight, ..Planning::daily(interval_s, COSTS, transitions) };
    let basis = DecisionInputs { measurements, planning: &planning, current: 0 };
    let advice = advise(&Question { trace: &trace, file: &name, default: 0, queue: None, basis })?;
    let ratio = |one: &imago_tune::advice::BaselineReport| Ratio {
        to: one.name,
        ratio: one.planned_ratio,
        changes: one.changes,
    };
    let rmse = |one: &imago_tune::advice::ForecastReport| {
        let at = |distance: usize| one.rmse.get(distance - 1).copied().flatten();
        Rmse { forecast: one.name, one: at(1), three: at(3), twelve: at(12) }
    };
    let mut ratios: Vec<Ratio> = advice.baselines.iter().map(ratio).collect();
    let mut demand_rmse = Vec::new();
    if let Some(demand) = &advice.demand {
        ratios.push(by_capacity(&trace.intervals, &basis, advice.replay));
        let share = |error: Option<f64>| error.map(|error| error / demand.mean_s);
        demand_rmse = demand.forecasts.iter().map(rmse).collect();
        for Rmse { one, three, twelve, .. } in &mut demand_rmse {
            (*one, *three, *twelve) = (share(*one), share(*three), share(*twelve));
        }
    }
    Ok(Workload {
        name,
        basis: "measured",
        interval_s,
        lived: advice.replay.lived,
        shifts_per_day,
        forecast: advice.forecast,
        look_ahead: advice.look_ahead,
        changes: advice.replay.changes,
        weighed_by: if weight == Weight::Demand { "demand" } else { "capacity" },
        ratios,
        rmse: advice.forecasts.iter().map(rmse).collect(),
        demand_rmse,
    })
}

/// Compares the tuner, whose intervals weigh by demand, with one whose intervals weigh by capacity: by the requested
/// operations that each serves.
fn by_capacity(intervals: &[Interval], basis: &DecisionInputs<'_>, lived: ReplayReport) -> Ratio {
    let rates = |mix: Mix| basis.measurements.throughputs.of(mix);
    let planning = Planning { weight: Weight::Capacity, ..basis.planning.clone() };
    let other = DecisionInputs { planning: &planning, ..*basis };
    let chosen = other.choose(&intervals[..lived.learned]);
    let setting = other.setting(chosen.look_ahead, false);
    let mut forecast = other.forecast(&chosen);
    let other = replay(intervals, lived.learned, &mut *forecast, &rates, &setting).schedule;
    let setting = basis.setting(chosen.look_ahead, false);
    let served = real(&intervals[lived.learned..], &rates, &setting).served(&other.changes);
    Ratio {
        to: "planned by capacity",
        ratio: lived.served / served.operations.max(f64::MIN_POSITIVE),
        changes: other.changes.len(),
    }
}

/// Replays a queue of jobs, which is known for an hour ahead.
fn by_queue(drawn: Drawn, measurements: &Measurements) -> Workload {
    let Drawn { name, interval_s, intervals } = drawn;
    let transitions = uniform_transitions(measurements.names.len(), CostClass::Restart);
    let planning = Planning::daily(interval_s, COSTS, transitions);
    let basis = DecisionInputs { measurements, planning: &planning, current: 0 };
    let look_ahead = ((3_600 / interval_s) as usize).min(intervals.len() / 2).max(1);
    let setting = basis.setting(look_ahead, false);
    let rates = |mix: Mix| measurements.throughputs.of(mix);
    let lived = &intervals[..intervals.len() - look_ahead];
    let rmse = [
        backtest(&mut LastValue::default(), lived, (1, 1), 12),
        backtest(&mut Queue::new(intervals.clone()), lived, (1, 1), 12),
    ];
    let rmse = rmse.map(|errors| {
        let at = |distance: usize| errors.by_distance[distance - 1];
        Rmse { forecast: errors.name, one: at(1), three: at(3), twelve: at(12) }
    });
    // One interval of training data suffices to find the present position in the queue.
    let tuned = replay(lived, 1, &mut Queue::new(intervals.clone()), &rates, &setting);
    let really = real(&lived[1..], &rates, &setting);
    let at_once = basis.setting(look_ahead, true).rolls;
    let compared = Comparison { real: &really, at_once: &at_once, default: 0 };
    let ratio = |one: Baseline| {
        let other = compared.of(one);
        let ratio = tuned.schedule.operations / other.operations.max(1.0);
        Ratio { to: one.name(), ratio, changes: other.changes.len() }
    };
    Workload {
        name,
        basis: "measured",
        interval_s,
        lived: lived.len() - 1,
        shifts_per_day: traces::shifts_per_day(&intervals, interval_s),
        forecast: "job queue".into(),
        look_ahead,
        changes: tuned.schedule.changes.len(),
        weighed_by: "capacity",
        ratios: Baseline::ALL.map(ratio).into(),
        rmse: rmse.into(),
        demand_rmse: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two configurations: one serves more updates, the other more reads and scans.
    const TWO: &str = "configuration,operations_s,reads,updates,scans
write-tuned,52000,0,1,0
write-tuned,30000,1,0,0
write-tuned,4000,0,0,1
read-tuned,37000,0,1,0
read-tuned,46000,1,0,0
read-tuned,7000,0,0,1
";

    #[test]
    fn the_tuner_never_falls_far_behind_the_best_fixed_configuration() {
        let two = Measurements::read("two.csv", TWO.as_bytes()).unwrap();
        let report = run(Size { days: 9, jobs: 60, seed: 4 }, Some(&two)).unwrap();
        assert_eq!(report.workloads.len(), 8);
        for workload in &report.workloads {
            let ratio = |to: &str| workload.ratios.iter().find(|one| one.to == to).unwrap().ratio;
            assert!(ratio("static optimal") > 0.98, "{workload:?}");
            assert!(ratio("oracle") < 1.0 + 1e-9, "{workload:?}");
        }
        let real = &report.workloads[6];
        let by_capacity = real.ratios.iter().find(|one| one.to == "planned by capacity").unwrap();
        assert!(by_capacity.ratio > 0.99 && real.demand_rmse.len() == 4, "{real:?}");
        let flips = &report.workloads[2];
        let naive = flips.ratios.iter().find(|one| one.to == "naive").unwrap();
        assert!(naive.ratio > 1.0 && naive.changes > flips.changes, "{flips:?}");
        let published = &report.workloads[7];
        let naive = published.ratios.iter().find(|one| one.to == "naive").unwrap();
        assert!(published.basis == "published" && naive.ratio > 1.02, "{published:?}");
    }
}

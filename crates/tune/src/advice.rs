//! Advice: whether the configuration should change, when and to which one, and how such advice would have performed on
//! the past trace compared with baselines.
//!
//! The first two thirds of a trace are training data: the forecast and the look-ahead that serve most in a replay of
//! their second half are selected there. The selection is then replayed on the last third. Finally the forecast learns
//! from the whole trace, and the plan from the trace's end on is the advice.

use imago_plan::tune::baselines::{Baseline, Comparison};
use imago_plan::tune::forecast::{Errors, Forecast, Queue, backtest};
use imago_plan::tune::planner::{Planner, Weight};
use imago_plan::tune::records::{Records, is_another};
use imago_plan::tune::replay::{GainForecast, Replayed, real, replay};
use imago_plan::tune::schedule::{Change, Schedule};
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

pub use crate::decision_inputs::{Alternative, Expected};
use crate::decision_inputs::{Chosen, ChosenDemand, DecisionInputs, bound_s};
use crate::error::{Error, Result};
use crate::trace::Trace;

/// Approximate number of intervals of the trace at which a back-test queries a forecast.
const BACKTEST_QUERIES: usize = 500;
/// Maximum length of a queue (a known future workload), in intervals: one plan covers all of them.
const QUEUE_MAX: usize = 2_000;
/// Minimum number of past plans from which a [`Confidence`] is estimated.
const GAIN_FORECASTS_MIN: usize = 5;
/// Minimum length of the trace, in intervals: a shorter one leaves too little data for training and replay.
const INTERVALS_MIN: usize = 30;

/// Input of [`advise`]: the past workload, and the inputs of the decision.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// Operations that clients requested in the past, interval by interval.
    pub trace: &'q Trace,
    /// File name of the trace, for error messages.
    pub file: &'q str,
    /// Index of the database's default configuration, which one of the baselines uses throughout.
    pub default: usize,
    /// Known future workload that starts at the trace's end (for example, a queue of jobs), and its file name. If
    /// present, the plan covers exactly this workload; None: the future workload is forecast.
    pub queue: Option<(&'q Trace, &'q str)>,
    /// Measurements of the configurations, costs of changes, and options of the decision.
    pub basis: DecisionInputs<'q>,
}

/// Advice whether to change the configuration, when and to which one, and the data that it was derived from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Length of an interval of the trace, in seconds.
    pub interval_s: u64,
    /// Number of intervals in the trace, those without data included.
    pub intervals: usize,
    /// Number of intervals in the trace without data.
    pub missing: usize,
    /// Duration of the longest allowed change from the present configuration, in seconds; for a roll, from the first
    /// node's stop to the last node's catch-up.
    pub roll_s: f64,
    /// Name of the configuration that the cluster has now.
    pub current: String,
    /// Back-test errors of each forecast of mixes for which the trace is long enough.
    pub forecasts: Vec<ForecastReport>,
    /// Name of the forecast of mixes that the plan uses.
    pub forecast: String,
    /// Length of the plan (the look-ahead), in intervals.
    pub look_ahead: usize,
    /// Forecasts of the request rate; null where intervals weigh by capacity (all intervals the same), and with a
    /// queue.
    pub demand: Option<DemandReport>,
    /// Changes of configuration that are advised from the trace's end on; empty if no change is advised.
    pub plan: Vec<PlannedChange>,
    /// Amounts expected to be served within the look-ahead, with and without the plan.
    pub expected: Expected,
    /// Highest expected load until the plan's next change after its first interval, as a share (1 = saturated) of the
    /// present configuration's throughput for the same mix; null where intervals weigh by capacity (all the same).
    pub busy_peak: Option<f64>,
    /// Record sizes and reuse distances of the trace compared with those of the measurements.
    pub records: RecordsReport,
    /// Confidence in the plan's gain; null if the plan changes nothing, with a queue, and if fewer than five
    /// past plans can be evaluated.
    pub confidence: Option<Confidence>,
    /// For each configuration other than the present one, the benefit and the cost of the best single change to it.
    pub alternatives: Vec<Alternative>,
    /// Result of a replay of the last third of the trace, with plans made as the advised one.
    pub replay: ReplayReport,
    /// Results of the baselines on the last third of the trace.
    pub baselines: Vec<BaselineReport>,
}

/// Confidence in a plan, from the expected and the actual gains of plans with a change in the last third of the trace.
/// Both gains rely on the measurements, whose own error is not included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Confidence {
    /// Number of past plans with a change whose look-ahead ended within the trace; their gains are the basis of the
    /// other fields.
    pub plans: usize,
    /// Share of these past plans that really gained after the cost of their changes, from 0 to 1.
    pub gained: f64,
    /// Expected gain of the advised plan plus the 10th percentile of (actual − expected) gain of past plans, as a
    /// share of the operations served without a change.
    pub gain_low: f64,
    /// Expected gain of the advised plan plus the 90th percentile of (actual − expected) gain of past plans, as a
    /// share of the operations served without a change.
    pub gain_high: f64,
}

impl Confidence {
    /// Estimates the confidence in a plan with the gain `expected` (a share); None if there are fewer than
    /// [`GAIN_FORECASTS_MIN`] gain forecasts of past plans.
    fn of(expected: f64, gain_forecasts: &[GainForecast]) -> Option<Self> {
        let plans = gain_forecasts.len();
        if plans < GAIN_FORECASTS_MIN {
            return None;
        }
        let mut missed: Vec<f64> =
            gain_forecasts.iter().map(|one| one.realised - one.expected).collect();
        missed.sort_by(f64::total_cmp);
        let at = |share: f64| missed[(share * (plans - 1) as f64).round() as usize];
        let gained = gain_forecasts.iter().filter(|one| one.realised > 0.0).count();
        Some(Self {
            plans,
            gained: gained as f64 / plans as f64,
            gain_low: expected + at(0.1),
            gain_high: expected + at(0.9),
        })
    }
}

/// Sizes and reuse distances of the records that clients request, compared with those of the measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordsReport {
    /// Median over the trace's intervals of the mean record size, in bytes; null if the trace does not include sizes.
    pub bytes: Option<f64>,
    /// Median over the measurements of the mean record size, in bytes; null if the measurements do not include sizes.
    pub measured_bytes: Option<f64>,
    /// Median over the trace's intervals of the reuse distance (the number of other records requested between two
    /// requests of one record); null if the trace does not include it.
    pub reuse_distance: Option<f64>,
    /// Median over the measurements of the reuse distance (the number of other records requested between two requests
    /// of one record); null if the measurements do not include it.
    pub measured_reuse_distance: Option<f64>,
    /// Reasons why the measurements may not apply to the requested records: a size or a reuse distance that differs
    /// by more than a factor of two.
    pub doubts: Vec<String>,
}

impl RecordsReport {
    /// Compares the records that clients request (`seen`) with those of the measurements.
    #[must_use]
    pub fn of(seen: Records, measured: Records) -> Self {
        let ratio = seen.ratio_to(measured);
        let doubt = |what: &str, ratio: Option<f64>, seen: Option<f64>, measured: Option<f64>| {
            let (seen, measured) = seen.zip(measured).filter(|_| is_another(ratio))?;
            Some(format!(
                "configurations were measured with {what} {measured:.0}, and clients ask for {seen:.0}: measure them anew"
            ))
        };
        let reuse = "reuse distances of";
        let doubts = [
            doubt(
                "records (of Cassandra: partitions) of so many bytes:",
                ratio.bytes,
                seen.bytes,
                measured.bytes,
            ),
            doubt(reuse, ratio.reuse_distance, seen.reuse_distance, measured.reuse_distance),
        ];
        Self {
            bytes: seen.bytes,
            measured_bytes: measured.bytes,
            reuse_distance: seen.reuse_distance,
            measured_reuse_distance: measured.reuse_distance,
            doubts: doubts.into_iter().flatten().collect(),
        }
    }
}

/// Back-test result of one forecast of mixes or of rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForecastReport {
    /// Name of the evaluated forecast.
    pub name: &'static str,
    /// Root mean square error by the distance of the predicted interval, one interval first: in shares of the mix (0
    /// to 1) for a forecast of mixes, in operations per second for a forecast of rates. Null at a distance where the
    /// forecast makes no prediction.
    pub rmse: Vec<Option<f64>>,
}

/// The rate of clients' requests, and how it is forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemandReport {
    /// Mean rate of requests in the trace's last third, in operations per second.
    pub mean_s: f64,
    /// Back-test errors of each forecast of rates, in operations per second.
    pub forecasts: Vec<ForecastReport>,
    /// Name of the forecast of rates that the plan uses.
    pub forecast: String,
}

/// A change of configuration that a plan contains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedChange {
    /// Time at which the change starts, in seconds since 1970.
    pub at_s: u64,
    /// Name of the configuration that the cluster has after the change.
    pub to: String,
}

/// Result of a replay of the trace's last part, in which each change is made as planned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Number of intervals at the trace's start that served as training data only.
    pub learned: usize,
    /// Number of intervals at the trace's end that were replayed.
    pub lived: usize,
    /// Name of the forecast of mixes used in the replay.
    pub forecast: &'static str,
    /// Number of intervals that each plan of the replay covers.
    pub look_ahead: usize,
    /// Amount that the replay serves, in operations; where intervals weigh by demand, in seconds in which the best
    /// configuration would be busy.
    pub served: f64,
    /// Number of changes of configuration in the replay.
    pub changes: usize,
    /// Number of plans made in the replay.
    pub plans: usize,
    /// Number of these plans that were made early because the workload departed from the forecast.
    pub departures: usize,
}

/// Result of a baseline (a simpler or an ideal way to choose configurations) on the trace's last third.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BaselineReport {
    /// Name of the baseline, such as `static optimal`.
    pub name: &'static str,
    /// Amount that the baseline serves, in the unit of [`ReplayReport::served`].
    pub served: f64,
    /// Amount that the replay of planned changes serves, divided by the amount that this baseline serves.
    pub planned_ratio: f64,
    /// Number of changes of configuration that the baseline makes.
    pub changes: usize,
}

/// Computes the advice for a cluster from the trace of its past workload.
///
/// # Errors
/// Fails if the trace is too short, if the requested forecast cannot be used, if a queue does not start at the trace's
/// end or has too many intervals, or if no plan can be made.
pub fn advise(question: &Question<'_>) -> Result<Advice> {
    let Question { trace, basis, .. } = *question;
    let measurements = basis.measurements;
    let intervals = &trace.intervals[..];
    let too_little = |found: String, needed: String| Error::TooLittle {
        file: question.file.to_owned(),
        found,
        needed,
    };
    if intervals.len() < INTERVALS_MIN {
        return Err(too_little(
            format!("{} intervals", intervals.len()),
            format!("{INTERVALS_MIN} at least are needed to learn from and to compare"),
        ));
    }
    let rates = |mix: Mix| measurements.throughputs.of(mix);
    let learned = intervals.len() * 2 / 3;
    let names = basis.usable(learned);
    if let Some(asked) = basis.planning.forecast.as_deref().filter(|asked| !names.contains(asked)) {
        let (found, needed) = (
            format!("there is no forecast {asked} for it"),
            format!("there are {}", names.join(", ")),
        );
        return Err(too_little(found, needed));
    }
    let chosen = basis.choose(&intervals[..learned]);
    let (name, look_ahead) = (chosen.forecast, chosen.look_ahead);
    let asked = ((intervals.len() - learned) / BACKTEST_QUERIES).max(1);
    let distance_max = look_ahead.max(12);
    let errors = names.iter().map(|name| {
        let mut forecast = basis.named(name);
        let errors = backtest(&mut *forecast, intervals, (learned, asked), distance_max);
        ForecastReport { name: errors.name, rmse: errors.by_distance }
    });
    let forecasts = errors.collect();
    let lived = |is_at_once| {
        let mut forecast = basis.forecast(&chosen);
        let setting = basis.setting(look_ahead, is_at_once);
        replay(intervals, learned, &mut *forecast, &rates, &setting)
    };
    let Replayed { schedule, plans, departures, gain_forecasts } = lived(false);
    let setting = basis.setting(look_ahead, false);
    let really = real(&intervals[learned..], &rates, &setting);
    let at_once = basis.setting(look_ahead, true).rolls;
    let compared = Comparison { real: &really, at_once: &at_once, default: question.default };
    let report = |name, other: Schedule| BaselineReport {
        name,
        served: other.operations,
        planned_ratio: schedule.operations / other.operations.max(f64::MIN_POSITIVE),
        changes: other.changes.len(),
    };
    let baselines = Baseline::ALL.map(|one| report(one.name(), compared.of(one)));
    let aggressive = report("aggressive", lived(true).schedule);
    let end_s = intervals.last().map_or(0, |last| last.start_s) + trace.interval_s;
    let (mut forecast, ahead): (Box<dyn Forecast + Send + Sync>, usize) = match question.queue {
        Some((queue, file)) => {
            require_contiguous(queue, file, trace.interval_s, end_s)?;
            (Box::new(Queue::new(queue.intervals.clone())), queue.intervals.len())
        }
        None => {
            // The forecast learns from the whole trace; the bound covers rates that occur only after the training part.
            let demand = ChosenDemand { bound_s: bound_s(intervals), ..chosen.demand };
            (basis.forecast(&Chosen { demand, ..chosen }), look_ahead)
        }
    };
    intervals.iter().for_each(|interval| forecast.observe(interval));
    let mut planner = Planner::new(basis.current);
    planner.plan_anew(&*forecast, &rates, &basis.setting(ahead, false));
    let Some(plan) = planner.plan() else {
        let found = "the load after its end cannot be forecast".to_owned();
        return Err(too_little(found, "some operations at least are needed".into()));
    };
    let at_s = |interval: usize| end_s + interval as u64 * trace.interval_s;
    let planned = |change: &Change| PlannedChange {
        at_s: at_s(change.interval),
        to: measurements.names[change.to].clone(),
    };
    let followed = plan.best.changes.iter().filter(|_| plan.is_followed);
    let expected = Expected::of(plan);
    let changes = plan.is_followed && !plan.best.changes.is_empty();
    Ok(Advice {
        interval_s: trace.interval_s,
        intervals: intervals.len(),
        missing: trace.missing,
        roll_s: basis.roll_s(),
        current: measurements.names[basis.current].clone(),
        forecasts,
        forecast: question.queue.map_or(name, |_| forecast.name()).to_owned(),
        look_ahead: ahead,
        demand: (basis.planning.weight == Weight::Demand && question.queue.is_none())
            .then(|| demand(&basis, intervals, learned, &chosen)),
        plan: followed.map(planned).collect(),
        expected,
        busy_peak: planner.busy_peak(&rates),
        records: RecordsReport::of(Records::median(&trace.records), measurements.records),
        confidence: Confidence::of(expected.gain, &gain_forecasts)
            .filter(|_| changes && question.queue.is_none()),
        alternatives: basis.alternatives(plan, at_s),
        replay: ReplayReport {
            learned,
            lived: intervals.len() - learned,
            forecast: name,
            look_ahead,
            served: schedule.operations,
            changes: schedule.changes.len(),
            plans,
            departures,
        },
        baselines: baselines.into_iter().chain([aggressive]).collect(),
    })
}

/// Checks that a queue (a known future workload) has at most [`QUEUE_MAX`] intervals, and that it continues the
/// trace, which ends at `end_s` (in seconds since 1970), without a gap.
fn require_contiguous(queue: &Trace, file: &str, interval_s: u64, end_s: u64) -> Result<()> {
    let begins_s = queue.intervals.first().map_or(0, |first| first.start_s);
    if queue.intervals.len() > QUEUE_MAX {
        return Err(Error::TooLittle {
            file: file.to_owned(),
            found: format!("{} intervals", queue.intervals.len()),
            needed: format!("a queue may have {QUEUE_MAX} at most"),
        });
    }
    if (queue.interval_s, begins_s) == (interval_s, end_s) {
        return Ok(());
    }
    Err(Error::TooLittle {
        file: file.to_owned(),
        found: format!("it begins at {begins_s} with intervals of {} s", queue.interval_s),
        needed: format!(
            "it has to continue where the trace ends, at {end_s} with intervals of {interval_s} s"
        ),
    })
}

/// Reports the request rate after the first `learned` intervals, and the errors of its forecasts there.
fn demand(
    basis: &DecisionInputs<'_>,
    intervals: &[Interval],
    learned: usize,
    chosen: &Chosen,
) -> DemandReport {
    let rates = || intervals[learned..].iter().filter_map(|one| one.rate_s);
    let report =
        |(_, errors): (_, Errors)| ForecastReport { name: errors.name, rmse: errors.by_distance };
    DemandReport {
        mean_s: rates().sum::<f64>() / rates().count().max(1) as f64,
        forecasts: basis.demand_errors(intervals, learned).into_iter().map(report).collect(),
        forecast: chosen.demand.forecast.to_owned(),
    }
}

#[cfg(test)]
mod tests;

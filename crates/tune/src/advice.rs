//! Advice: whether the configuration should change, when and to what; and what such advice would have brought in the
//! past, beside other ways to choose.
//!
//! The first two thirds of a trace are learned from: there the forecast and the look-ahead are chosen by which serves
//! most, in a replay of their second half. The last third is lived through by the choice. Then the whole trace is learned
//! from, and the plan from its end on is the advice.

use imago_plan::tune::baselines::{Baseline, Comparison};
use imago_plan::tune::forecast::{Errors, Forecast, Queue, backtest};
use imago_plan::tune::planner::{Planner, Weight};
use imago_plan::tune::records::{Records, is_another};
use imago_plan::tune::replay::{Promise, Replayed, real, replay};
use imago_plan::tune::schedule::{Change, Schedule};
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

pub use crate::basis::{Alternative, Expected};
use crate::basis::{Basis, Chosen, ChosenDemand, bound_s};
use crate::error::{Error, Result};
use crate::trace::Trace;

/// Times at which a forecast is asked in a back-test, about.
const ASKED: usize = 500;
/// Intervals that a queue may have: a plan is made for all of them.
const QUEUE_MAX: usize = 2_000;
/// Plans of the past that confidence is told from.
const PROMISES_MIN: usize = 5;
/// Intervals that a trace needs: fewer leave nothing to choose by.
const INTERVALS_MIN: usize = 30;

/// The question.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// What clients asked for.
    pub trace: &'q Trace,
    /// Its name.
    pub file: &'q str,
    /// The default configuration.
    pub default: usize,
    /// What is known to come behind its end, with its name: a queue of jobs, for example. The plan is made for that then.
    pub queue: Option<(&'q Trace, &'q str)>,
    /// What is decided by.
    pub basis: Basis<'q>,
}

/// The advice, with what it is told from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The length of an interval, in seconds.
    pub interval_s: u64,
    /// Intervals of the trace, and those among them that were missing.
    pub intervals: usize,
    /// See [`Self::intervals`].
    pub missing: usize,
    /// From the first node's stop to the end of a roll, in seconds.
    pub roll_s: f64,
    /// The configuration at present.
    pub current: String,
    /// The forecasts, with their errors.
    pub forecasts: Vec<ForecastReport>,
    /// The forecast that the plan is made by.
    pub forecast: String,
    /// The intervals that it is made for.
    pub look_ahead: usize,
    /// The forecasts of how much clients ask for; null where intervals weigh by capacity, and with a queue.
    pub demand: Option<DemandReport>,
    /// The plan from the end of the trace on.
    pub plan: Vec<PlannedChange>,
    /// What is expected within the look-ahead.
    pub expected: Expected,
    /// The most that clients are expected to ask for until the plan's next change behind its first interval, as a share of what the present configuration
    /// serves of it; null where intervals weigh by capacity.
    pub busy_peak: Option<f64>,
    /// The records of clients, and those that configurations were measured with.
    pub records: RecordsReport,
    /// How far that can be trusted; null if nothing is to be changed, or too few plans of the past can be looked at.
    pub confidence: Option<Confidence>,
    /// Each other configuration: what a change to it would bring.
    pub alternatives: Vec<Alternative>,
    /// What the last third of the trace would have been with such plans.
    pub replay: ReplayReport,
    /// The same by other ways to choose.
    pub baselines: Vec<BaselineReport>,
}

/// How far a plan can be trusted: by what plans with a change in the last third of the trace promised, and what they kept.
/// The measurements are taken for true in both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Confidence {
    /// Plans of the past that are gone by.
    pub plans: usize,
    /// The share of them that gained, their changes included.
    pub gained: f64,
    /// The gain of this plan, less what the plans of the past promised too much: in one case of ten it is below.
    pub gain_low: f64,
    /// Likewise: in one case of ten it is above.
    pub gain_high: f64,
}

impl Confidence {
    /// None if there are fewer than [`PROMISES_MIN`].
    fn of(expected: f64, promises: &[Promise]) -> Option<Self> {
        let plans = promises.len();
        if plans < PROMISES_MIN {
            return None;
        }
        let mut missed: Vec<f64> = promises.iter().map(|one| one.kept - one.expected).collect();
        missed.sort_by(f64::total_cmp);
        let at = |share: f64| missed[(share * (plans - 1) as f64).round() as usize];
        let gained = promises.iter().filter(|one| one.kept > 0.0).count();
        Some(Self {
            plans,
            gained: gained as f64 / plans as f64,
            gain_low: expected + at(0.1),
            gain_high: expected + at(0.9),
        })
    }
}

/// The records that clients ask for, beside those of the measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordsReport {
    /// The median of the trace's mean sizes, in bytes; null if it does not tell.
    pub bytes: Option<f64>,
    /// The same of the measurements.
    pub measured_bytes: Option<f64>,
    /// The median of the trace's reuse distances, in records; null if it does not tell.
    pub reuse_distance: Option<f64>,
    /// The same of the measurements.
    pub measured_reuse_distance: Option<f64>,
    /// Why the measurements may not hold for these records: the one is more than twice the other.
    pub doubts: Vec<String>,
}

impl RecordsReport {
    /// Those of a trace beside those of the measurements.
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

/// A forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForecastReport {
    /// Its name.
    pub name: &'static str,
    /// The root of the mean square of the differences between expected and real shares, by the distance in intervals,
    /// from one on; null where it cannot tell.
    pub rmse: Vec<Option<f64>>,
}

/// How much clients ask for, and how it is forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemandReport {
    /// The mean of the trace's last third, in operations a second.
    pub mean_s: f64,
    /// The forecasts; the root of the mean square is in operations a second.
    pub forecasts: Vec<ForecastReport>,
    /// The forecast that is used.
    pub forecast: String,
}

/// A change that is planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedChange {
    /// When it begins, in seconds since 1970.
    pub at_s: u64,
    /// The configuration that it leads to.
    pub to: String,
}

/// What a part of the trace would have been.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Intervals that were learned from.
    pub learned: usize,
    /// Those that were lived through.
    pub lived: usize,
    /// The forecast and the look-ahead that this was done with, in intervals.
    pub forecast: &'static str,
    /// See [`Self::forecast`].
    pub look_ahead: usize,
    /// What was served: operations; where intervals weigh by demand, seconds in which the best configuration would be busy.
    pub served: f64,
    /// Changes.
    pub changes: usize,
    /// Plans that were made, and those of them that a departure from the forecast called for.
    pub plans: usize,
    /// See [`Self::plans`].
    pub departures: usize,
}

/// Another way to choose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BaselineReport {
    /// Its name.
    pub name: &'static str,
    /// What was served, in the unit of [`ReplayReport::served`].
    pub served: f64,
    /// What the planned way serves, as a ratio to it.
    pub planned_ratio: f64,
    /// Changes.
    pub changes: usize,
}

/// Gives advice.
///
/// # Errors
/// Fails if the trace is too short, or no forecast has the name that was asked for.
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
    if let Some(asked) = basis.forecast.filter(|asked| !names.contains(asked)) {
        let (found, needed) = (
            format!("there is no forecast {asked} for it"),
            format!("there are {}", names.join(", ")),
        );
        return Err(too_little(found, needed));
    }
    let chosen = basis.choose(&intervals[..learned]);
    let (name, look_ahead) = (chosen.forecast, chosen.look_ahead);
    let asked = ((intervals.len() - learned) / ASKED).max(1);
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
    let Replayed { schedule, plans, departures, promises } = lived(false);
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
            require_behind(queue, file, trace.interval_s, end_s)?;
            (Box::new(Queue::new(queue.intervals.clone())), queue.intervals.len())
        }
        None => {
            // The whole trace is learned from, with rates that the learned part may not have had.
            let demand = ChosenDemand { bound_s: bound_s(intervals), ..chosen.demand };
            (basis.forecast(&Chosen { demand, ..chosen }), look_ahead)
        }
    };
    intervals.iter().for_each(|interval| forecast.observe(interval));
    let mut planner = Planner::new(basis.current);
    planner.plan_anew(&*forecast, &rates, &basis.setting(ahead, false));
    let Some(plan) = planner.plan() else {
        let found = "nothing is known of what comes behind its end".to_owned();
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
        demand: (basis.weight == Weight::Demand && question.queue.is_none())
            .then(|| demand(&basis, intervals, learned, &chosen)),
        plan: followed.map(planned).collect(),
        expected,
        busy_peak: planner.busy_peak(&rates),
        records: RecordsReport::of(Records::median(&trace.records), measurements.records),
        confidence: Confidence::of(expected.gain, &promises)
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

/// Makes sure that a queue goes on where the trace ends.
fn require_behind(queue: &Trace, file: &str, interval_s: u64, end_s: u64) -> Result<()> {
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
            "it has to go on where the trace ends, at {end_s} with intervals of {interval_s} s"
        ),
    })
}

fn demand(
    basis: &Basis<'_>,
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

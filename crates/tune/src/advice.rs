//! Advice: whether the configuration should change, when and to what; and what such advice would have brought in the
//! past, beside other ways to choose.
//!
//! The first two thirds of a trace are learned from: there the forecast and the look-ahead are chosen by which serves
//! most, in a replay of their second half. The last third is lived through by the choice. Then the whole trace is learned
//! from, and the plan from its end on is the advice.

use imago_plan::tune::baselines::{Baseline, Comparison};
use imago_plan::tune::forecast::{Errors, backtest};
use imago_plan::tune::planner::{Count, Planner};
use imago_plan::tune::replay::{Promise, Replayed, real, replay};
use imago_plan::tune::schedule::{Change, Schedule};
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

pub use crate::basis::{Alternative, Expected};
use crate::basis::{Basis, Chosen};
use crate::error::{Error, Result};
use crate::trace::Trace;

/// Times at which a forecast is asked in a back-test, about.
const ASKED: usize = 500;
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
    /// The forecast that is used.
    pub forecast: String,
    /// The look-ahead that is used, in intervals.
    pub look_ahead: usize,
    /// The forecasts of how much clients ask for; null where intervals count by capacity.
    pub demand: Option<DemandReport>,
    /// The plan from the end of the trace on.
    pub plan: Vec<PlannedChange>,
    /// What is expected within the look-ahead.
    pub expected: Expected,
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
    /// Operations.
    pub operations: f64,
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
    /// Operations.
    pub operations: f64,
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
        operations: other.operations,
        planned_ratio: schedule.operations / other.operations.max(1.0),
        changes: other.changes.len(),
    };
    let baselines = Baseline::ALL.map(|one| report(one.name(), compared.of(one)));
    let aggressive = report("aggressive", lived(true).schedule);
    let mut forecast = basis.forecast(&chosen);
    intervals.iter().for_each(|interval| forecast.observe(interval));
    let mut planner = Planner::new(basis.current);
    planner.plan_anew(&*forecast, &rates, &setting);
    let Some(plan) = planner.plan() else {
        let found = "nothing is known of what comes behind its end".to_owned();
        return Err(too_little(found, "some operations at least are needed".into()));
    };
    let end_s = intervals.last().map_or(0, |last| last.start_s) + trace.interval_s;
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
        forecast: name.to_owned(),
        look_ahead,
        demand: (basis.count == Count::Demand).then(|| demand(&basis, intervals, learned, &chosen)),
        plan: followed.map(planned).collect(),
        expected,
        confidence: Confidence::of(expected.gain, &promises).filter(|_| changes),
        alternatives: basis.alternatives(plan, at_s),
        replay: ReplayReport {
            learned,
            lived: intervals.len() - learned,
            operations: schedule.operations,
            changes: schedule.changes.len(),
            plans,
            departures,
        },
        baselines: baselines.into_iter().chain([aggressive]).collect(),
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
mod tests {
    use imago_plan::tune::roll::{CostClass, Costs, Rule};

    use super::*;
    use crate::basis::{DAY_S, Way, same_way};
    use crate::measurements::Measurements;

    const MEASURED: &str = "\
configuration,operations_s,reads,updates
write-tuned,52000,0,1
write-tuned,30000,1,0
read-tuned,37000,0,1
read-tuned,46000,1,0
";

    const COSTS: Costs = Costs {
        nodes: 3,
        at_once: 1,
        restart_s: 60.0,
        catch_up: 0.65,
        catch_up_capacity: 0.5,
        live_s: 0.5,
        alter_s: 1.0,
        rewrite_s: 600.0,
        rewrite_takes: 0.25,
    };

    /// Days of quarters of an hour, written to by day and read by night.
    fn days(days: u64) -> Trace {
        let mut text = String::from("start,reads,updates\n");
        for n in 0..days * 96 {
            let (reads, updates) =
                if (28..76).contains(&(n % 96)) { (900, 9_100) } else { (9_500, 500) };
            text += &format!("{},{reads},{updates}\n", 1_490_054_400 + n * 900);
        }
        Trace::read("days.csv", text.as_bytes()).unwrap()
    }

    fn ways() -> Vec<Vec<Way>> {
        same_way(2, CostClass::Restart)
    }

    fn question<'q>(
        trace: &'q Trace,
        measurements: &'q Measurements,
        ways: &'q [Vec<Way>],
    ) -> Question<'q> {
        let basis = Basis {
            measurements,
            interval_s: trace.interval_s,
            season_s: DAY_S,
            current: 0,
            costs: COSTS,
            ways,
            rule: Rule::Phases,
            gain_min: 0.0,
            forecast: None,
            look_ahead: None,
            count: Count::Demand,
        };
        Question { trace, file: "days.csv", default: 0, basis }
    }

    #[test]
    fn a_workload_of_days_and_nights_is_followed_and_serves_more_than_any_fixed_configuration() {
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let trace = days(9);
        let advice = advise(&question(&trace, &measurements, &ways())).unwrap();
        assert!((advice.roll_s - 180.0).abs() < 1e-9);
        assert_eq!(advice.replay.lived, 3 * 96);
        // It begins at night, with the configuration for the day.
        assert_eq!(advice.replay.changes, 7, "{advice:?}");
        let ratio = |name: &str| {
            advice.baselines.iter().find(|one| one.name == name).unwrap().planned_ratio
        };
        assert!(ratio("default") > 1.1 && ratio("static optimal") > 1.05, "{:?}", advice.baselines);
        assert!(ratio("oracle") > 0.99 && ratio("theoretical best") < 1.0);
        // It ends at midnight, by which time the nights' configuration pays for six hours.
        assert_eq!(advice.plan[0].to, "read-tuned", "{advice:?}");
        assert!(advice.expected.gain > 0.0);
        let confidence = advice.confidence.unwrap();
        assert!(confidence.plans >= 5 && confidence.gained > 0.99, "{confidence:?}");
        assert!((confidence.gain_low - advice.expected.gain).abs() < 0.01, "{confidence:?}");
        let of = |name: &str| advice.forecasts.iter().find(|one| one.name == name).unwrap();
        assert!(of("time of day").rmse[11].unwrap() < of("last value").rmse[11].unwrap());
    }

    #[test]
    fn how_much_clients_ask_for_is_forecast_too_and_a_change_waits_for_a_quiet_time() {
        // A twentieth is gained.
        let measured = MEASURED.replace("read-tuned,46000,1,0", "read-tuned,31500,1,0");
        let measurements = Measurements::read("here.csv", measured.as_bytes()).unwrap();
        // Reads by day, at their peak from nine to five; a hundredth of that from two to four.
        let mut text = String::from("start,reads,updates\n");
        for n in 0..12 * 96_u64 {
            let all = match n % 96 {
                8..16 => 90_000,
                36..68 => 9_000_000,
                _ => 1_500_000,
            };
            // Updates in the first days: since then another configuration is the best one.
            let (reads, updates) = if n < 3 * 96 { (0, all) } else { (all, 0) };
            text += &format!("{},{reads},{updates}\n", 1_490_054_400 + n * 900);
        }
        let trace = Trace::read("days.csv", text.as_bytes()).unwrap();
        let ways = ways();
        let mut asked = question(&trace, &measurements, &ways);
        (asked.basis.costs.restart_s, asked.basis.look_ahead) = (900.0, Some(40));
        let advice = advise(&asked).unwrap();
        let demand = advice.demand.unwrap();
        assert_eq!((&*demand.forecast, demand.forecasts.len()), ("time-of-day", 3), "{demand:?}");
        assert!(demand.forecasts[1].rmse[11].unwrap() < 1e-3 * demand.mean_s, "{demand:?}");
        // The trace ends at midnight, and three nodes of a quarter of an hour each are changed from two on.
        let hour = |at_s: u64| (at_s % 86_400) as f64 / 3_600.0;
        assert_eq!(advice.plan.len(), 1, "{:?}", advice.plan);
        assert!((1.9..3.3).contains(&hour(advice.plan[0].at_s)), "{:?}", advice.plan);
        asked.basis.count = Count::Capacity;
        let advice = advise(&asked).unwrap();
        assert_eq!((hour(advice.plan[0].at_s), advice.demand), (0.0, None), "{:?}", advice.plan);
    }

    #[test]
    fn a_workload_that_flips_is_left_alone_and_it_is_said_why() {
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let mut text = String::from("start,reads,updates\n");
        for n in 0..400 {
            let (reads, updates) = if n / 2 % 2 == 0 { (10_000, 0) } else { (0, 10_000) };
            text += &format!("{},{reads},{updates}\n", 1_490_054_400 + n * 30);
        }
        let trace = Trace::read("flips.csv", text.as_bytes()).unwrap();
        let ways = ways();
        let mut asked = question(&trace, &measurements, &ways);
        asked.basis.count = Count::Capacity;
        let advice = advise(&asked).unwrap();
        let ratio = |name: &str| {
            advice.baselines.iter().find(|one| one.name == name).unwrap().planned_ratio
        };
        assert!(ratio("static optimal") > 0.98, "{advice:?}");
        assert!(ratio("naive") > 1.3, "{advice:?}");
        assert_eq!((&*advice.plan, advice.confidence), (&[][..], None));
        assert_eq!(advice.alternatives.len(), 1);
        let because = &advice.alternatives[0].because;
        assert!(
            because.contains("the change costs") || because.contains("serves no more"),
            "{because}"
        );
    }

    #[test]
    fn confidence_follows_what_plans_of_the_past_have_kept() {
        let promise = |missed: f64| Promise { expected: 0.2, kept: 0.2 + missed };
        let missed = [-0.3, -0.04, -0.02, -0.01, 0.0, 0.0, 0.0, 0.01, 0.01, 0.02, 0.2];
        let promises = missed.map(promise);
        let told = Confidence::of(0.1, &promises).unwrap();
        assert_eq!((told.plans, told.gained), (11, 10.0 / 11.0));
        assert!((told.gain_low - 0.06).abs() < 1e-9 && (told.gain_high - 0.12).abs() < 1e-9);
        assert_eq!(Confidence::of(0.1, &promises[..4]), None);
    }

    #[test]
    fn a_change_that_is_barred_is_never_made_and_the_reason_is_said() {
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let trace = days(9);
        let mut ways = ways();
        ways[0][1] = Way::Barred("restarts are not approved".into());
        let advice = advise(&question(&trace, &measurements, &ways)).unwrap();
        assert_eq!((advice.replay.changes, advice.plan.len()), (0, 0), "{advice:?}");
        let because = &advice.alternatives[0].because;
        assert_eq!(because, "read-tuned is not changed to: restarts are not approved");
        assert!(advice.alternatives[0].benefit > 0.1, "{advice:?}");
    }

    #[test]
    fn what_cannot_be_told_is_said() {
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let short = Trace::read("short.csv", "start,reads\n0,1\n60,1\n120,1\n".as_bytes()).unwrap();
        let error = advise(&question(&short, &measurements, &ways())).unwrap_err().to_string();
        assert!(error.contains("3 intervals, and 30 at least"), "{error}");
        let day = days(2);
        let ways = ways();
        let mut asked = question(&day, &measurements, &ways);
        asked.basis.forecast = Some("time-of-week");
        let error = advise(&asked).unwrap_err().to_string();
        assert!(
            error.contains("no forecast time-of-week") && error.contains("markov-2"),
            "{error}"
        );
    }
}

//! Advice: whether the configuration should change, when and to what; and what such advice would have brought in the
//! past, beside other ways to choose.
//!
//! The first two thirds of a trace are learned from: there the forecast and the look-ahead are chosen by which serves
//! most, in a replay of their second half. The last third is lived through by the choice. Then the whole trace is learned
//! from, and the plan from its end on is the advice.

use imago_plan::tune::baselines::{Baseline, Comparison};
use imago_plan::tune::forecast::{Calendar, Forecast, LastValue, Markov, backtest};
use imago_plan::tune::replay::{Replayed, Setting, expected_rates, real, replay};
use imago_plan::tune::roll::{CostClass, Costs, Rule, Sliced};
use imago_plan::tune::schedule::{Change, Outlook, Schedule};
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::measurements::Measurements;
use crate::trace::Trace;

/// Look-aheads to choose among, in intervals.
const LOOK_AHEADS: [usize; 8] = [1, 2, 3, 5, 10, 20, 40, 80];
/// Times at which a forecast is asked in a back-test, about.
const ASKED: usize = 500;
/// A mix so far from what was expected calls for a new plan.
const DEPARTS: f64 = 0.2;
/// Intervals between a plan and one that a departure calls for.
const REPLAN_MIN: usize = 2;
/// Intervals that a trace needs: fewer leave nothing to choose by.
const INTERVALS_MIN: usize = 30;
const DAY_S: u64 = 86_400;

/// The question.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// What clients asked for.
    pub trace: &'q Trace,
    /// Its name.
    pub file: &'q str,
    /// What the configurations serve.
    pub measurements: &'q Measurements,
    /// The configuration at present.
    pub current: usize,
    /// The default one.
    pub default: usize,
    /// What changes take.
    pub costs: Costs,
    /// The class of a change from one configuration to another.
    pub class: CostClass,
    /// How a roll is counted.
    pub rule: Rule,
    /// The forecast to use; without it the one that serves most.
    pub forecast: Option<&'q str>,
    /// The look-ahead to use, in intervals; without it the one that serves most.
    pub look_ahead: Option<usize>,
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
    /// The plan from the end of the trace on.
    pub plan: Vec<PlannedChange>,
    /// What is expected within the look-ahead.
    pub expected: Expected,
    /// Each other configuration: what a change to it would bring.
    pub alternatives: Vec<Alternative>,
    /// What the last third of the trace would have been with such plans.
    pub replay: ReplayReport,
    /// The same by other ways to choose.
    pub baselines: Vec<BaselineReport>,
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

/// A change that is planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedChange {
    /// When it begins, in seconds since 1970.
    pub at_s: u64,
    /// The configuration that it leads to.
    pub to: String,
}

/// Operations within the look-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// If the configuration stays.
    pub stays: f64,
    /// By the plan.
    pub planned: f64,
    /// The gain, as a share of the first.
    pub gain: f64,
}

/// A change to one other configuration, at the time at which it brings most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// The configuration.
    pub to: String,
    /// When it would begin, in seconds since 1970.
    pub at_s: u64,
    /// Operations more than by the present one, if the change cost nothing, as a share of what that serves.
    pub benefit: f64,
    /// What is lost while the change is under way, likewise.
    pub cost: f64,
    /// One sentence.
    pub because: String,
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
    let Question { trace, measurements, .. } = *question;
    let intervals = &trace.intervals[..];
    if intervals.len() < INTERVALS_MIN {
        return Err(Error::TooLittle {
            file: question.file.to_owned(),
            found: format!("{} intervals", intervals.len()),
            needed: format!("{INTERVALS_MIN} at least are needed to learn from and to compare"),
        });
    }
    let rates = |mix: Mix| measurements.throughputs.of(mix);
    let setting = |look_ahead: usize, is_at_once: bool| setting(question, look_ahead, is_at_once);
    let names = names(question)?;
    let learned = intervals.len() * 2 / 3;
    let chosen = choose(question, &names, &intervals[..learned]);
    let (name, look_ahead) = chosen;
    let asked = ((intervals.len() - learned) / ASKED).max(1);
    let distance_max = look_ahead.max(12);
    let errors = names.iter().map(|name| {
        let mut forecast = forecast(name, trace.interval_s);
        let errors = backtest(&mut *forecast, intervals, (learned, asked), distance_max);
        ForecastReport { name: errors.name, rmse: errors.by_distance }
    });
    let forecasts = errors.collect();
    let lived = |is_at_once| {
        let mut forecast = forecast(name, trace.interval_s);
        replay(intervals, learned, &mut *forecast, &rates, &setting(look_ahead, is_at_once))
    };
    let Replayed { schedule, plans, departures } = lived(false);
    let by = setting(look_ahead, false);
    let (really, at_once) =
        (real(&intervals[learned..], &rates, &by), setting(look_ahead, true).rolls);
    let compared = Comparison { real: &really, at_once: &at_once, default: question.default };
    let report = |name, other: Schedule| BaselineReport {
        name,
        operations: other.operations,
        planned_ratio: schedule.operations / other.operations.max(1.0),
        changes: other.changes.len(),
    };
    let baselines = Baseline::ALL.map(|one| report(one.name(), compared.of(one)));
    let aggressive = report("aggressive", lived(true).schedule);
    let mut forecast = forecast(name, trace.interval_s);
    intervals.iter().for_each(|interval| forecast.observe(interval));
    let coming = forecast.ahead(look_ahead).unwrap_or_default();
    let rates_s = coming.iter().map(|chances| expected_rates(chances, &rates)).collect();
    let outlook = Outlook {
        rates_s,
        interval_s: by.interval_s,
        rolls: by.rolls,
        start: question.current,
        changes_max: None,
    };
    let (best, stays) = (outlook.best(), outlook.served(&[]).operations);
    let end_s = intervals.last().map_or(0, |last| last.start_s) + trace.interval_s;
    let at_s = |interval: usize| end_s + interval as u64 * trace.interval_s;
    let planned = |change: &Change| PlannedChange {
        at_s: at_s(change.interval),
        to: measurements.names[change.to].clone(),
    };
    Ok(Advice {
        interval_s: trace.interval_s,
        intervals: intervals.len(),
        missing: trace.missing,
        roll_s: question.costs.phases(question.class).iter().map(|phase| phase.seconds).sum(),
        current: measurements.names[question.current].clone(),
        forecasts,
        forecast: name.to_owned(),
        look_ahead,
        plan: best.changes.iter().map(planned).collect(),
        expected: Expected {
            stays,
            planned: best.operations,
            gain: (best.operations - stays) / stays.max(1.0),
        },
        alternatives: alternatives(question, &outlook, &best, at_s),
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

fn setting(question: &Question<'_>, look_ahead: usize, is_at_once: bool) -> Setting {
    let interval_s = question.trace.interval_s as f64;
    let mut costs = question.costs;
    if is_at_once {
        costs.at_once = costs.nodes;
    }
    let phases = costs.phases(question.class);
    let roll = Sliced::new(&phases, interval_s, question.rule, costs.restart_s);
    let configurations = question.measurements.names.len();
    Setting {
        interval_s,
        rolls: vec![vec![roll; configurations]; configurations],
        start: question.current,
        look_ahead,
        departs: DEPARTS,
        replan_min: REPLAN_MIN,
    }
}

const LAST_VALUE: &str = "last-value";
const MARKOV_1: &str = "markov-1";
const MARKOV_2: &str = "markov-2";
const TIME_OF_DAY: &str = "time-of-day";
const TIME_OF_WEEK: &str = "time-of-week";

/// The forecasts' names, as they are asked for.
pub const FORECASTS: [&str; 5] = [LAST_VALUE, MARKOV_1, MARKOV_2, TIME_OF_DAY, TIME_OF_WEEK];

/// Those that can be used for a trace: by the time of day only with two days of it at least to learn from, of the week
/// with two weeks.
fn names(question: &Question<'_>) -> Result<Vec<&'static str>> {
    let learned_s = question.trace.intervals.len() as u64 * 2 / 3 * question.trace.interval_s;
    let is_known = |name: &&str| match *name {
        TIME_OF_DAY => learned_s >= 2 * DAY_S,
        TIME_OF_WEEK => learned_s >= 14 * DAY_S,
        _ => true,
    };
    let usable: Vec<&'static str> = FORECASTS.into_iter().filter(is_known).collect();
    match question.forecast {
        Some(asked) if !usable.contains(&asked) => Err(Error::TooLittle {
            file: question.file.to_owned(),
            found: format!("there is no forecast {asked} for it"),
            needed: format!("there are {}", usable.join(", ")),
        }),
        _ => Ok(usable),
    }
}

fn forecast(name: &str, interval_s: u64) -> Box<dyn Forecast> {
    match name {
        MARKOV_1 => Box::new(Markov::first_order()),
        MARKOV_2 => Box::new(Markov::second_order()),
        TIME_OF_DAY => Box::new(Calendar::of_day(interval_s)),
        TIME_OF_WEEK => Box::new(Calendar::of_week(interval_s)),
        _ => Box::<LastValue>::default(),
    }
}

/// The forecast and the look-ahead that serve most in a replay of the second half; of equal ones the simplest forecast
/// and the shortest look-ahead.
fn choose<'n>(
    question: &Question<'_>,
    names: &[&'n str],
    intervals: &[Interval],
) -> (&'n str, usize) {
    let rates = |mix: Mix| question.measurements.throughputs.of(mix);
    let is_asked = |name: &&&str| question.forecast.is_none_or(|asked| asked == **name);
    let look_aheads: Vec<usize> = match question.look_ahead {
        Some(asked) => vec![asked],
        None => LOOK_AHEADS.into_iter().filter(|one| *one <= intervals.len() / 4).collect(),
    };
    let mut best: Option<(f64, &str, usize)> = None;
    for name in names.iter().filter(is_asked) {
        for look_ahead in &look_aheads {
            let setting = setting(question, *look_ahead, false);
            let mut forecast = forecast(name, question.trace.interval_s);
            let learns = intervals.len() / 2;
            let lived = replay(intervals, learns, &mut *forecast, &rates, &setting);
            let operations = lived.schedule.operations;
            if best.is_none_or(|(most, ..)| operations > most * (1.0 + 1e-9)) {
                best = Some((operations, *name, *look_ahead));
            }
        }
    }
    let (_, name, look_ahead) = best.expect("a forecast and a look-ahead");
    (name, look_ahead)
}

/// For each other configuration the best time for one change to it, and whether it pays.
fn alternatives(
    question: &Question<'_>,
    outlook: &Outlook,
    best: &Schedule,
    at_s: impl Fn(usize) -> u64,
) -> Vec<Alternative> {
    let stays = outlook.served(&[]).operations.max(1.0);
    let others = (0..outlook.configurations()).filter(|to| *to != outlook.start);
    let of = |to: usize| {
        let tried = (0..outlook.intervals())
            .map(|interval| (interval, outlook.served(&[Change { interval, to }]).operations));
        let (interval, operations) =
            tried.max_by(|(_, one), (_, two)| one.total_cmp(two)).unwrap_or((0, stays));
        let more = |rates: &Vec<f64>| (rates[to] - rates[outlook.start]) * outlook.interval_s;
        let benefit = outlook.rates_s.iter().skip(interval).map(more).sum::<f64>() / stays;
        let net = (operations - stays) / stays;
        let name = &question.measurements.names[to];
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let cost = benefit - net;
        let is_planned = best.changes.iter().any(|change| change.to == to);
        let because = match () {
            () if is_planned => format!("{name} is a part of the plan"),
            () if benefit <= 0.0 => {
                format!("{name} serves no more than the present configuration of what is expected")
            }
            () if net <= 0.0 => format!(
                "{name} would serve {} more, and the change costs {}",
                percent(benefit),
                percent(cost)
            ),
            () => format!("{name} would bring {}, and the plan brings more", percent(net)),
        };
        Alternative { to: name.clone(), at_s: at_s(interval), benefit, cost, because }
    };
    others.map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn question<'q>(trace: &'q Trace, measurements: &'q Measurements) -> Question<'q> {
        Question {
            trace,
            file: "days.csv",
            measurements,
            current: 0,
            default: 0,
            costs: COSTS,
            class: CostClass::Restart,
            rule: Rule::Phases,
            forecast: None,
            look_ahead: None,
        }
    }

    #[test]
    fn a_workload_of_days_and_nights_is_followed_and_serves_more_than_any_fixed_configuration() {
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let trace = days(9);
        let advice = advise(&question(&trace, &measurements)).unwrap();
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
        let of = |name: &str| advice.forecasts.iter().find(|one| one.name == name).unwrap();
        assert!(of("time of day").rmse[11].unwrap() < of("last value").rmse[11].unwrap());
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
        let advice = advise(&question(&trace, &measurements)).unwrap();
        let ratio = |name: &str| {
            advice.baselines.iter().find(|one| one.name == name).unwrap().planned_ratio
        };
        assert!(ratio("static optimal") > 0.98, "{advice:?}");
        assert!(ratio("naive") > 1.3, "{advice:?}");
        assert_eq!(advice.plan, []);
        assert_eq!(advice.alternatives.len(), 1);
        let because = &advice.alternatives[0].because;
        assert!(
            because.contains("the change costs") || because.contains("serves no more"),
            "{because}"
        );
    }

    #[test]
    fn what_cannot_be_told_is_said() {
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let short = Trace::read("short.csv", "start,reads\n0,1\n60,1\n120,1\n".as_bytes()).unwrap();
        let error = advise(&question(&short, &measurements)).unwrap_err().to_string();
        assert!(error.contains("3 intervals, and 30 at least"), "{error}");
        let day = days(2);
        let asked = Question { forecast: Some("time-of-week"), ..question(&day, &measurements) };
        let error = advise(&asked).unwrap_err().to_string();
        assert!(
            error.contains("no forecast time-of-week") && error.contains("markov-2"),
            "{error}"
        );
    }
}

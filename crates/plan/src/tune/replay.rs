//! A trace of the past, lived through as a tuner would have (SOPHIA, §4.4): it learns, forecasts, plans, changes, and
//! plans anew ([`super::planner`]).

use super::forecast::Forecast;
use super::planner::{Plan, Planner, outlook};
pub use super::planner::{Rates, Setting};
use super::schedule::{Change, Outlook, Schedule};
use super::workload::Interval;

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The changes, by the intervals behind those that were only learned from, and what was served.
    pub schedule: Schedule,
    /// Plans that were made.
    pub plans: usize,
    /// Those of them that a departure called for.
    pub departures: usize,
    /// Those with a change whose look-ahead lies within the trace: what each promised, and what it would have kept.
    pub promises: Vec<Promise>,
}

/// A plan with a change beside what came, each within the plan's look-ahead and as a share of what is served without any
/// change. Whether it was followed to its end makes no difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The gain that was expected.
    pub expected: f64,
    /// The gain of the same changes for what clients really asked for.
    pub kept: f64,
}

impl Promise {
    /// None for a plan without a change, and for one that is not followed.
    fn of(plan: &Plan, comes: &[Interval], rates: &Rates<'_>, setting: &Setting) -> Option<Self> {
        let comes = comes.get(..plan.outlook.intervals())?;
        if !plan.is_followed || plan.best.changes.is_empty() {
            return None;
        }
        let mut real = real(comes, rates, setting);
        real.start = plan.outlook.start;
        let stays = real.served(&[]).operations;
        let gain = real.served(&plan.best.changes).operations - stays;
        Some(Self { expected: plan.gain(), kept: gain / stays.max(1.0) })
    }
}

/// What really comes, as an outlook.
#[must_use]
pub fn real(trace: &[Interval], rates: &Rates<'_>, setting: &Setting) -> Outlook {
    // Without operations any configuration serves them all: none of them counts.
    let of =
        |interval: &Interval| interval.mix.map_or_else(|| vec![0.0; setting.rolls.len()], rates);
    outlook(trace.iter().map(of).collect(), setting, setting.start)
}

/// Lives through a trace; its first intervals are only learned from.
pub fn replay(
    trace: &[Interval],
    learns: usize,
    forecast: &mut dyn Forecast,
    rates: &Rates<'_>,
    setting: &Setting,
) -> Replayed {
    let (past, lived) = trace.split_at(learns.min(trace.len()));
    past.iter().for_each(|interval| forecast.observe(interval));
    let mut planner = Planner::new(setting.start);
    // The first interval in which no roll is under way.
    let mut free_at = 0;
    let mut changes = Vec::new();
    let (mut plans, mut departures, mut promises) = (0, 0, Vec::new());
    for (now, interval) in lived.iter().enumerate() {
        if now >= free_at {
            if planner.plan_anew(forecast, rates, setting) {
                plans += 1;
                let plan = planner.plan().expect("there is a new one");
                departures += usize::from(plan.is_departure);
                promises.extend(Promise::of(plan, &lived[now..], rates, setting));
            }
            if let Some(to) = planner.due() {
                free_at = now + setting.rolls[planner.configuration()][to].intervals();
                planner.changed(to);
                changes.push(Change { interval: now, to });
            }
        }
        forecast.observe(interval);
        planner.observe(interval, setting);
    }
    let schedule = real(lived, rates, setting).served(&changes);
    Replayed { schedule, plans, departures, promises }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::forecast::{Calendar, LastValue, Queue};
    use crate::tune::roll::Sliced;
    use crate::tune::workload::Mix;

    const QUARTER_S: u64 = 900;

    /// Two configurations: one for writes, one for reads.
    fn rates(mix: Mix) -> Vec<f64> {
        let reads = mix.shares()[0];
        vec![52_000.0 - 18_000.0 * reads, 36_000.0 + 14_000.0 * reads]
    }

    fn setting() -> Setting {
        // A roll of three nodes of 90 s each.
        let roll = Sliced { capacity_s: vec![(240.0, 500.0)] };
        Setting {
            interval_s: QUARTER_S as f64,
            rolls: vec![vec![roll; 2]; 2],
            start: 0,
            look_ahead: 20,
            departs: 0.2,
            replan_min: 4,
            gain_min: 0.0,
        }
    }

    fn trace(reads: impl IntoIterator<Item = f64>) -> Vec<Interval> {
        let of = |(n, share): (u64, f64)| {
            let mix = Some(Mix::of_reads(share));
            Interval { start_s: 1_499_990_400 + n * QUARTER_S, mix, rate_s: 40_000.0 }
        };
        (0..).zip(reads).map(of).collect()
    }

    /// Writes by day, reads by night.
    fn days(days: u64) -> Vec<Interval> {
        trace((0..days * 96).map(|n| if (24..80).contains(&(n % 96)) { 0.05 } else { 0.9 }))
    }

    #[test]
    fn a_day_that_repeats_is_followed_as_well_as_if_it_had_been_known() {
        let (trace, setting) = (days(6), setting());
        let learns = 3 * 96;
        let lived = replay(&trace, learns, &mut Calendar::of_day(QUARTER_S), &rates, &setting);
        let real = real(&trace[learns..], &rates, &setting);
        let oracle = real.best();
        assert_eq!(lived.schedule.changes.len(), oracle.changes.len(), "{lived:?} {oracle:?}");
        assert!(lived.schedule.operations > 0.999 * oracle.operations);
        assert!(lived.schedule.operations > 1.1 * real.served(&[]).operations, "it pays to change");
        assert_eq!(lived.departures, 0);
        // What repeats is known, so that every plan keeps what it promises.
        assert!(lived.promises.len() > 5, "{lived:?}");
        let is_kept = |one: &Promise| (one.kept - one.expected).abs() < 1e-9 && one.kept > 0.0;
        assert!(lived.promises.iter().all(is_kept), "{:?}", lived.promises);
    }

    #[test]
    fn a_workload_that_departs_is_planned_for_anew_and_not_at_every_interval() {
        let flips = (0..200).map(|n| if n / 2 % 2 == 0 { 0.0 } else { 1.0 });
        let trace = trace(flips);
        let lived = replay(&trace, 10, &mut LastValue::default(), &rates, &setting());
        assert!(lived.departures > 10, "{lived:?}");
        assert!(lived.plans <= 190 / 4 + 1, "{lived:?}");
        // The last mix is taken to stay, and never does.
        assert!(lived.promises.len() > 10, "{lived:?}");
        let is_broken = |one: &Promise| one.kept < one.expected - 0.05;
        assert!(lived.promises.iter().all(is_broken), "{:?}", lived.promises);
    }

    #[test]
    fn a_plan_that_gains_too_little_is_not_followed() {
        let (trace, setting) = (days(6), Setting { gain_min: 0.5, ..setting() });
        let lived = replay(&trace, 3 * 96, &mut Calendar::of_day(QUARTER_S), &rates, &setting);
        assert_eq!((lived.schedule.changes, lived.promises), (vec![], vec![]));
        assert!(lived.plans > 0);
    }

    #[test]
    fn nothing_is_done_while_nothing_is_known_and_nothing_counts_while_nothing_is_asked_for() {
        let mut trace = days(2);
        for interval in &mut trace[100..110] {
            interval.mix = None;
        }
        let lived = replay(&trace, 0, &mut Queue::new(Vec::new()), &rates, &setting());
        assert_eq!((lived.plans, lived.schedule.changes.len()), (0, 0));
        let idle = real(&trace, &rates, &setting());
        assert_eq!(idle.rates_s[105], [0.0, 0.0]);
        assert_eq!(lived.schedule.operations, idle.served(&[]).operations);
    }
}

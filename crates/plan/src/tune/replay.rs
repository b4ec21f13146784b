//! A trace of the past, lived through as a tuner would have (SOPHIA, §4.4): it learns, forecasts, plans, changes, and
//! plans anew.
//!
//! A plan is made for a look-ahead. It is made anew at its end, and before when clients ask for something else than was
//! expected; that as often as a limit allows, so that an unpredictable workload does not lead to one plan after
//! the other. While a roll is under way nothing is planned.
//!
//! Invariant: a plan is made from nothing but the intervals before it.

use super::forecast::{Chances, Forecast};
use super::roll::Sliced;
use super::schedule::{Change, Outlook, Schedule};
use super::workload::{Interval, Mix};

/// The operations a second that each configuration serves of a mix.
pub type Rates<'r> = dyn Fn(Mix) -> Vec<f64> + 'r;

/// What a trace is lived through with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The length of an interval, in seconds: T_d.
    pub interval_s: f64,
    /// For each configuration, the roll to each other one.
    pub rolls: Vec<Vec<Sliced>>,
    /// The configuration at the start.
    pub start: usize,
    /// T_L: intervals that a plan is made for.
    pub look_ahead: usize,
    /// A mix that is so far from what was expected calls for a new plan; see [`Mix::distance`].
    pub departs: f64,
    /// Intervals between a plan and one that a departure calls for, at least.
    pub replan_min: usize,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The changes, by the intervals behind those that were only learned from, and what was served.
    pub schedule: Schedule,
    /// Plans that were made.
    pub plans: usize,
    /// Those of them that a departure called for.
    pub departures: usize,
}

/// A plan that is being followed.
struct Plan {
    made: usize,
    changes: Vec<Change>,
    expected: Vec<Chances>,
}

/// What really comes, as an outlook.
#[must_use]
pub fn real(trace: &[Interval], rates: &Rates<'_>, setting: &Setting) -> Outlook {
    // Without operations any configuration serves them all: none of them counts.
    let of =
        |interval: &Interval| interval.mix.map_or_else(|| vec![0.0; setting.rolls.len()], rates);
    outlook(trace.iter().map(of).collect(), setting, setting.start)
}

fn outlook(rates_s: Vec<Vec<f64>>, setting: &Setting, start: usize) -> Outlook {
    let (interval_s, rolls) = (setting.interval_s, setting.rolls.clone());
    Outlook { rates_s, interval_s, rolls, start, changes_max: None }
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
    let (mut configuration, mut free_at) = (setting.start, 0);
    let mut plan: Option<Plan> = None;
    let mut changes = Vec::new();
    let (mut plans, mut departures, mut is_off) = (0, 0, false);
    for (now, interval) in lived.iter().enumerate() {
        let is_over = plan.as_ref().is_none_or(|plan| now >= plan.made + setting.look_ahead.max(1));
        let calls = |plan: &Plan| is_off && now >= plan.made + setting.replan_min.max(1);
        let is_called_for = plan.as_ref().is_some_and(calls);
        if now >= free_at && (is_over || is_called_for) {
            plan = made(forecast, rates, setting, now, configuration);
            plans += usize::from(plan.is_some());
            departures += usize::from(plan.is_some() && !is_over);
        }
        let due =
            plan.as_ref().and_then(|plan| plan.changes.iter().find(|one| one.interval == now));
        if let Some(change) = due.filter(|change| now >= free_at && change.to != configuration) {
            free_at = now + setting.rolls[configuration][change.to].intervals();
            configuration = change.to;
            changes.push(*change);
        }
        forecast.observe(interval);
        let expected = plan.as_ref().and_then(|plan| plan.expected.get(now - plan.made));
        let expected = expected.and_then(|chances| Mix::mean(chances.iter().copied()));
        if let (Some(expected), Some(mix)) = (expected, interval.mix) {
            is_off = expected.distance(mix) > setting.departs;
        }
    }
    let schedule = real(lived, rates, setting).served(&changes);
    Replayed { schedule, plans, departures }
}

/// A plan from an interval on; none while too little was seen.
fn made(
    forecast: &dyn Forecast,
    rates: &Rates<'_>,
    setting: &Setting,
    now: usize,
    configuration: usize,
) -> Option<Plan> {
    let expected = forecast.ahead(setting.look_ahead.max(1))?;
    let rates_s = expected.iter().map(|chances| expected_rates(chances, rates)).collect();
    let best = outlook(rates_s, setting, configuration).best();
    let moved = |change: Change| Change { interval: now + change.interval, ..change };
    let changes = best.changes.into_iter().map(moved).collect();
    Some(Plan { made: now, changes, expected })
}

/// What each configuration is expected to serve: the mean over what there may be, not that of the mean mix.
#[must_use]
pub fn expected_rates(chances: &Chances, rates: &Rates<'_>) -> Vec<f64> {
    let mut sums: Vec<f64> = Vec::new();
    for (chance, mix) in chances {
        let of = rates(*mix);
        sums.resize(of.len(), 0.0);
        sums.iter_mut().zip(of).for_each(|(sum, rate)| *sum += chance * rate);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::forecast::{Calendar, LastValue, Queue};

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
    }

    #[test]
    fn a_workload_that_departs_is_planned_for_anew_and_not_at_every_interval() {
        let flips = (0..200).map(|n| if n / 2 % 2 == 0 { 0.0 } else { 1.0 });
        let trace = trace(flips);
        let lived = replay(&trace, 10, &mut LastValue::default(), &rates, &setting());
        assert!(lived.departures > 10, "{lived:?}");
        assert!(lived.plans <= 190 / 4 + 1, "{lived:?}");
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

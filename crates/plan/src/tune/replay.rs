//! A replay of a past trace by a tuner (SOPHIA, §4.4): it learns, forecasts, plans, changes, and replans
//! ([`super::planner`]).

use super::forecast::Forecast;
use super::planner::{Plan, Planner, outlook, served};
pub use super::planner::{Rates, Setting, Weight};
use super::schedule::{Change, Outlook, Schedule};
use super::workload::Interval;

/// The outcome of a replay of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The changes that were made, with their intervals counted from the first one after the learning, and the
    /// operations served.
    pub schedule: Schedule,
    /// Number of plans that were made during the replay.
    pub plans: usize,
    /// Number of these plans that were made because the workload departed from the expected one.
    pub departures: usize,
    /// For each plan with a change whose look-ahead lies within the trace, its expected and its real gain.
    pub gain_forecasts: Vec<GainForecast>,
}

/// The expected and the real gain of a plan, each within the plan's look-ahead and as a share of the operations without
/// any change. It does not matter whether the plan was followed to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GainForecast {
    /// Gain that the plan expected, as a share of the operations served without a change.
    pub expected: f64,
    /// Gain of the same changes under the real workload, as a share of the operations served without a change.
    pub realised: f64,
}

impl GainForecast {
    /// Compares a plan with the real workload `comes` from the plan's first interval on. Returns `None` for a plan
    /// without a change, for one that is not followed, and for one that extends beyond the end of the trace.
    fn of(plan: &Plan, comes: &[Interval], rates: &Rates<'_>, setting: &Setting) -> Option<Self> {
        let comes = comes.get(..plan.outlook.intervals())?;
        if !plan.is_followed || plan.best.changes.is_empty() {
            return None;
        }
        let mut real = real(comes, rates, setting);
        real.start = plan.outlook.start;
        let stays = real.served(&[]).operations;
        let gain = real.served(&plan.best.changes).operations - stays;
        Some(Self { expected: plan.gain(), realised: gain / stays.max(f64::MIN_POSITIVE) })
    }
}

/// Returns the throughput of each configuration in each interval of the real workload `trace`, weighted as the
/// settings require, with the rolls between configurations.
#[must_use]
pub fn real(trace: &[Interval], rates: &Rates<'_>, setting: &Setting) -> Outlook {
    // An interval without operations counts nothing, since any configuration serves it.
    let of = |interval: &Interval| match (interval.mix, setting.weight) {
        (None, _) => vec![0.0; setting.rolls.len()],
        (Some(mix), Weight::Capacity) => rates(mix),
        (Some(mix), Weight::Demand) => served(interval.rate_s.unwrap_or(0.0), &rates(mix), setting),
    };
    // The bound of a plan's changes does not apply to the baselines.
    Outlook { changes_max: None, ..outlook(trace.iter().map(of).collect(), setting, setting.start) }
}

/// Replays a trace with a planner; the first `learns` intervals are only learned from.
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
    // The first interval without a roll in progress.
    let mut free_at = 0;
    let mut changes = Vec::new();
    let (mut plans, mut departures, mut gain_forecasts) = (0, 0, Vec::new());
    for (now, interval) in lived.iter().enumerate() {
        if now >= free_at {
            if planner.plan_anew(forecast, rates, setting) {
                plans += 1;
                let plan = planner.plan().expect("there is a new one");
                departures += usize::from(plan.is_departure);
                gain_forecasts.extend(GainForecast::of(plan, &lived[now..], rates, setting));
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
    Replayed { schedule, plans, departures, gain_forecasts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::forecast::{Calendar, Demand, LastValue, Queue, WithDemand};
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
            departure_min: 0.2,
            replan_min: 4,
            gain_min: 0.0,
            changes_max: None,
            weight: Weight::Capacity,
            allowed: vec![true; 2],
        }
    }

    fn trace(reads: impl IntoIterator<Item = f64>) -> Vec<Interval> {
        let of = |(n, share): (u64, f64)| {
            let mix = Some(Mix::of_reads(share));
            Interval { start_s: 1_499_990_400 + n * QUARTER_S, mix, rate_s: Some(40_000.0) }
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
        assert!(lived.gain_forecasts.len() > 5, "{lived:?}");
        let is_kept =
            |one: &GainForecast| (one.realised - one.expected).abs() < 1e-9 && one.realised > 0.0;
        assert!(lived.gain_forecasts.iter().all(is_kept), "{:?}", lived.gain_forecasts);
    }

    #[test]
    fn a_workload_that_departs_is_planned_for_anew_and_not_at_every_interval() {
        let flips = (0..200).map(|n| if n / 2 % 2 == 0 { 0.0 } else { 1.0 });
        let trace = trace(flips);
        let lived = replay(&trace, 10, &mut LastValue::default(), &rates, &setting());
        assert!(lived.departures > 10, "{lived:?}");
        assert!(lived.plans <= 190 / 4 + 1, "{lived:?}");
        // The last mix is taken to stay, and never does.
        assert!(lived.gain_forecasts.len() > 10, "{lived:?}");
        let is_broken = |one: &GainForecast| one.realised < one.expected - 0.05;
        assert!(lived.gain_forecasts.iter().all(is_broken), "{:?}", lived.gain_forecasts);
    }

    /// Reads by night alone, when a twentieth is asked for; from five to six nothing is, almost.
    fn busy_days(days: u64) -> Vec<Interval> {
        let mut trace = self::days(days);
        for interval in &mut trace {
            interval.rate_s = Some(match interval.start_s / QUARTER_S % 96 {
                20..24 => 20.0,
                24..80 => 40_000.0,
                _ => 2_000.0,
            });
        }
        trace
    }

    fn by_demand(mixes: impl Forecast + Send + Sync + 'static) -> WithDemand {
        let by = Box::new(Calendar::of_day(QUARTER_S));
        WithDemand { mixes: Box::new(mixes), demand: Demand::new(50_000.0, by) }
    }

    #[test]
    fn by_demand_a_change_waits_for_a_quiet_time_and_serves_more_of_what_is_asked_for() {
        let trace = busy_days(6);
        // Rolls take long, so that they matter; the cluster begins with what nights are better with.
        let roll = Sliced { capacity_s: vec![(300.0, 450.0), (300.0, 450.0), (300.0, 450.0)] };
        let setting = Setting { rolls: vec![vec![roll; 2]; 2], start: 1, ..setting() };
        let demand = Setting { weight: Weight::Demand, ..setting.clone() };
        // In the middle of the night.
        let learns = 3 * 96 + 8;
        let lived = |setting: &Setting| {
            let mut forecast = by_demand(Calendar::of_day(QUARTER_S));
            replay(&trace, learns, &mut forecast, &rates, setting).schedule.changes
        };
        let (by_capacity, by_demand) = (lived(&setting), lived(&demand));
        let real = real(&trace[learns..], &rates, &demand);
        let operations = |changes: &[Change]| real.served(changes).operations;
        let ratio = operations(&by_demand) / operations(&by_capacity);
        assert!(ratio > 1.005, "{ratio} {by_demand:?} {by_capacity:?}");
        // The first change is over before the day begins.
        let first = by_demand[0];
        let at = trace[learns + first.interval].start_s / QUARTER_S % 96;
        assert!(first.to == 0 && (20..22).contains(&at), "{by_demand:?}");
        assert!(by_demand.len() <= by_capacity.len(), "nights are left alone: {by_demand:?}");
    }

    #[test]
    fn by_demand_it_makes_no_difference_how_many_ask_where_it_is_always_as_many() {
        for rate_s in [3.0, 40_000.0, 700_000.0] {
            let mut trace = days(6);
            trace.iter_mut().for_each(|interval| interval.rate_s = Some(rate_s));
            let setting = Setting { weight: Weight::Demand, ..setting() };
            let demand = Demand::new(1_000_000.0, Box::<LastValue>::default());
            let mixes = Box::new(Calendar::of_day(QUARTER_S));
            let mut forecast = WithDemand { mixes, demand };
            let lived = replay(&trace, 3 * 96, &mut forecast, &rates, &setting);
            assert_eq!(lived.schedule.changes.len(), 7, "{rate_s}: {:?}", lived.schedule);
        }
    }

    #[test]
    fn by_demand_nothing_is_planned_with_a_forecast_that_tells_no_rates() {
        let setting = Setting { weight: Weight::Demand, ..setting() };
        let lived = replay(&days(6), 96, &mut LastValue::default(), &rates, &setting);
        assert_eq!((lived.plans, lived.schedule.changes), (0, vec![]));
    }

    #[test]
    fn a_plan_that_gains_too_little_is_not_followed() {
        let (trace, setting) = (days(6), Setting { gain_min: 0.5, ..setting() });
        let lived = replay(&trace, 3 * 96, &mut Calendar::of_day(QUARTER_S), &rates, &setting);
        assert_eq!((lived.schedule.changes, lived.gain_forecasts), (vec![], vec![]));
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

//! An online tuner: interval by interval it learns the workload, plans, and decides which change is due, with the
//! reasons against alternatives. It executes nothing itself, and reads no clock.
//!
//! The forecast and the look-ahead are selected by a replay of the past, as in [`crate::advice`], and selected again as
//! the past grows. Until then the last mix is assumed to continue for a few intervals.
//!
//! Invariant: while no change is approved, or clients would not notice one, the plan is reported but not followed.

use imago_plan::tune::forecast::Forecast;
use imago_plan::tune::judge::Window;
use imago_plan::tune::planner::{Planner, Weight};
use imago_plan::tune::roll::{CostClass, Costs};
use imago_plan::tune::schedule::Change;
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

use crate::advice::PlannedChange;
use crate::decision_inputs::{Alternative, Chosen, DecisionInputs, Expected, Planning, Transition};
use crate::measurements::Measurements;

/// Minimum and maximum number of past intervals from which a forecast is selected.
const CHOOSES_BY_MIN: usize = 30;
const CHOOSES_BY_MAX: usize = 5_000;
/// Relative growth of the number of past intervals after which the forecast is selected again.
const GROWTH: f64 = 0.1;
/// Maximum number of unknown intervals with which a gap in the observations is filled.
const GAP_MAX: u64 = 100_000;
/// Length of a plan, in intervals, until there is enough past to select it by.
const LOOK_AHEAD_FIRST: usize = 5;

/// Options of a tuner: how it plans, and when it makes a change.
#[derive(Clone, Debug)]
pub struct Options {
    /// How changes are planned.
    pub planning: Planning,
    /// Minimum load at which a change is made: the rate now, or expected until the plan's next change, as a share of
    /// the present configuration's throughput. Below this load, clients would not notice a change.
    pub busy_min: f64,
}

/// Decision of a tuner at the end of an interval: to stay or to change, with the plan and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// End of the interval after which the decision was made, in seconds since 1970.
    pub at_s: u64,
    /// Name of the configuration that the cluster has at the time of the decision.
    pub configuration: String,
    /// Name of the configuration to change to now; null if no change is due.
    pub change_to: Option<String>,
    /// Explanation of the decision in one sentence.
    pub because: String,
    /// Name of the forecast of mixes in use.
    pub forecast: String,
    /// Length of the plan (the look-ahead), in intervals.
    pub look_ahead: usize,
    /// Request rate of the last interval, as a share of the present configuration's throughput for the same mix; null
    /// if there were no operations.
    pub busy: Option<f64>,
    /// Highest expected request rate until the plan's next change, as a share of the present configuration's
    /// throughput; null without a plan, and where intervals weigh by capacity (all the same).
    pub busy_peak: Option<f64>,
    /// Name of the forecast of request rates; null where intervals weigh by capacity (all the same).
    pub demand_forecast: Option<String>,
    /// Amounts expected to be served within the look-ahead, with and without the plan; null without a plan.
    pub expected: Option<Expected>,
    /// Changes of configuration in the plan; empty if the plan is not followed.
    pub planned: Vec<PlannedChange>,
    /// For each configuration other than the present one, the benefit and the cost of a change, and the reason for or
    /// against it.
    pub alternatives: Vec<Alternative>,
}

/// An online tuner of one cluster; see the module's documentation.
pub struct Tuner {
    measurements: Measurements,
    options: Options,
    past: Vec<Interval>,
    forecast: Box<dyn Forecast + Send + Sync>,
    chosen: Chosen,
    /// Number of past intervals when the forecast was selected.
    chosen_by: usize,
    planner: Planner,
}

impl Tuner {
    /// Creates a tuner for a cluster that has the configuration of index `current`; `past` are the observed
    /// intervals, in order.
    #[must_use]
    pub fn new(
        measurements: Measurements,
        options: Options,
        current: usize,
        past: Vec<Interval>,
    ) -> Self {
        let basis = basis(&measurements, &options, current);
        let look_ahead = options.planning.look_ahead.unwrap_or(LOOK_AHEAD_FIRST);
        // A placeholder, which `choose` replaces below.
        let chosen = DecisionInputs::without_history("", look_ahead);
        let forecast = basis.forecast(&chosen);
        let mut tuner = Self {
            measurements,
            options,
            past,
            forecast,
            chosen,
            chosen_by: 0,
            planner: Planner::new(current),
        };
        tuner.choose();
        tuner
    }

    /// Returns the index of the configuration that the cluster has now.
    #[must_use]
    pub fn configuration(&self) -> usize {
        self.planner.configuration()
    }

    /// Records that the cluster has changed to the configuration of index `to`.
    pub fn changed(&mut self, to: usize) {
        self.planner.changed(to);
    }

    /// Discards the plan because events differed from it: the next decision makes a new one.
    pub fn forget_plan(&mut self) {
        self.planner.forget();
    }

    /// Replaces the transition between two configurations, given by their indices: bars it, or allows it again.
    pub fn set_transition(&mut self, from: usize, to: usize, transition: Transition) {
        self.options.planning.transitions[from][to] = transition;
    }

    /// Replaces the durations and lost capacity of changes.
    pub fn set_costs(&mut self, costs: Costs) {
        self.options.planning.costs = costs;
    }

    /// Returns the throughput of each configuration for a mix, in operations per second.
    #[must_use]
    pub fn rates(&self, mix: Mix) -> Vec<f64> {
        self.measurements.throughputs.of(mix)
    }

    /// Returns true if the change between these configurations (by index) rewrites all data.
    #[must_use]
    pub fn rewrites(&self, from: usize, to: usize) -> bool {
        let transition = &self.options.planning.transitions[from][to];
        matches!(transition, Transition::By(CostClass::Rewrite | CostClass::RestartAndRewrite))
    }

    /// Returns the load in a window: its request rate as a share of the throughput that the configuration of this
    /// index has for the same mix.
    #[must_use]
    pub fn busy(&self, window: &Window, configuration: usize) -> f64 {
        window.rate_s / self.rates(window.mix)[configuration].max(f64::MIN_POSITIVE)
    }

    /// Learns from an observed interval. Intervals between the last observed one and this one are added as unknown.
    pub fn observe(&mut self, seen: Interval) {
        let interval_s = self.options.planning.interval_s;
        let mut next_s = self.past.last().map_or(seen.start_s, |last| last.start_s + interval_s);
        // A longer gap is shortened by whole seasons.
        let season_s = self.options.planning.season_s;
        let beyond_s = seen.start_s.saturating_sub(next_s).saturating_sub(GAP_MAX * interval_s);
        next_s += beyond_s / season_s * season_s;
        while next_s < seen.start_s {
            self.learn(Interval { start_s: next_s, mix: None, rate_s: None });
            next_s += interval_s;
        }
        self.learn(seen);
        let is_beyond = seen.rate_s.is_some_and(|rate_s| rate_s > self.chosen.demand.bound_s);
        if is_beyond || self.past.len() as f64 >= self.chosen_by as f64 * (1.0 + GROWTH) {
            self.choose();
        }
    }

    /// Passes an interval to the forecast and to the planner, and appends it to the past.
    fn learn(&mut self, seen: Interval) {
        let basis = basis(&self.measurements, &self.options, self.planner.configuration());
        let setting = basis.setting(self.chosen.look_ahead, false);
        self.forecast.observe(&seen);
        self.planner.observe(&seen, &setting);
        self.past.push(seen);
    }

    /// Selects the forecast and the look-ahead, and trains the forecast with all past intervals.
    fn choose(&mut self) {
        if self.past.len() < CHOOSES_BY_MIN && !self.chosen.forecast.is_empty() {
            return;
        }
        let current = self.planner.configuration();
        let basis = basis(&self.measurements, &self.options, current);
        let chosen = if self.past.len() < CHOOSES_BY_MIN {
            let usable = basis.usable(self.past.len());
            let asked =
                usable.iter().find(|one| Some(**one) == self.options.planning.forecast.as_deref());
            DecisionInputs::without_history(asked.unwrap_or(&usable[0]), self.chosen.look_ahead)
        } else {
            basis.choose(&self.past[self.past.len().saturating_sub(CHOOSES_BY_MAX)..])
        };
        self.chosen_by = self.past.len();
        let named = |one: &Chosen| (one.forecast, one.look_ahead, one.demand.forecast);
        if named(&chosen) != named(&self.chosen) {
            self.planner.forget();
        }
        let mut forecast = basis.forecast(&chosen);
        self.past.iter().for_each(|interval| forecast.observe(interval));
        (self.chosen, self.forecast) = (chosen, forecast);
    }

    /// Decides at the end of the last observed interval. Returns None if the plan is unchanged, and no change is due.
    pub fn decide(&mut self) -> Option<Decision> {
        let current = self.planner.configuration();
        let basis = basis(&self.measurements, &self.options, current);
        let setting = basis.setting(self.chosen.look_ahead, false);
        let rates = |mix: Mix| self.measurements.throughputs.of(mix);
        let is_new = self.planner.plan_anew(&*self.forecast, &rates, &setting);
        let due = self.planner.due();
        let plan = self.planner.plan();
        if !is_new && due.is_none() && plan.is_some() {
            return None;
        }
        let last = self.past.last();
        let at_s = last.map_or(0, |last| last.start_s + self.options.planning.interval_s);
        let busy = last.and_then(|last| Some(last.rate_s? / rates(last.mix?)[current].max(1e-9)));
        let name = |number: usize| self.measurements.names[number].clone();
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let busy_peak = self.planner.busy_peak(&rates);
        // A change under low load prepares for the high load after it.
        let most = busy.unwrap_or(0.0).max(busy_peak.unwrap_or(0.0));
        let is_idle = most < self.options.busy_min;
        let (mut change_to, mut planned, mut alternatives) = (None, Vec::new(), Vec::new());
        let because = match (plan, due) {
            (None, _) => "too little load was measured to forecast it".to_owned(),
            (Some(_), Some(to)) if is_idle => format!(
                "{} would serve more, but the load is {} of the throughput of {}, and clients \
                 would not notice a change below {}",
                name(to),
                percent(most),
                name(current),
                percent(self.options.busy_min)
            ),
            (Some(plan), Some(to)) => {
                change_to = Some(name(to));
                format!(
                    "{} serves {} more, including the cost of the change",
                    name(to),
                    percent(plan.gain())
                )
            }
            (Some(plan), None) if plan.is_followed && !plan.best.changes.is_empty() => {
                format!("a change is planned for later, with a gain of {}", percent(plan.gain()))
            }
            (Some(plan), None) if !plan.best.changes.is_empty() => format!(
                "the best plan gains {}, and {} is required",
                percent(plan.gain()),
                percent(self.options.planning.gain_min)
            ),
            (Some(_), None) => "no change pays within the look-ahead".to_owned(),
        };
        if let Some(plan) = plan {
            let start_s =
                |interval: usize| at_s + interval as u64 * self.options.planning.interval_s;
            let of = |change: &Change| PlannedChange {
                at_s: start_s(change.interval),
                to: name(change.to),
            };
            planned = plan.best.changes.iter().filter(|_| plan.is_followed).map(of).collect();
            alternatives = basis.alternatives(plan, start_s);
        }
        let decision = Decision {
            at_s,
            configuration: name(current),
            because,
            forecast: self.chosen.forecast.to_owned(),
            look_ahead: self.chosen.look_ahead,
            busy,
            busy_peak,
            demand_forecast: (self.options.planning.weight == Weight::Demand)
                .then(|| self.chosen.demand.forecast.to_owned()),
            expected: plan.map(Expected::of),
            planned,
            alternatives,
            change_to,
        };
        if due.is_some() && is_idle {
            // The change may become due as soon as the load rises.
            self.planner.forget();
        }
        Some(decision)
    }
}

/// Returns the inputs of a decision for a cluster that has the configuration of index `current`.
fn basis<'b>(
    measurements: &'b Measurements,
    options: &'b Options,
    current: usize,
) -> DecisionInputs<'b> {
    DecisionInputs { measurements, planning: &options.planning, current }
}

#[cfg(test)]
mod tests {
    use imago_plan::tune::roll::Rule;

    use super::*;
    use crate::decision_inputs::{DAY_S, uniform_transitions};

    const MEASURED: &str = "\
configuration,operations_s,reads,updates
write-tuned,52000,0,1
write-tuned,30000,1,0
read-tuned,37000,0,1
read-tuned,46000,1,0
";

    fn tuner() -> Tuner {
        let planning = Planning {
            interval_s: 300,
            season_s: DAY_S,
            costs: Costs { live_s: 1.3, ..Costs::guessed(3) },
            transitions: uniform_transitions(2, CostClass::Restart),
            rule: Rule::Phases,
            gain_min: 0.02,
            forecast: None,
            look_ahead: None,
            changes_max: None,
            weight: Weight::Demand,
        };
        let options = Options { planning, busy_min: 0.3 };
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        Tuner::new(measurements, options, 0, Vec::new())
    }

    fn seen(n: u64, reads: f64, rate_s: f64) -> Interval {
        Interval {
            start_s: 1_795_000_200 + n * 300,
            mix: Some(Mix::of_reads(reads)),
            rate_s: Some(rate_s),
        }
    }

    #[test]
    fn without_a_past_it_says_so_and_then_goes_by_the_last_mix() {
        let mut tuner = tuner();
        let decision = tuner.decide().unwrap();
        assert!(decision.because.contains("too little load was measured"), "{decision:?}");
        tuner.observe(seen(0, 0.02, 48_000.0));
        let decision = tuner.decide().unwrap();
        assert_eq!((&decision.change_to, &*decision.forecast), (&None, "last-value"));
        assert!(decision.alternatives[0].because.contains("serves no more"), "{decision:?}");
        tuner.observe(seen(1, 0.02, 48_000.0));
        assert_eq!(tuner.decide(), None, "the plan holds");
    }

    #[test]
    fn a_departure_is_planned_for_and_a_change_told_until_it_is_made() {
        let mut tuner = tuner();
        for n in 0..4 {
            tuner.observe(seen(n, 0.02, 48_000.0));
            tuner.decide();
        }
        let mut told = None;
        for n in 4..8 {
            tuner.observe(seen(n, 0.97, 29_000.0));
            told = told.or_else(|| tuner.decide().filter(|one| one.change_to.is_some()));
        }
        let told = told.expect("a change");
        assert_eq!(told.change_to.as_deref(), Some("read-tuned"));
        assert!(told.expected.unwrap().gain > 0.2, "{told:?}");
        assert!(told.busy.unwrap() > 0.9, "{told:?}");
        tuner.changed(1);
        tuner.forget_plan();
        let decision = tuner.decide().unwrap();
        assert_eq!((decision.configuration.as_str(), decision.change_to), ("read-tuned", None));
    }

    #[test]
    fn clients_who_would_not_notice_are_left_alone() {
        let mut tuner = tuner();
        for n in 0..8 {
            tuner.observe(seen(n, 0.97, 3_000.0));
            let decision = tuner.decide().expect("it is said each time");
            assert_eq!(decision.change_to, None);
            assert!(decision.because.contains("would not notice"), "{decision:?}");
        }
        tuner.observe(seen(8, 0.97, 25_000.0));
        assert_eq!(tuner.decide().unwrap().change_to.as_deref(), Some("read-tuned"));
    }

    #[test]
    fn a_change_is_made_in_the_quiet_time_before_the_busy_one_that_gains_by_it() {
        // Reads from eight to six, when all that is served is asked for; a hundredth of it otherwise.
        let of = |n: u64| {
            let is_day = (96..216).contains(&(n % 288));
            seen(n, 0.97, if is_day { 30_000.0 } else { 300.0 })
        };
        // Three days are known, and it is half past three in the morning.
        let first = 288 - (1_795_000_200 % DAY_S) / 300;
        let at = |n: u64| Interval { start_s: 1_795_000_200 + (first + n) * 300, ..of(n) };
        let past: Vec<Interval> = (0..3 * 288 + 42).map(at).collect();
        let mut options = tuner().options;
        // An hour for three nodes.
        (options.planning.look_ahead, options.planning.costs.restart_s) = (Some(80), 1_200.0);
        let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
        let mut tuner = Tuner::new(measurements, options, 0, past);
        let decision = tuner.decide().unwrap();
        assert!(decision.busy.unwrap() < 0.02, "{decision:?}");
        assert!(decision.busy_peak.unwrap() > 0.9, "{decision:?}");
        assert_eq!(decision.change_to.as_deref(), Some("read-tuned"), "{decision:?}");
        assert_eq!(decision.demand_forecast.as_deref(), Some("time-of-day"));
    }

    #[test]
    fn what_is_barred_is_not_changed_to_and_it_is_said_why() {
        let mut tuner = tuner();
        let why = "it was undone an hour ago";
        tuner.set_transition(0, 1, Transition::Barred(why.into()));
        tuner.observe(seen(0, 0.97, 29_000.0));
        let decision = tuner.decide().unwrap();
        assert_eq!(decision.change_to, None);
        assert!(decision.alternatives[0].because.contains(why), "{decision:?}");
    }
}

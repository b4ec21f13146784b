//! A tuner beside a cluster: interval by interval it learns what clients ask for, plans, and says what is to be done, and
//! why nothing else. It does nothing itself, and knows no clock.
//!
//! The forecast and the look-ahead are chosen by a replay of the past, as advice chooses them, and chosen anew as the past
//! grows. Until there is a past, the last mix is taken to stay for a few intervals.
//!
//! Invariant: while nothing is approved, or clients would not notice, the plan is told and not followed.

use imago_plan::tune::forecast::Forecast;
use imago_plan::tune::judge::Window;
use imago_plan::tune::planner::{Planner, Weight};
use imago_plan::tune::roll::{CostClass, Costs, Rule};
use imago_plan::tune::schedule::Change;
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

use crate::advice::PlannedChange;
use crate::basis::{Alternative, Basis, Chosen, Expected, Way};
use crate::measurements::Measurements;

/// Intervals of the past that a forecast is chosen by, at least and at most.
const CHOOSES_BY_MIN: usize = 30;
const CHOOSES_BY_MAX: usize = 5_000;
/// The choice is made anew when the past has grown by this share.
const GROWTH: f64 = 0.1;
/// Intervals of a pause that are filled at most.
const GAP_MAX: u64 = 100_000;
/// The look-ahead until there is a past to choose by.
const LOOK_AHEAD_FIRST: usize = 5;

/// What a tuner is to go by.
#[derive(Clone, Debug)]
pub struct Options {
    /// The length of an interval, in seconds.
    pub interval_s: u64,
    /// The length of what clients' requests repeat by: see [`Basis::season_s`].
    pub season_s: u64,
    /// What changes take.
    pub costs: Costs,
    /// For each configuration, the way to each other one.
    pub ways: Vec<Vec<Way>>,
    /// The least gain that a plan is followed for, as a share.
    pub gain_min: f64,
    /// The least share of what the configuration serves that clients have to ask for, now or until the plan's next
    /// change: below, no change is noticed.
    pub busy_min: f64,
    /// What an interval weighs.
    pub weight: Weight,
    /// The forecast to use; without it the one that serves most.
    pub forecast: Option<String>,
    /// The look-ahead to use, in intervals; without it the one that serves most.
    pub look_ahead: Option<usize>,
}

/// What is decided at the end of an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// When, in seconds since 1970.
    pub at_s: u64,
    /// The configuration that the cluster has.
    pub configuration: String,
    /// The one to change to now; null: none.
    pub change_to: Option<String>,
    /// One sentence.
    pub because: String,
    /// The forecast that is used.
    pub forecast: String,
    /// The look-ahead that is used, in intervals.
    pub look_ahead: usize,
    /// What clients asked for, as a share of what the configuration serves of it; null if they asked for nothing.
    pub busy: Option<f64>,
    /// The most of that until the plan's next change, as it is expected; null where intervals weigh by capacity.
    pub busy_peak: Option<f64>,
    /// The forecast of rates; null where intervals weigh by capacity.
    pub demand_forecast: Option<String>,
    /// What is expected within the look-ahead.
    pub expected: Option<Expected>,
    /// The changes that are planned.
    pub planned: Vec<PlannedChange>,
    /// Each other configuration, and why it is or is not changed to.
    pub alternatives: Vec<Alternative>,
}

/// See the module's documentation.
pub struct Tuner {
    measurements: Measurements,
    options: Options,
    past: Vec<Interval>,
    forecast: Box<dyn Forecast + Send + Sync>,
    chosen: Chosen,
    /// Intervals of the past when the forecast was chosen.
    chosen_by: usize,
    planner: Planner,
}

impl Tuner {
    /// A tuner of a cluster with this configuration, which has seen some intervals already.
    #[must_use]
    pub fn new(
        measurements: Measurements,
        options: Options,
        current: usize,
        past: Vec<Interval>,
    ) -> Self {
        let basis = basis(&measurements, &options, current);
        let look_ahead = options.look_ahead.unwrap_or(LOOK_AHEAD_FIRST);
        // Until the choice below.
        let chosen = Basis::without_past("", look_ahead);
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

    /// The configuration that the cluster has.
    #[must_use]
    pub fn configuration(&self) -> usize {
        self.planner.configuration()
    }

    /// The cluster has another configuration now.
    pub fn changed(&mut self, to: usize) {
        self.planner.changed(to);
    }

    /// Something else happened than was planned: the next decision plans anew.
    pub fn forget_plan(&mut self) {
        self.planner.forget();
    }

    /// Has one way barred, or open again.
    pub fn set_way(&mut self, from: usize, to: usize, way: Way) {
        self.options.ways[from][to] = way;
    }

    /// The costs of changes, as they are known by now.
    pub fn set_costs(&mut self, costs: Costs) {
        self.options.costs = costs;
    }

    /// Operations a second that each configuration serves of a mix.
    #[must_use]
    pub fn rates(&self, mix: Mix) -> Vec<f64> {
        self.measurements.throughputs.of(mix)
    }

    /// True if a change rewrites all data.
    #[must_use]
    pub fn rewrites(&self, from: usize, to: usize) -> bool {
        let way = &self.options.ways[from][to];
        matches!(way, Way::By(CostClass::Rewrite | CostClass::RestartAndRewrite))
    }

    /// What clients asked for in a window, as a share of what a configuration is known to serve of it.
    #[must_use]
    pub fn busy(&self, window: &Window, configuration: usize) -> f64 {
        window.rate_s / self.rates(window.mix)[configuration].max(f64::MIN_POSITIVE)
    }

    /// Learns what was seen in an interval. Of those between the last one and this one nothing is known.
    pub fn observe(&mut self, seen: Interval) {
        let interval_s = self.options.interval_s;
        let mut next_s = self.past.last().map_or(seen.start_s, |last| last.start_s + interval_s);
        // Of a longer pause whole seasons are left out.
        let season_s = self.options.season_s;
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

    fn learn(&mut self, seen: Interval) {
        let basis = basis(&self.measurements, &self.options, self.planner.configuration());
        let setting = basis.setting(self.chosen.look_ahead, false);
        self.forecast.observe(&seen);
        self.planner.observe(&seen, &setting);
        self.past.push(seen);
    }

    /// Chooses the forecast and the look-ahead, and has the forecast learn the past.
    fn choose(&mut self) {
        if self.past.len() < CHOOSES_BY_MIN && !self.chosen.forecast.is_empty() {
            return;
        }
        let current = self.planner.configuration();
        let basis = basis(&self.measurements, &self.options, current);
        let chosen = if self.past.len() < CHOOSES_BY_MIN {
            let usable = basis.usable(self.past.len());
            let asked = usable.iter().find(|one| Some(**one) == self.options.forecast.as_deref());
            Basis::without_past(asked.unwrap_or(&usable[0]), self.chosen.look_ahead)
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

    /// Decides at the end of an interval. None if the plan is still the last one, and nothing of it is due.
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
        let at_s = last.map_or(0, |last| last.start_s + self.options.interval_s);
        let busy = last.and_then(|last| Some(last.rate_s? / rates(last.mix?)[current].max(1e-9)));
        let name = |number: usize| self.measurements.names[number].clone();
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let busy_peak = self.planner.busy_peak(&rates);
        // A change in a quiet time is for the busy one behind it.
        let most = busy.unwrap_or(0.0).max(busy_peak.unwrap_or(0.0));
        let is_idle = most < self.options.busy_min;
        let (mut change_to, mut planned, mut alternatives) = (None, Vec::new(), Vec::new());
        let because = match (plan, due) {
            (None, _) => "too little was seen yet to say what clients will ask for".to_owned(),
            (Some(_), Some(to)) if is_idle => format!(
                "{} would serve more, but clients ask for {} of what {} serves at most, and would not notice below {}",
                name(to),
                percent(most),
                name(current),
                percent(self.options.busy_min)
            ),
            (Some(plan), Some(to)) => {
                change_to = Some(name(to));
                format!("{} serves {} more, the change included", name(to), percent(plan.gain()))
            }
            (Some(plan), None) if plan.is_followed && !plan.best.changes.is_empty() => {
                format!("a change is planned for later, which brings {}", percent(plan.gain()))
            }
            (Some(plan), None) if !plan.best.changes.is_empty() => format!(
                "the best plan brings {}, and {} is asked for",
                percent(plan.gain()),
                percent(self.options.gain_min)
            ),
            (Some(_), None) => "no change pays within the look-ahead".to_owned(),
        };
        if let Some(plan) = plan {
            let start_s = |interval: usize| at_s + interval as u64 * self.options.interval_s;
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
            demand_forecast: (self.options.weight == Weight::Demand)
                .then(|| self.chosen.demand.forecast.to_owned()),
            expected: plan.map(Expected::of),
            planned,
            alternatives,
            change_to,
        };
        if due.is_some() && is_idle {
            // As soon as clients ask for more, it may be due.
            self.planner.forget();
        }
        Some(decision)
    }
}

fn basis<'b>(measurements: &'b Measurements, options: &'b Options, current: usize) -> Basis<'b> {
    Basis {
        measurements,
        interval_s: options.interval_s,
        season_s: options.season_s,
        current,
        costs: options.costs,
        ways: &options.ways,
        rule: Rule::Phases,
        gain_min: options.gain_min,
        forecast: options.forecast.as_deref(),
        look_ahead: options.look_ahead,
        changes_max: None,
        weight: options.weight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basis::{DAY_S, same_way};

    const MEASURED: &str = "\
configuration,operations_s,reads,updates
write-tuned,52000,0,1
write-tuned,30000,1,0
read-tuned,37000,0,1
read-tuned,46000,1,0
";

    fn tuner() -> Tuner {
        let options = Options {
            interval_s: 300,
            season_s: DAY_S,
            costs: Costs { live_s: 1.3, ..Costs::guessed(3) },
            ways: same_way(2, CostClass::Restart),
            gain_min: 0.02,
            busy_min: 0.3,
            weight: Weight::Demand,
            forecast: None,
            look_ahead: None,
        };
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
        assert!(decision.because.contains("too little was seen"), "{decision:?}");
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
        (options.look_ahead, options.costs.restart_s) = (Some(80), 1_200.0);
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
        tuner.set_way(0, 1, Way::Barred(why.into()));
        tuner.observe(seen(0, 0.97, 29_000.0));
        let decision = tuner.decide().unwrap();
        assert_eq!(decision.change_to, None);
        assert!(decision.alternatives[0].because.contains(why), "{decision:?}");
    }
}

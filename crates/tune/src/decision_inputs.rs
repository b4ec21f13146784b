//! Inputs of a decision: the throughputs of the configurations, the costs of changes between them, and the selection
//! of the forecast and the look-ahead that serve most in a replay of the past.

use imago_plan::tune::forecast::{
    Calendar, Demand, Errors, Forecast, LastValue, Markov, Seasonal, WithDemand,
};
use imago_plan::tune::planner::{Plan, Setting, Weight};
use imago_plan::tune::replay::replay;
use imago_plan::tune::roll::{CostClass, Costs, Rule, Sliced};
use imago_plan::tune::schedule::Change;
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

use crate::measurements::Measurements;

/// Candidate lengths of a plan (look-aheads), in intervals.
const LOOK_AHEADS: [usize; 8] = [1, 2, 3, 5, 10, 20, 40, 80];
/// Distance between the actual and the expected mix above which a new plan is made.
const DEPARTS: f64 = 0.2;
/// Minimum number of intervals between a plan and a new one that a departure of the workload triggers.
const REPLAN_MIN: usize = 2;
/// Length of a day, in seconds: the default period after which the workload repeats.
pub const DAY_S: u64 = 86_400;

/// Maximum distance at which forecasts of rates are compared, in intervals.
const DEMAND_AHEAD: usize = LOOK_AHEADS[LOOK_AHEADS.len() - 1];
/// Approximate number of intervals at which the back-test of a forecast of rates queries the forecast.
const BACKTEST_QUERIES: usize = 500;
/// Ratio of the assumed upper bound of request rates to the highest rate so far.
const HEADROOM: f64 = 2.0;
/// Assumed upper bound of request rates before any rate is known, in operations per second.
const BOUND_DEFAULT_S: f64 = 1e9;

const LAST_VALUE: &str = "last-value";
const MARKOV_1: &str = "markov-1";
const MARKOV_2: &str = "markov-2";
const TIME_OF_DAY: &str = "time-of-day";
const TIME_OF_WEEK: &str = "time-of-week";
const SEASONAL: &str = "seasonal";

/// Names of the forecasts, as users select them.
pub const FORECASTS: [&str; 6] =
    [LAST_VALUE, MARKOV_1, MARKOV_2, TIME_OF_DAY, TIME_OF_WEEK, SEASONAL];

/// Returns why a forecast cannot be used with a season (the period after which the workload repeats) and an interval
/// of these lengths, regardless of the amount of training data; None if the forecast can be used.
#[must_use]
pub fn unusable(forecast: &str, season_s: u64, interval_s: u64) -> Option<&'static str> {
    match forecast {
        TIME_OF_WEEK if season_s != DAY_S => {
            Some("it needs a season of one day, and another one is requested")
        }
        SEASONAL if Seasonal::of_season(season_s, interval_s).is_none() => {
            Some("a season must have 2 to 1,440 intervals for it")
        }
        _ => None,
    }
}

/// Whether, and by which class of change, the cluster can go from one configuration to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Transition {
    /// The change is allowed, with this cost class: that of the most expensive differing setting.
    By(CostClass),
    /// The change is not allowed, for this reason.
    Barred(String),
}

/// Returns the transitions between `configurations` configurations such that every change is allowed and has this
/// cost class.
#[must_use]
pub fn uniform_transitions(configurations: usize, class: CostClass) -> Vec<Vec<Transition>> {
    vec![vec![Transition::By(class); configurations]; configurations]
}

/// How changes of a cluster's configuration are planned: what a change costs, and how the workload is forecast.
#[derive(Clone, Debug)]
pub struct Planning {
    /// Length of an interval of the workload, in seconds.
    pub interval_s: u64,
    /// Period after which the workload repeats, in seconds: a day by default, and no shorter than an interval.
    pub season_s: u64,
    /// Durations of changes of each class, and the capacity that is lost meanwhile.
    pub costs: Costs,
    /// Transition between each two configurations, by the indices of the old and of the new one.
    pub transitions: Vec<Vec<Transition>>,
    /// Rule by which the operations lost during a change are counted.
    pub rule: Rule,
    /// Minimum gain at which a plan is followed, as a share of the operations without a change; see
    /// [`Setting::gain_min`].
    pub gain_min: f64,
    /// Name of the forecast of mixes to use; None selects the one that serves most in a replay of the past.
    pub forecast: Option<String>,
    /// Length of a plan, in intervals; None selects the one that serves most in a replay of the past.
    pub look_ahead: Option<usize>,
    /// Maximum number of changes in a plan; None is no limit.
    pub changes_max: Option<usize>,
    /// Weight of an interval in a plan: all the same (capacity), or by the operations that clients request (demand).
    pub weight: Weight,
}

impl Planning {
    /// Returns the planning of intervals of this length whose workload repeats every day, with the forecast and the
    /// look-ahead that serve most, no minimum gain, and intervals that weigh the same.
    #[must_use]
    pub fn daily(interval_s: u64, costs: Costs, transitions: Vec<Vec<Transition>>) -> Self {
        Self {
            interval_s,
            season_s: DAY_S,
            costs,
            transitions,
            rule: Rule::Phases,
            gain_min: 0.0,
            forecast: None,
            look_ahead: None,
            changes_max: None,
            weight: Weight::Capacity,
        }
    }
}

/// Inputs of a decision whether to change the configuration; see the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct DecisionInputs<'b> {
    /// Throughputs of the candidate configurations.
    pub measurements: &'b Measurements,
    /// How changes are planned.
    pub planning: &'b Planning,
    /// Index of the configuration that the cluster has now.
    pub current: usize,
}

/// The forecasts and the look-ahead that were selected for plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// Name of the selected forecast of mixes.
    pub forecast: &'static str,
    /// Selected length of a plan, in intervals.
    pub look_ahead: usize,
    /// Selected forecast of request rates.
    pub demand: ChosenDemand,
}

/// The forecast of request rates that was selected for plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenDemand {
    /// Name of the selected forecast of request rates.
    pub forecast: &'static str,
    /// Upper bound of request rates, in operations per second: the forecast clamps higher ones to it.
    pub bound_s: f64,
}

/// A single change from the present configuration to one other, at the time at which it gains most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// Name of the configuration after the change.
    pub to: String,
    /// Time at which the change would start, in seconds since 1970.
    pub at_s: u64,
    /// Additional operations compared with the present configuration if the change cost nothing, as a share of the
    /// operations that the present configuration serves.
    pub benefit: f64,
    /// Operations lost during the change, as a share of the operations that the present configuration serves.
    pub cost: f64,
    /// Explanation, in one sentence, why the plan includes this change or not.
    pub because: String,
}

/// Amounts that are expected to be served within the look-ahead: operations; where intervals weigh by demand, seconds
/// in which the best configuration would be busy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// Amount expected to be served if the configuration is not changed, in the unit of [`Expected`].
    pub stays: f64,
    /// Amount expected to be served with the planned changes, in the unit of [`Expected`].
    pub planned: f64,
    /// Expected gain of the plan over no change, as a share of [`Self::stays`].
    pub gain: f64,
}

impl Expected {
    /// Returns the amounts that a plan expects; a plan that is not followed gains nothing.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let planned = if plan.is_followed { plan.best.operations } else { plan.stays };
        Self {
            stays: plan.stays,
            planned,
            gain: (planned - plan.stays) / plan.stays.max(f64::MIN_POSITIVE),
        }
    }
}

impl DecisionInputs<'_> {
    /// Returns the settings of the planner for plans of `look_ahead` intervals. With `is_at_once`, all nodes restart
    /// together.
    #[must_use]
    pub fn setting(&self, look_ahead: usize, is_at_once: bool) -> Setting {
        let interval_s = self.planning.interval_s as f64;
        let mut costs = self.planning.costs;
        if is_at_once {
            costs.at_once = costs.nodes;
        }
        let sliced = |transition: &Transition| match transition {
            Transition::By(class) => {
                Sliced::new(&costs.phases(*class), interval_s, self.planning.rule, costs.restart_s)
            }
            // A barred change would serve nothing for the whole plan, so that no plan includes it.
            Transition::Barred(_) => Sliced { capacity_s: vec![(0.0, 0.0); look_ahead.max(1)] },
        };
        let transitions = self.planning.transitions[self.current].iter().enumerate();
        let allowed = transitions
            .map(|(to, transition)| to == self.current || matches!(transition, Transition::By(_)))
            .collect();
        Setting {
            interval_s,
            rolls: self
                .planning
                .transitions
                .iter()
                .map(|to| to.iter().map(sliced).collect())
                .collect(),
            start: self.current,
            look_ahead,
            departure_min: DEPARTS,
            replan_min: REPLAN_MIN,
            gain_min: self.planning.gain_min,
            changes_max: self.planning.changes_max,
            weight: self.planning.weight,
            allowed,
        }
    }

    /// Returns the duration of the longest allowed change from the present configuration, in seconds.
    #[must_use]
    pub fn roll_s(&self) -> f64 {
        let others = self.planning.transitions[self.current]
            .iter()
            .enumerate()
            .filter(|(to, _)| *to != self.current);
        let seconds = others.map(|(_, transition)| match transition {
            Transition::By(class) => {
                self.planning.costs.phases(*class).iter().map(|phase| phase.seconds).sum()
            }
            Transition::Barred(_) => 0.0,
        });
        seconds.fold(0.0, f64::max)
    }

    /// Returns the names of the forecasts that can be used with `learned` intervals of training data. The time of day
    /// and the season need two seasons of them, the time of week two weeks; the season must also be a suitable number
    /// of intervals. If the season is not a day, it replaces the day, and the time of week is unavailable.
    #[must_use]
    pub fn usable(&self, learned: usize) -> Vec<&'static str> {
        let learned_s = learned as u64 * self.planning.interval_s;
        let is_usable = |name: &&str| match *name {
            TIME_OF_DAY => learned_s >= 2 * self.planning.season_s,
            TIME_OF_WEEK => self.planning.season_s == DAY_S && learned_s >= 14 * DAY_S,
            SEASONAL => learned_s >= 2 * self.planning.season_s && self.seasonal().is_some(),
            _ => true,
        };
        FORECASTS.into_iter().filter(is_usable).collect()
    }

    fn seasonal(&self) -> Option<Seasonal> {
        Seasonal::of_season(self.planning.season_s, self.planning.interval_s)
    }

    /// Builds the selected forecast, without training; it predicts rates too if intervals weigh by demand.
    #[must_use]
    pub fn forecast(&self, chosen: &Chosen) -> Box<dyn Forecast + Send + Sync> {
        let mixes = self.named(chosen.forecast);
        match self.planning.weight {
            Weight::Capacity => mixes,
            Weight::Demand => {
                let ChosenDemand { forecast, bound_s } = chosen.demand;
                let demand = Demand::new(bound_s, self.named(forecast));
                Box::new(WithDemand { mixes, demand })
            }
        }
    }

    /// Builds the forecast with this name, without training; the forecast `last-value` if the name is unknown.
    #[must_use]
    pub fn named(&self, name: &str) -> Box<dyn Forecast + Send + Sync> {
        match name {
            MARKOV_1 => Box::new(Markov::first_order()),
            MARKOV_2 => Box::new(Markov::second_order()),
            TIME_OF_DAY => {
                Box::new(Calendar::of_season(self.planning.season_s, self.planning.interval_s))
            }
            TIME_OF_WEEK => Box::new(Calendar::of_week(self.planning.interval_s)),
            SEASONAL => Box::new(self.seasonal().expect("only usable ones are asked for")),
            _ => Box::<LastValue>::default(),
        }
    }

    /// Returns the selection of a decision without past data: this forecast of mixes and look-ahead (in intervals),
    /// and a forecast that the last rate continues.
    #[must_use]
    pub fn without_history(forecast: &'static str, look_ahead: usize) -> Chosen {
        let demand = ChosenDemand { forecast: LAST_VALUE, bound_s: BOUND_DEFAULT_S };
        Chosen { forecast, look_ahead, demand }
    }

    /// Back-tests each forecast of rates after the first `learns` intervals, which are training data only. Returns
    /// each forecast's name and its errors, in operations per second. Markov chains are left out: they have ten
    /// states, which is too coarse for a rate.
    pub fn demand_errors(
        &self,
        intervals: &[Interval],
        learns: usize,
    ) -> Vec<(&'static str, Errors)> {
        let every = ((intervals.len() - learns) / BACKTEST_QUERIES).max(1);
        let bound_s = bound_s(intervals);
        let of = |name: &'static str| {
            let by = &mut *self.named(name);
            let asked = (learns, every);
            (name, Demand::errors(by, intervals, bound_s, asked, DEMAND_AHEAD))
        };
        let fine = |name: &&str| !matches!(*name, MARKOV_1 | MARKOV_2);
        self.usable(intervals.len()).into_iter().filter(fine).map(of).collect()
    }

    /// Returns the forecast of rates with the least error in the second half of these intervals; of equal ones the
    /// simplest.
    #[must_use]
    pub fn choose_demand(&self, intervals: &[Interval]) -> ChosenDemand {
        let errors = self.demand_errors(intervals, intervals.len() / 2);
        let told = errors.iter().filter_map(|(name, errors)| {
            Some((errors.over(DEMAND_AHEAD.min(intervals.len() / 4))?, *name))
        });
        let best = told.reduce(|best, one| if one.0 < best.0 * (1.0 - 1e-9) { one } else { best });
        let forecast = best.map_or(LAST_VALUE, |(_, name)| name);
        ChosenDemand { forecast, bound_s: bound_s(intervals) }
    }

    /// Returns the forecast and the look-ahead that serve most in a replay of the second half of these intervals; of
    /// equal ones the simplest forecast and the shortest look-ahead.
    #[must_use]
    pub fn choose(&self, intervals: &[Interval]) -> Chosen {
        let rates = |mix: Mix| self.measurements.throughputs.of(mix);
        let usable = self.usable(intervals.len());
        let names = usable
            .iter()
            .filter(|name| self.planning.forecast.as_deref().is_none_or(|asked| asked == **name));
        let look_aheads: Vec<usize> = match self.planning.look_ahead {
            Some(asked) => vec![asked],
            None => LOOK_AHEADS.into_iter().filter(|one| *one <= intervals.len() / 4).collect(),
        };
        let simplest = Self::without_history(LAST_VALUE, self.planning.look_ahead.unwrap_or(1));
        let demand = match self.planning.weight {
            Weight::Capacity => simplest.demand,
            Weight::Demand => self.choose_demand(intervals),
        };
        let mut best: Option<(f64, Chosen)> = None;
        for name in names {
            for look_ahead in &look_aheads {
                let chosen = Chosen { forecast: name, look_ahead: *look_ahead, demand };
                let setting = self.setting(*look_ahead, false);
                let mut forecast = self.forecast(&chosen);
                let learns = intervals.len() / 2;
                let lived = replay(intervals, learns, &mut *forecast, &rates, &setting);
                let operations = lived.schedule.operations;
                if best.is_none_or(|(most, _)| operations > most * (1.0 + 1e-9)) {
                    best = Some((operations, chosen));
                }
            }
        }
        best.map_or(Chosen { demand, ..simplest }, |(_, chosen)| chosen)
    }

    /// Returns, for each configuration other than the present one, the best time for a single change to it, and the
    /// reason why the plan includes the change or not. `at_s` returns the start, in seconds since 1970, of an
    /// interval of the plan.
    pub fn alternatives(&self, plan: &Plan, at_s: impl Fn(usize) -> u64) -> Vec<Alternative> {
        let outlook = &plan.outlook;
        let stays = plan.stays.max(f64::MIN_POSITIVE);
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let of = |to: usize| {
            let tried = (0..outlook.intervals())
                .map(|interval| (interval, outlook.served(&[Change { interval, to }]).operations));
            let (interval, operations) =
                tried.max_by(|(_, one), (_, two)| one.total_cmp(two)).unwrap_or((0, stays));
            let name = &self.measurements.names[to];
            let more = |rates: &Vec<f64>| (rates[to] - rates[outlook.start]) * outlook.interval_s;
            if let Transition::Barred(why) = &self.planning.transitions[outlook.start][to] {
                let benefit = outlook.rates_s.iter().map(more).sum::<f64>() / stays;
                let because = format!("no change to {name}: {why}");
                return Alternative {
                    to: name.clone(),
                    at_s: at_s(0),
                    benefit,
                    cost: 0.0,
                    because,
                };
            }
            let benefit = outlook.rates_s.iter().skip(interval).map(more).sum::<f64>() / stays;
            let net = (operations - stays) / stays;
            let cost = benefit - net;
            let is_planned = plan.best.changes.iter().any(|change| change.to == to);
            let because = match () {
                () if is_planned && plan.is_followed => format!("{name} is a part of the plan"),
                () if is_planned => format!(
                    "{name} would gain {}, and at least {} is required",
                    percent(plan.gain()),
                    percent(self.planning.gain_min)
                ),
                () if benefit <= 0.0 => {
                    format!(
                        "{name} serves no more of the expected load than the present configuration"
                    )
                }
                () if net <= 0.0 => format!(
                    "{name} would serve {} more, and the change costs {}",
                    percent(benefit),
                    percent(cost)
                ),
                () => format!("{name} would gain {}, and the plan gains more", percent(net)),
            };
            Alternative { to: name.clone(), at_s: at_s(interval), benefit, cost, because }
        };
        (0..outlook.configurations()).filter(|to| *to != outlook.start).map(of).collect()
    }
}

/// Returns the assumed upper bound of request rates, in operations per second: [`HEADROOM`] times the highest rate in
/// these intervals.
pub(crate) fn bound_s(intervals: &[Interval]) -> f64 {
    let most = intervals.iter().filter_map(|one| one.rate_s).fold(0.0, f64::max);
    if most > 0.0 { most * HEADROOM } else { BOUND_DEFAULT_S }
}

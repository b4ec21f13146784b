//! What is decided by: what configurations serve, what changes between them take, and the forecast and the look-ahead
//! that serve most in a replay of the past.

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

/// Look-aheads to choose among, in intervals.
const LOOK_AHEADS: [usize; 8] = [1, 2, 3, 5, 10, 20, 40, 80];
/// A mix so far from what was expected calls for a new plan.
const DEPARTS: f64 = 0.2;
/// Intervals between a plan and one that a departure calls for.
const REPLAN_MIN: usize = 2;
/// What clients' requests repeat by, if nothing else is known, in seconds.
pub const DAY_S: u64 = 86_400;

/// Distances that forecasts of rates are compared by, in intervals.
const DEMAND_AHEAD: usize = LOOK_AHEADS[LOOK_AHEADS.len() - 1];
/// Times at which a forecast is asked in a back-test, about.
const ASKED: usize = 500;
/// How many times the most that was seen a rate may be until the choice is made anew.
const HEADROOM: f64 = 2.0;
/// A bound of rates of which none was seen yet, in operations a second.
const BOUND_UNSEEN_S: f64 = 1e9;

const LAST_VALUE: &str = "last-value";
const MARKOV_1: &str = "markov-1";
const MARKOV_2: &str = "markov-2";
const TIME_OF_DAY: &str = "time-of-day";
const TIME_OF_WEEK: &str = "time-of-week";
const SEASONAL: &str = "seasonal";

/// The forecasts' names, as they are asked for.
pub const FORECASTS: [&str; 6] =
    [LAST_VALUE, MARKOV_1, MARKOV_2, TIME_OF_DAY, TIME_OF_WEEK, SEASONAL];

/// Why a forecast cannot be used, however much was seen, where clients' requests repeat by a season.
#[must_use]
pub fn unusable(forecast: &str, season_s: u64, interval_s: u64) -> Option<&'static str> {
    match forecast {
        TIME_OF_WEEK if season_s != DAY_S => {
            Some("a week has days, and another season is asked for")
        }
        SEASONAL if Seasonal::of_season(season_s, interval_s).is_none() => {
            Some("a season must have 2 to 1,440 intervals for it")
        }
        _ => None,
    }
}

/// How the configuration is changed from one to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// By knobs of which the dearest is of this class.
    By(CostClass),
    /// Not at all, for this reason.
    Barred(String),
}

/// The same way between any two configurations.
#[must_use]
pub fn same_way(configurations: usize, class: CostClass) -> Vec<Vec<Way>> {
    vec![vec![Way::By(class); configurations]; configurations]
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'b> {
    /// What the configurations serve.
    pub measurements: &'b Measurements,
    /// The length of an interval, in seconds.
    pub interval_s: u64,
    /// The length of what clients' requests repeat by, in seconds: a day, if nothing else is known. No shorter
    /// than an interval.
    pub season_s: u64,
    /// The configuration at present.
    pub current: usize,
    /// What changes take.
    pub costs: Costs,
    /// For each configuration, the way to each other one.
    pub ways: &'b [Vec<Way>],
    /// How a roll is counted.
    pub rule: Rule,
    /// The least gain that a plan is followed for; see [`Setting::gain_min`].
    pub gain_min: f64,
    /// The forecast to use; without it the one that serves most.
    pub forecast: Option<&'b str>,
    /// The look-ahead to use, in intervals; without it the one that serves most.
    pub look_ahead: Option<usize>,
    /// The most changes of a plan; without it as many as pay.
    pub changes_max: Option<usize>,
    /// What an interval weighs.
    pub weight: Weight,
}

/// The forecasts that are used, and how far they are asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The forecast of mixes, by its name.
    pub forecast: &'static str,
    /// Intervals that a plan is made for.
    pub look_ahead: usize,
    /// The forecast of rates.
    pub demand: ChosenDemand,
}

/// How rates are forecast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenDemand {
    /// The forecast, by its name.
    pub forecast: &'static str,
    /// Rates beyond it are taken for it, in operations a second.
    pub bound_s: f64,
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

/// What is served within the look-ahead: operations; where intervals weigh by demand, seconds in which the best configuration
/// would be busy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// If the configuration stays.
    pub stays: f64,
    /// By the plan.
    pub planned: f64,
    /// The gain, as a share of the first.
    pub gain: f64,
}

impl Expected {
    /// What a plan expects.
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

impl Basis<'_> {
    /// What a planner decides by.
    #[must_use]
    pub fn setting(&self, look_ahead: usize, is_at_once: bool) -> Setting {
        let interval_s = self.interval_s as f64;
        let mut costs = self.costs;
        if is_at_once {
            costs.at_once = costs.nodes;
        }
        let sliced = |way: &Way| match way {
            Way::By(class) => {
                Sliced::new(&costs.phases(*class), interval_s, self.rule, costs.restart_s)
            }
            // A change in which nothing is served for as long as the plan reaches is never taken.
            Way::Barred(_) => Sliced { capacity_s: vec![(0.0, 0.0); look_ahead.max(1)] },
        };
        let ways = self.ways[self.current].iter().enumerate();
        let allowed =
            ways.map(|(to, way)| to == self.current || matches!(way, Way::By(_))).collect();
        Setting {
            interval_s,
            rolls: self.ways.iter().map(|to| to.iter().map(sliced).collect()).collect(),
            start: self.current,
            look_ahead,
            departs: DEPARTS,
            replan_min: REPLAN_MIN,
            gain_min: self.gain_min,
            changes_max: self.changes_max,
            weight: self.weight,
            allowed,
        }
    }

    /// The longest of the changes from the present configuration, in seconds.
    #[must_use]
    pub fn roll_s(&self) -> f64 {
        let others =
            self.ways[self.current].iter().enumerate().filter(|(to, _)| *to != self.current);
        let seconds = others.map(|(_, way)| match way {
            Way::By(class) => self.costs.phases(*class).iter().map(|phase| phase.seconds).sum(),
            Way::Barred(_) => 0.0,
        });
        seconds.fold(0.0, f64::max)
    }

    /// The forecasts that can be used with so many intervals to learn from: by the time of day only with two days of them
    /// at least, of the week with two weeks, by a season with two days of a fit number of intervals. Where something else
    /// than a day repeats, that takes its place, and there is no week.
    #[must_use]
    pub fn usable(&self, learned: usize) -> Vec<&'static str> {
        let learned_s = learned as u64 * self.interval_s;
        let is_usable = |name: &&str| match *name {
            TIME_OF_DAY => learned_s >= 2 * self.season_s,
            TIME_OF_WEEK => self.season_s == DAY_S && learned_s >= 14 * DAY_S,
            SEASONAL => learned_s >= 2 * self.season_s && self.seasonal().is_some(),
            _ => true,
        };
        FORECASTS.into_iter().filter(is_usable).collect()
    }

    fn seasonal(&self) -> Option<Seasonal> {
        Seasonal::of_season(self.season_s, self.interval_s)
    }

    /// The forecast that was chosen, which has seen nothing yet; of rates too, if intervals weigh by them.
    #[must_use]
    pub fn forecast(&self, chosen: &Chosen) -> Box<dyn Forecast + Send + Sync> {
        let mixes = self.named(chosen.forecast);
        match self.weight {
            Weight::Capacity => mixes,
            Weight::Demand => {
                let ChosenDemand { forecast, bound_s } = chosen.demand;
                let demand = Demand::new(bound_s, self.named(forecast));
                Box::new(WithDemand { mixes, demand })
            }
        }
    }

    /// The forecast of this name, which has seen nothing yet.
    #[must_use]
    pub fn named(&self, name: &str) -> Box<dyn Forecast + Send + Sync> {
        match name {
            MARKOV_1 => Box::new(Markov::first_order()),
            MARKOV_2 => Box::new(Markov::second_order()),
            TIME_OF_DAY => Box::new(Calendar::of_season(self.season_s, self.interval_s)),
            TIME_OF_WEEK => Box::new(Calendar::of_week(self.interval_s)),
            SEASONAL => Box::new(self.seasonal().expect("only usable ones are asked for")),
            _ => Box::<LastValue>::default(),
        }
    }

    /// What is used while there is no past to choose by: this forecast, and the last rate.
    #[must_use]
    pub fn without_past(forecast: &'static str, look_ahead: usize) -> Chosen {
        let demand = ChosenDemand { forecast: LAST_VALUE, bound_s: BOUND_UNSEEN_S };
        Chosen { forecast, look_ahead, demand }
    }

    /// How far each forecast of rates was off behind the first intervals, which it only learned from, in operations a
    /// second, with its name as it is asked for. Chains are of tenths, which is too coarse for a rate.
    pub fn demand_errors(
        &self,
        intervals: &[Interval],
        learns: usize,
    ) -> Vec<(&'static str, Errors)> {
        let every = ((intervals.len() - learns) / ASKED).max(1);
        let bound_s = bound_s(intervals);
        let of = |name: &'static str| {
            let by = &mut *self.named(name);
            let asked = (learns, every);
            (name, Demand::errors(by, intervals, bound_s, asked, DEMAND_AHEAD))
        };
        let fine = |name: &&str| !matches!(*name, MARKOV_1 | MARKOV_2);
        self.usable(intervals.len()).into_iter().filter(fine).map(of).collect()
    }

    /// The forecast of rates that was least off in the second half of some intervals; of equal ones the simplest.
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

    /// The forecast and the look-ahead that serve most in a replay of the second half of some intervals; of equal ones
    /// the simplest forecast and the shortest look-ahead.
    #[must_use]
    pub fn choose(&self, intervals: &[Interval]) -> Chosen {
        let rates = |mix: Mix| self.measurements.throughputs.of(mix);
        let usable = self.usable(intervals.len());
        let names = usable.iter().filter(|name| self.forecast.is_none_or(|asked| asked == **name));
        let look_aheads: Vec<usize> = match self.look_ahead {
            Some(asked) => vec![asked],
            None => LOOK_AHEADS.into_iter().filter(|one| *one <= intervals.len() / 4).collect(),
        };
        let simplest = Self::without_past(LAST_VALUE, self.look_ahead.unwrap_or(1));
        let demand = match self.weight {
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

    /// For each other configuration the best time for one change to it, and why it is or is not made.
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
            if let Way::Barred(why) = &self.ways[outlook.start][to] {
                let benefit = outlook.rates_s.iter().map(more).sum::<f64>() / stays;
                let because = format!("{name} is not changed to: {why}");
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
                    "{name} would bring {}, and {} at least is asked for",
                    percent(plan.gain()),
                    percent(self.gain_min)
                ),
                () if benefit <= 0.0 => {
                    format!(
                        "{name} serves no more than the present configuration of what is expected"
                    )
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
        (0..outlook.configurations()).filter(|to| *to != outlook.start).map(of).collect()
    }
}

/// What rates are taken to be below, in operations a second.
pub(crate) fn bound_s(intervals: &[Interval]) -> f64 {
    let most = intervals.iter().filter_map(|one| one.rate_s).fold(0.0, f64::max);
    if most > 0.0 { most * HEADROOM } else { BOUND_UNSEEN_S }
}

//! A tuner that goes with the time: it learns from each interval, plans, says which change is due, and plans anew.
//!
//! A plan is made for a look-ahead. It is made anew at its end, and before when clients ask for something else than was
//! expected; that as often as a limit allows, so that an unpredictable workload does not lead to one plan after
//! the other. While a roll is under way nothing is planned.
//!
//! **What an interval weighs** ([`Weight`]). The paper counts what could be served, each second as much as any other one.
//! Clients ask for more at one time than at another: weighed by demand, a roll goes into a quiet time, and a configuration
//! that is better by night alone, when few ask, is worth less. An interval weighs as much as the share of the time in
//! which the best configuration would be busy with what is asked for; in it a configuration serves as the share of the
//! best one's throughput that it has. So an hour of scans that keeps a cluster busy weighs more than an hour of
//! lookups that does not, and only ratios of rates matter: measurements may be of smaller nodes than the trace.
//!
//! The same planner lives through a trace of the past ([`super::replay`]) and beside a cluster, so that what a replay
//! tells is what a cluster would have had.
//!
//! Invariant: a plan is made from nothing but the intervals before it.

use super::forecast::{Chances, Forecast};
use super::roll::Sliced;
use super::schedule::{Change, Outlook, Schedule};
use super::workload::{Interval, Mix};

/// The operations a second that each configuration serves of a mix.
pub type Rates<'r> = dyn Fn(Mix) -> Vec<f64> + 'r;

/// What an interval weighs; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// As much as any other one: what could be served in it counts (SOPHIA, Eqs. 5–8).
    Capacity,
    /// As much as clients ask for in it.
    Demand,
}

/// The least weight of an interval in a plan, as a share of the busiest one's: among quiet ones the earlier is the better one
/// to change in.
const WEIGHT_MIN: f64 = 0.01;
/// Factor by which a rate above the forecast decays from one interval to the next.
const EXCESS_DECAY: f64 = 0.7;
/// A rate that differs from the expected one by so much of the plan's highest calls for a new plan.
const RATE_DEPARTS: f64 = 0.5;

/// What a planner decides by.
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
    /// A plan has to gain so much, as a share of what is served without it: what is less is within the noise of
    /// measurements, and not worth a change.
    pub gain_min: f64,
    /// The most changes of a plan: M. Without it as many as there is time for.
    pub changes_max: Option<usize>,
    /// What an interval weighs. By demand nothing is planned with a forecast that tells no rates.
    pub weight: Weight,
    /// Configurations that may be changed to, and the present one: with the best of these the others are compared.
    pub allowed: Vec<bool>,
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The interval that it begins with, counted from the planner's first one.
    pub made: usize,
    /// True if a departure from the plan before called for it.
    pub is_departure: bool,
    /// The mixes that there may be in its intervals.
    pub expected: Vec<Chances>,
    /// The operations a second that clients will ask for in them, where they weigh by demand.
    pub asked_s: Option<Vec<f64>>,
    /// What each configuration would serve of them, as they weigh.
    pub outlook: Outlook,
    /// The best changes, by the plan's own intervals.
    pub best: Schedule,
    /// The operations without any change.
    pub stays: f64,
    /// False if the best changes gain too little: then nothing is changed.
    pub is_followed: bool,
}

impl Plan {
    /// The gain of the best changes, as a share of what is served without any.
    #[must_use]
    pub fn gain(&self) -> f64 {
        (self.best.operations - self.stays) / self.stays.max(f64::MIN_POSITIVE)
    }

    /// The change that begins with an interval, counted from the planner's first one.
    fn due(&self, now: usize) -> Option<Change> {
        let at = |change: &&Change| self.made + change.interval == now;
        self.best.changes.iter().find(at).copied().filter(|_| self.is_followed)
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Planner {
    configuration: usize,
    /// Intervals that were observed.
    now: usize,
    plan: Option<Plan>,
    /// True if clients asked for another mix than was expected.
    is_off: bool,
    /// True if they asked for much more or much less than was expected.
    is_rate_off: bool,
    /// The rate that was seen last.
    last_rate_s: Option<f64>,
}

impl Planner {
    /// A planner of a cluster that has this configuration.
    #[must_use]
    pub fn new(configuration: usize) -> Self {
        Self {
            configuration,
            now: 0,
            plan: None,
            is_off: false,
            is_rate_off: false,
            last_rate_s: None,
        }
    }

    /// The configuration that the cluster has.
    #[must_use]
    pub fn configuration(&self) -> usize {
        self.configuration
    }

    /// The plan that is followed.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Plans, if it is time for it. True if there is a new plan.
    pub fn plan_anew(
        &mut self,
        forecast: &dyn Forecast,
        rates: &Rates<'_>,
        setting: &Setting,
    ) -> bool {
        let now = self.now;
        let is_over = self.plan.as_ref().is_none_or(|plan| {
            now >= plan.made + setting.look_ahead.max(1) || self.has_missed_a_change(plan)
        });
        let is_off = self.is_off || self.is_rate_off;
        let calls = |plan: &Plan| is_off && now >= plan.made + setting.replan_min.max(1);
        if !is_over && !self.plan.as_ref().is_some_and(calls) {
            return false;
        }
        self.plan = self.made(forecast, rates, setting, !is_over);
        (self.is_off, self.is_rate_off) = (false, false);
        self.plan.is_some()
    }

    /// The most that clients are expected to ask for from now on until the plan's next change, as a share of what the present
    /// configuration serves of it. None without a plan, and where intervals do not weigh by demand.
    #[must_use]
    pub fn busy_peak(&self, rates: &Rates<'_>) -> Option<f64> {
        let plan = self.plan.as_ref()?;
        let asked_s = plan.asked_s.as_ref()?;
        let from = self.now - plan.made;
        let next = plan.best.changes.iter().map(|change| change.interval).find(|at| *at > from);
        let until = next.unwrap_or(asked_s.len());
        let shares =
            plan.expected.iter().zip(asked_s).take(until).skip(from).map(|(chances, asked_s)| {
                asked_s / expected_rates(chances, rates)[self.configuration].max(f64::MIN_POSITIVE)
            });
        shares.reduce(f64::max)
    }

    /// True if the plan counts with another configuration by now: a change was due, and was not made.
    fn has_missed_a_change(&self, plan: &Plan) -> bool {
        let past = |change: &&Change| plan.made + change.interval < self.now;
        let last = plan.best.changes.iter().rev().find(past).filter(|_| plan.is_followed);
        last.is_some_and(|change| change.to != self.configuration)
    }

    /// The configuration to change to before the next interval. Where intervals weigh by demand, none while clients ask for
    /// something else, or for much more or less, than was expected: what was to be a quiet time may be none.
    #[must_use]
    pub fn due(&self) -> Option<usize> {
        let is_off = self.is_off || self.is_rate_off;
        let plan = self.plan.as_ref().filter(|plan| plan.asked_s.is_none() || !is_off);
        let due = plan.and_then(|plan| plan.due(self.now));
        due.map(|change| change.to).filter(|to| *to != self.configuration)
    }

    /// The cluster has, or gets from the next interval on, another configuration.
    pub fn changed(&mut self, to: usize) {
        self.configuration = to;
    }

    /// Throws the plan away: something happened that it did not count with.
    pub fn forget(&mut self) {
        self.plan = None;
    }

    /// Learns what was seen in the next interval.
    pub fn observe(&mut self, seen: &Interval, setting: &Setting) {
        let expected = self.plan.as_ref().and_then(|plan| plan.expected.get(self.now - plan.made));
        let expected = expected.and_then(|chances| Mix::mean(chances.iter().copied()));
        if let (Some(expected), Some(mix)) = (expected, seen.mix) {
            self.is_off = expected.distance(mix) > setting.departs;
        }
        let asked_s = self.plan.as_ref().and_then(|plan| {
            let asked_s = plan.asked_s.as_ref()?;
            Some((*asked_s.get(self.now - plan.made)?, asked_s.iter().copied().fold(0.0, f64::max)))
        });
        if let (Some((expected, most)), Some(rate_s)) = (asked_s, seen.rate_s) {
            self.is_rate_off = (rate_s - expected).abs() > RATE_DEPARTS * most;
        }
        self.last_rate_s = seen.rate_s.or(self.last_rate_s);
        self.now += 1;
    }

    /// The forecast rates, raised by what the last rate exceeds them by; that excess decays.
    fn above(&self, mut asked_s: Vec<f64>) -> Vec<f64> {
        let usual = asked_s.first().copied().unwrap_or(0.0);
        let mut more = (self.last_rate_s.unwrap_or(0.0) - usual).max(0.0);
        for asked in &mut asked_s {
            *asked += more;
            more *= EXCESS_DECAY;
        }
        asked_s
    }

    /// A plan from the next interval on; none while too little was seen.
    fn made(
        &self,
        forecast: &dyn Forecast,
        rates: &Rates<'_>,
        setting: &Setting,
        is_departure: bool,
    ) -> Option<Plan> {
        let intervals = setting.look_ahead.max(1);
        let expected = forecast.ahead(intervals)?;
        let asked_s = match setting.weight {
            Weight::Capacity => None,
            Weight::Demand => Some(self.above(forecast.rates_ahead(intervals)?)),
        };
        let most = asked_s.iter().flatten().copied().fold(0.0, f64::max);
        let row = |(interval, chances): (usize, &Chances)| match &asked_s {
            None => expected_rates(chances, rates),
            Some(asked_s) => {
                let asked_s = asked_s[interval].max(WEIGHT_MIN * most);
                expected_rates(chances, &|mix| served(asked_s, &rates(mix), setting))
            }
        };
        let rates_s = expected.iter().enumerate().map(row).collect();
        let outlook = outlook(rates_s, setting, self.configuration);
        let (best, stays) = (outlook.best(), outlook.served(&[]).operations);
        let is_followed = best.operations - stays >= setting.gain_min * stays;
        let made = self.now;
        Some(Plan { made, is_departure, expected, asked_s, outlook, best, stays, is_followed })
    }
}

/// What each configuration serves of so many operations a second that are asked for, as an interval of them weighs.
pub(super) fn served(asked_s: f64, rates: &[f64], setting: &Setting) -> Vec<f64> {
    let allowed = rates.iter().zip(&setting.allowed).filter(|(_, is_allowed)| **is_allowed);
    let best = allowed.map(|(rate, _)| *rate).fold(0.0, f64::max);
    if best <= 0.0 {
        return vec![0.0; rates.len()];
    }
    let busy = asked_s / best;
    rates.iter().map(|rate| busy * rate / best).collect()
}

pub(super) fn outlook(rates_s: Vec<Vec<f64>>, setting: &Setting, start: usize) -> Outlook {
    let (interval_s, rolls) = (setting.interval_s, setting.rolls.clone());
    Outlook { rates_s, interval_s, rolls, start, changes_max: setting.changes_max }
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

//! A tuner that goes with the time: it learns from each interval, plans, says which change is due, and plans anew.
//!
//! A plan is made for a look-ahead. It is made anew at its end, and before when clients ask for something else than was
//! expected; that as often as a limit allows, so that an unpredictable workload does not lead to one plan after
//! the other. While a roll is under way nothing is planned.
//!
//! **What an interval counts by** ([`Count`]). The paper counts what could be served, each second as much as any other one.
//! Clients ask for more at one time than at another: counted by what they ask for, a roll goes into a quiet time, and a
//! configuration that is better by night alone, when few ask, is worth less. An operation that is asked for counts by
//! what the configuration serves as a share of what the best one does, so that a cluster that is not busy is decided
//! for by the same rule as one that is.
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

/// What an interval counts by; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// What could be served in it (SOPHIA, Eqs. 5–8).
    Capacity,
    /// What clients ask for in it.
    Demand,
}

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
    /// What an interval counts by. By demand nothing is planned with a forecast that tells no rates.
    pub count: Count,
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
    /// The operations a second that clients will ask for in them, where they count by demand.
    pub asked_s: Option<Vec<f64>>,
    /// What each configuration would serve of them, as intervals count.
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
        (self.best.operations - self.stays) / self.stays.max(1.0)
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
    is_off: bool,
}

impl Planner {
    /// A planner of a cluster that has this configuration.
    #[must_use]
    pub fn new(configuration: usize) -> Self {
        Self { configuration, now: 0, plan: None, is_off: false }
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
        let is_over =
            self.plan.as_ref().is_none_or(|plan| now >= plan.made + setting.look_ahead.max(1));
        let calls = |plan: &Plan| self.is_off && now >= plan.made + setting.replan_min.max(1);
        if !is_over && !self.plan.as_ref().is_some_and(calls) {
            return false;
        }
        self.plan = self.made(forecast, rates, setting, !is_over);
        self.plan.is_some()
    }

    /// The configuration to change to before the next interval.
    #[must_use]
    pub fn due(&self) -> Option<usize> {
        let due = self.plan.as_ref().and_then(|plan| plan.due(self.now));
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
        self.now += 1;
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
        let asked_s = match setting.count {
            Count::Capacity => None,
            Count::Demand => Some(forecast.rates_ahead(intervals)?),
        };
        let row = |(interval, chances): (usize, &Chances)| match &asked_s {
            None => expected_rates(chances, rates),
            Some(asked_s) => expected_rates(chances, &|mix| served(asked_s[interval], &rates(mix))),
        };
        let rates_s = expected.iter().enumerate().map(row).collect();
        let outlook = outlook(rates_s, setting, self.configuration);
        let (best, stays) = (outlook.best(), outlook.served(&[]).operations);
        let is_followed = best.operations - stays >= setting.gain_min * stays;
        let made = self.now;
        Some(Plan { made, is_departure, expected, asked_s, outlook, best, stays, is_followed })
    }
}

/// What counts as served, by each configuration, of so many operations a second that are asked for, where they serve so
/// many at most.
pub(super) fn served(asked_s: f64, rates: &[f64]) -> Vec<f64> {
    let most = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    rates.iter().map(|rate| asked_s * rate / most).collect()
}

pub(super) fn outlook(rates_s: Vec<Vec<f64>>, setting: &Setting, start: usize) -> Outlook {
    let (interval_s, rolls) = (setting.interval_s, setting.rolls.clone());
    Outlook { rates_s, interval_s, rolls, start, changes_max: None }
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

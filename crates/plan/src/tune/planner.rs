//! An online planner of configuration changes: it learns from each interval, makes plans, reports the change that is
//! due, and replans.
//!
//! A plan is made for a look-ahead. It is remade at the end of the look-ahead, and earlier when the workload departs
//! from the expected one; the frequency of these replans is limited, so that an unpredictable workload does not cause
//! one plan after the other. While a roll is in progress, no plan is made.
//!
//! **The weight of an interval** ([`Weight`]). The paper counts the operations that could be served, each second as
//! much as any other one. But clients request more at some times than at others: weighed by demand, a roll is placed in
//! a quiet time, and a configuration that is better only by night, when few requests arrive, is worth less. The weight
//! of an interval is the share of time in which the best configuration would be busy with the requested operations; a
//! configuration's throughput in it is relative to that of the best one. So an hour of scans that keeps a cluster busy
//! weighs more than an hour of lookups that does not, and only ratios of rates matter: measurements may be of smaller
//! nodes than the trace.
//!
//! The same planner runs in a replay of a past trace ([`super::replay`]) and with a live cluster, so the result of a
//! replay is that of the cluster.
//!
//! Invariant: a plan depends only on the intervals before it.

use super::forecast::{Chances, Forecast};
use super::roll::Sliced;
use super::schedule::{Change, Outlook, Schedule};
use super::workload::{Interval, Mix};

/// A function that returns the throughput of each configuration under a mix of operations, in operations per second.
pub type Rates<'r> = dyn Fn(Mix) -> Vec<f64> + 'r;

/// The weight that an interval has in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// All intervals weigh the same: the operations that could be served in an interval count (SOPHIA, Eqs. 5–8).
    Capacity,
    /// The weight of an interval is the share of time in which the best configuration would be busy with the
    /// operations that clients request.
    Demand,
}

/// Minimum weight of an interval in a plan, as a share of the busiest interval's: among quiet intervals, a change goes
/// into the earliest.
const WEIGHT_MIN: f64 = 0.01;
/// Factor by which the excess of the observed rate over the forecast decays from one interval to the next.
const EXCESS_DECAY: f64 = 0.7;
/// Difference between the observed and the expected rate, as a share of the plan's highest rate, above which a replan
/// is due.
const RATE_DEPARTS: f64 = 0.5;

/// The settings of a planner of configuration changes.
#[derive(Clone, Debug)]
pub struct Setting {
    /// T_d: length of an interval, in seconds.
    pub interval_s: f64,
    /// For each configuration, the roll (the change with its capacities) to each other one.
    pub rolls: Vec<Vec<Sliced>>,
    /// Index of the cluster's configuration at the start.
    pub start: usize,
    /// T_L: number of intervals that a plan covers.
    pub look_ahead: usize,
    /// Distance of the observed mix from the expected one above which a replan is due; see [`Mix::distance`].
    pub departure_min: f64,
    /// Minimum number of intervals between a plan and a replan because the workload departed from the expected one.
    pub replan_min: usize,
    /// Minimum gain of a plan, as a share of the operations served without a change; a smaller gain is within the
    /// noise of measurements, and not worth a change.
    pub gain_min: f64,
    /// M: limit on the number of changes in a plan; `None`: as many as time allows.
    pub changes_max: Option<usize>,
    /// The rule by which intervals are weighted. With [`Weight::Demand`], no plan is made if the forecast has no
    /// rates.
    pub weight: Weight,
    /// For each configuration, true if the planner may change to it or it is the present one; the best of these is the
    /// reference for the throughput of the others.
    pub allowed: Vec<bool>,
}

/// A plan of configuration changes over a look-ahead, with the forecast on which it is based.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Index of the plan's first interval, counted from the planner's first one.
    pub made: usize,
    /// True if this plan was made because the workload departed from the one that the previous plan expected.
    pub is_departure: bool,
    /// The possible mixes of operations of each interval of the plan, with their probabilities.
    pub expected: Vec<Chances>,
    /// Expected demand in each interval, in operations per second; `None` unless intervals weigh by demand.
    pub demand_s: Option<Vec<f64>>,
    /// The weighted throughput of each configuration in each interval of the plan, and the rolls between
    /// configurations.
    pub outlook: Outlook,
    /// The changes that serve most operations; their intervals are counted from the plan's first one.
    pub best: Schedule,
    /// Weighted number of operations served without any change.
    pub stays: f64,
    /// False if the gain of the best changes is below the minimum: then no change is made.
    pub is_followed: bool,
}

impl Plan {
    /// Returns the gain of the plan's changes, as a share of the operations served without any change.
    #[must_use]
    pub fn gain(&self) -> f64 {
        (self.best.operations - self.stays) / self.stays.max(f64::MIN_POSITIVE)
    }

    /// Returns the plan's change that begins with interval `now`, counted from the planner's first one; `None` if no
    /// change is due.
    fn due(&self, now: usize) -> Option<Change> {
        let at = |change: &&Change| self.made + change.interval == now;
        self.best.changes.iter().find(at).copied().filter(|_| self.is_followed)
    }
}

/// An online planner of configuration changes for one cluster.
#[derive(Clone, Debug)]
pub struct Planner {
    /// Index of the configuration that the cluster has, or gets from the next interval on.
    configuration: usize,
    /// Number of intervals that the planner has observed.
    now: usize,
    /// The current plan; `None` before the first one.
    plan: Option<Plan>,
    /// True if the last observed mix departed from the expected one.
    has_mix_departed: bool,
    /// True if the last observed rate departed from the expected one.
    has_rate_departed: bool,
    /// The last observed rate, in operations per second; `None` before the first.
    last_rate_s: Option<f64>,
}

impl Planner {
    /// Creates a planner for a cluster that has the configuration with this index.
    #[must_use]
    pub fn new(configuration: usize) -> Self {
        Self {
            configuration,
            now: 0,
            plan: None,
            has_mix_departed: false,
            has_rate_departed: false,
            last_rate_s: None,
        }
    }

    /// Returns the index of the cluster's configuration.
    #[must_use]
    pub fn configuration(&self) -> usize {
        self.configuration
    }

    /// Returns the current plan; `None` if there is none.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Makes a new plan from the next interval on, if one is due. Returns true if there is a new plan.
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
        let has_departed = self.has_mix_departed || self.has_rate_departed;
        let calls = |plan: &Plan| has_departed && now >= plan.made + setting.replan_min.max(1);
        if !is_over && !self.plan.as_ref().is_some_and(calls) {
            return false;
        }
        self.plan = self.made(forecast, rates, setting, !is_over);
        (self.has_mix_departed, self.has_rate_departed) = (false, false);
        self.plan.is_some()
    }

    /// Returns the peak of the expected demand until the plan's next change, as a share of the present configuration's
    /// throughput. Returns `None` without a plan, and unless intervals weigh by demand.
    #[must_use]
    pub fn busy_peak(&self, rates: &Rates<'_>) -> Option<f64> {
        let plan = self.plan.as_ref()?;
        let demand_s = plan.demand_s.as_ref()?;
        let from = self.now - plan.made;
        let next = plan.best.changes.iter().map(|change| change.interval).find(|at| *at > from);
        let until = next.unwrap_or(demand_s.len());
        let shares =
            plan.expected.iter().zip(demand_s).take(until).skip(from).map(|(chances, demand_s)| {
                demand_s / expected_rates(chances, rates)[self.configuration].max(f64::MIN_POSITIVE)
            });
        shares.reduce(f64::max)
    }

    /// Returns true if the plan assumes another configuration by now, because a change was due but was not made.
    fn has_missed_a_change(&self, plan: &Plan) -> bool {
        let past = |change: &&Change| plan.made + change.interval < self.now;
        let last = plan.best.changes.iter().rev().find(past).filter(|_| plan.is_followed);
        last.is_some_and(|change| change.to != self.configuration)
    }

    /// Returns the index of the configuration to change to before the next interval; `None` if no change is due. If
    /// intervals weigh by demand, no change is due while the workload departs from the expected one: the time may not
    /// be quiet.
    #[must_use]
    pub fn due(&self) -> Option<usize> {
        let has_departed = self.has_mix_departed || self.has_rate_departed;
        let plan = self.plan.as_ref().filter(|plan| plan.demand_s.is_none() || !has_departed);
        let due = plan.and_then(|plan| plan.due(self.now));
        due.map(|change| change.to).filter(|to| *to != self.configuration)
    }

    /// Records that the cluster has the configuration with index `to`, or gets it from the next interval on.
    pub fn changed(&mut self, to: usize) {
        self.configuration = to;
    }

    /// Discards the current plan, after an event that the plan did not include.
    pub fn forget(&mut self) {
        self.plan = None;
    }

    /// Learns from the next interval, and records whether its workload departs from the one that the plan expects.
    pub fn observe(&mut self, seen: &Interval, setting: &Setting) {
        let expected = self.plan.as_ref().and_then(|plan| plan.expected.get(self.now - plan.made));
        let expected = expected.and_then(|chances| Mix::mean(chances.iter().copied()));
        if let (Some(expected), Some(mix)) = (expected, seen.mix) {
            self.has_mix_departed = expected.distance(mix) > setting.departure_min;
        }
        let demand_s = self.plan.as_ref().and_then(|plan| {
            let demand_s = plan.demand_s.as_ref()?;
            Some((
                *demand_s.get(self.now - plan.made)?,
                demand_s.iter().copied().fold(0.0, f64::max),
            ))
        });
        if let (Some((expected, most)), Some(rate_s)) = (demand_s, seen.rate_s) {
            self.has_rate_departed = (rate_s - expected).abs() > RATE_DEPARTS * most;
        }
        self.last_rate_s = seen.rate_s.or(self.last_rate_s);
        self.now += 1;
    }

    /// Raises the forecast rates `demand_s` by the excess of the last observed rate over the forecast; the excess
    /// decays with each interval.
    fn above(&self, mut demand_s: Vec<f64>) -> Vec<f64> {
        let usual = demand_s.first().copied().unwrap_or(0.0);
        let mut more = (self.last_rate_s.unwrap_or(0.0) - usual).max(0.0);
        for asked in &mut demand_s {
            *asked += more;
            more *= EXCESS_DECAY;
        }
        demand_s
    }

    /// Makes a plan from the next interval on; `None` if the forecast has too little data.
    fn made(
        &self,
        forecast: &dyn Forecast,
        rates: &Rates<'_>,
        setting: &Setting,
        is_departure: bool,
    ) -> Option<Plan> {
        let intervals = setting.look_ahead.max(1);
        let expected = forecast.ahead(intervals)?;
        let demand_s = match setting.weight {
            Weight::Capacity => None,
            Weight::Demand => Some(self.above(forecast.rates_ahead(intervals)?)),
        };
        let most = demand_s.iter().flatten().copied().fold(0.0, f64::max);
        let row = |(interval, chances): (usize, &Chances)| match &demand_s {
            None => expected_rates(chances, rates),
            Some(demand_s) => {
                let demand_s = demand_s[interval].max(WEIGHT_MIN * most);
                expected_rates(chances, &|mix| served(demand_s, &rates(mix), setting))
            }
        };
        let rates_s = expected.iter().enumerate().map(row).collect();
        let outlook = outlook(rates_s, setting, self.configuration);
        let (best, stays) = (outlook.best(), outlook.served(&[]).operations);
        let is_followed = best.operations - stays >= setting.gain_min * stays;
        let made = self.now;
        Some(Plan { made, is_departure, expected, demand_s, outlook, best, stays, is_followed })
    }
}

/// Returns the weighted throughput of each configuration in an interval with a demand of `demand_s` operations per
/// second, where `rates` are the unweighted throughputs.
pub(super) fn served(demand_s: f64, rates: &[f64], setting: &Setting) -> Vec<f64> {
    let allowed = rates.iter().zip(&setting.allowed).filter(|(_, is_allowed)| **is_allowed);
    let best = allowed.map(|(rate, _)| *rate).fold(0.0, f64::max);
    if best <= 0.0 {
        return vec![0.0; rates.len()];
    }
    let busy = demand_s / best;
    rates.iter().map(|rate| busy * rate / best).collect()
}

/// Creates an outlook of these throughputs, with the rolls of the settings and the configuration at the start.
pub(super) fn outlook(rates_s: Vec<Vec<f64>>, setting: &Setting, start: usize) -> Outlook {
    let (interval_s, rolls) = (setting.interval_s, setting.rolls.clone());
    Outlook { rates_s, interval_s, rolls, start, changes_max: setting.changes_max }
}

/// Returns the expected throughput of each configuration, in operations per second: the mean over the possible mixes,
/// not the throughput under the mean mix.
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

//! The decision loop, without I/O: samples, times and the store's design are inputs, and plans to execute are outputs.
//!
//! A store, the simulation of its sites and a benchmark's simulation use the same loop: they report the samples and
//! the outcomes of changes, and execute the plans.
//!
//! Uncertainty raises the required gain, and stops nothing: where the load of sites is predicted inaccurately, or
//! latencies vary much, a plan has to save more; where operators took other times than predicted, their cost counts
//! more.

use std::collections::BTreeMap;

use rand::Rng;

use super::calibration::Calibration;
use super::considered::{Considered, Hold};
use super::cost::CostModel;
use super::decide::{Decided, emulated};
use super::guardrails::{Guardrails, Judgement, LatencyBaseline, Limits};
use super::layout::{Key, Layout, Operator, Site};
use super::parameters::Parameters;
use super::price::{CPU_WEIGHT, Situation};
use super::regimes::Latency;
use super::regimes::{Expected, OtherRegime, Regimes, Settings};
use super::strategy::Strategy;
use super::workload::Sample;

/// Least saving of a plan, in standard errors of the measured mean latency: a change whose effect could not be
/// distinguished from chance is not made.
const ERRORS_MIN: f64 = 2.0;
/// Largest gain that [`ERRORS_MIN`] requires of a plan, as a share of the mean latency, however much the latency
/// varies.
const GAIN_SEEN_MAX: f64 = 0.05;
/// Number of keys and ranges of all samples above which a decision uses only a part of the samples, because each key
/// costs it time.
const KEYS_MAX: usize = 50_000;
/// Largest factor by which uncertain predictions raise the cost of a plan's operators.
const COST_FACTOR_MAX: f64 = 10.0;

/// A function of a design and an operator that returns why the operator cannot be executed on that design now; `None`
/// if it can.
pub type Forbids<'a, K> = dyn Fn(&Layout<K>, &Operator<K>) -> Option<String> + 'a;

/// The decision loop of an adaptive store: the learned workload and costs, and the guardrails against thrashing.
#[derive(Clone, Debug)]
pub struct Controller<K> {
    /// The regimes of the workload: the workloads that alternate, with the samples and latencies of each.
    pub regimes: Regimes<K>,
    /// The learned costs of transactions and operators.
    pub cost: CostModel,
    /// The guardrails that hold changes of the design back, and that judge executed ones by their effect on the
    /// latency.
    pub guardrails: Guardrails<K>,
    /// What share of the predicted savings came true, by which those of later plans are discounted.
    pub calibration: Calibration,
    /// Time over which the last mean latency of a regime is measured, in ms of that regime's own time.
    measured_ms: u64,
}

/// The workload, present and expected, on which one decision is based.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook<K> {
    /// Number of the regime that the workload is in; `None` without a workload.
    pub regime: Option<u64>,
    /// Transactions by which designs are priced, each with its weight: sampled ones of the present regime, and
    /// generated ones.
    pub samples: Vec<(f64, Sample<K>)>,
    /// Transactions per second of the present regime, at all sites together.
    pub rate_s: f64,
    /// Mean number of concurrent transactions of the present regime, at all sites together.
    pub population: f64,
    /// Time from now on for which known regimes are expected to last, in seconds; infinite if no regime has ended yet.
    pub lasts_s: f64,
    /// Regimes other than the present one that are expected to return.
    pub others: Vec<OtherRegime<K>>,
}

impl<K> Default for Outlook<K> {
    /// Returns an outlook without a workload.
    fn default() -> Self {
        Self {
            regime: None,
            samples: Vec::new(),
            rate_s: 0.0,
            population: 0.0,
            lasts_s: 0.0,
            others: Vec::new(),
        }
    }
}

impl<K> Outlook<K> {
    /// Returns the input of a decision: this workload with the cost model `cost`, and with the log lag of each site in
    /// entries.
    #[must_use]
    pub fn situation<'s>(
        &'s self,
        cost: &'s CostModel,
        lag_entries: &'s BTreeMap<Site, f64>,
    ) -> Situation<'s, K> {
        Situation {
            samples: &self.samples,
            rate_s: self.rate_s,
            population: self.population,
            cost,
            lag_entries,
            cpu_weight: CPU_WEIGHT,
            expected: Expected { lasts_s: self.lasts_s, others: &self.others },
        }
    }
}

impl<K: Key> Controller<K> {
    /// Creates a decision loop that has learned nothing.
    #[must_use]
    pub fn new(settings: Settings, limits: Limits) -> Self {
        Self {
            regimes: Regimes::new(settings),
            cost: CostModel::default(),
            guardrails: Guardrails::new(limits),
            calibration: Calibration::default(),
            measured_ms: limits.measured_ms,
        }
    }

    /// Replaces the limits of the guardrails, from now on.
    pub fn limit(&mut self, limits: Limits) {
        self.measured_ms = limits.measured_ms;
        self.guardrails.limit(limits);
    }

    /// Returns the workload on which decisions are based now. `dice` draws the generated transactions that are added
    /// to the samples.
    #[must_use]
    pub fn outlook(&self, layout: &Layout<K>, dice: &mut impl Rng) -> Outlook<K> {
        let keys = |sample: &Sample<K>| sample.reads.len() + sample.writes.len();
        let all: usize = self.regimes.samples().map(keys).sum();
        let one_of = all.div_ceil(KEYS_MAX).max(1);
        // Samples are in no order, so that each part of them is as good.
        let samples: Vec<Sample<K>> = self.regimes.samples().step_by(one_of).cloned().collect();
        let (lasts_s, others) = self.regimes.expected();
        Outlook {
            regime: self.regimes.id(),
            samples: emulated(layout, samples, self.regimes.generated(), dice),
            rate_s: self.regimes.rate_s(),
            population: self.regimes.population(),
            lasts_s,
            others,
        }
    }

    /// Returns the parameters with the additional gain and cost that uncertainty requires, and with the share of predicted
    /// savings that counts. `operators_error` is the mean error of the predicted times of operators, as a share of the
    /// measured times; `None` if it is unknown.
    #[must_use]
    pub fn widened(
        &self,
        parameters: Parameters,
        operators_error: Option<f64>,
        now_ms: u64,
    ) -> Parameters {
        let share = self.latency().map(|latency| latency.error_us / latency.mean_us.max(1e-9));
        let seen_min = share.map_or(0.0, |share| (ERRORS_MIN * share).min(GAIN_SEEN_MAX));
        let gain_uncertainty = (seen_min - parameters.gain_min).max(0.0) + self.cost.uncertainty();
        let cost_factor = (1.0 + operators_error.unwrap_or(0.0)).min(COST_FACTOR_MAX);
        let realized = self.calibration.shares(now_ms);
        Parameters { gain_uncertainty, cost_factor, realized, ..parameters }
    }

    /// Decides which plans save more than they cost. Returns `None` while nothing can be decided: without samples, or
    /// while the strategy distrusts what was learned. `forbids` returns why an operator cannot be executed at the time
    /// `now_ms`.
    pub fn decide(
        &self,
        strategy: &mut dyn Strategy<K>,
        layout: &Layout<K>,
        situation: &Situation<'_, K>,
        parameters: &Parameters,
        (forbids, now_ms): (&Forbids<'_, K>, u64),
        dice: &mut dyn Rng,
    ) -> Option<Decided<K>> {
        let held = |layout: &Layout<K>, operator: &Operator<K>| {
            let forbidden = forbids(layout, operator).map(Hold::Forbidden);
            forbidden.or_else(|| self.guardrails.holds(layout, operator, now_ms))
        };
        let may_decide = !situation.samples.is_empty() && strategy.distrust(situation).is_none();
        may_decide.then(|| strategy.decide(layout, situation, parameters, &held, dice))
    }

    /// Records the `plans` that one decision found to save more than they cost. Returns for each plan whether enough
    /// consecutive decisions of the present regime found that, so that the plan may be executed.
    pub fn sustained(
        &mut self,
        outlook: &Outlook<K>,
        layout: &Layout<K>,
        plans: &[&[Operator<K>]],
    ) -> Vec<bool> {
        self.guardrails.sustained(outlook.regime.unwrap_or(0), layout, plans)
    }

    /// Records the operators of a plan that was executed on the design `layout`, and begins to measure their effect on
    /// the latency. `predicted_us` has the predicted mean latencies of a transaction before and after the plan, in µs.
    pub fn done(
        &mut self,
        outlook: &Outlook<K>,
        layout: &Layout<K>,
        operators: Vec<Operator<K>>,
        now_ms: u64,
        predicted_us: (f64, f64),
    ) {
        let regime = outlook.regime.unwrap_or(0);
        let unmeasured = Latency { mean_us: predicted_us.0, error_us: 0.0 };
        let latency = self.regimes.latencies().last(regime, self.measured_ms);
        let others = (&outlook.others[..], self.regimes.latencies(), self.measured_ms);
        let before =
            LatencyBaseline::of(regime, latency.unwrap_or(unmeasured), predicted_us, others);
        self.guardrails.done(layout, operators, now_ms, before);
    }

    /// Learns from the time that the operators of an executed plan took.
    pub fn timed(&mut self, plan: &Considered<K>, now_ms: u64) {
        if let Some(took_us) = plan.operators_took_us {
            self.calibration.add_time(&plan.operators, plan.operators_us, took_us, now_ms);
        }
    }

    /// Judges the executed changes whose effect was measured for long enough, and returns which are kept and which
    /// have to be undone.
    pub fn judge(&mut self, now_ms: u64) -> Vec<Judgement<K>> {
        let judged = self.guardrails.judge(now_ms, self.regimes.latencies());
        for one in &judged {
            let (Judgement::Keep(watched) | Judgement::Undo(watched)) = one;
            self.calibration.add(watched, now_ms);
        }
        judged
    }

    /// Returns the mean latency of transactions over the last seconds of the present regime; `None` if it is unknown.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        self.regimes.latencies().last(self.regimes.id()?, self.measured_ms)
    }
}

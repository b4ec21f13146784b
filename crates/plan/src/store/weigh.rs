//! The saving and the cost of a plan, and whether the plan pays: whether its saving exceeds its cost and the least
//! gain (MorphoSys, §5.3).
//!
//! A plan has to pay by the present workload. Where other workloads are expected, the costs that the plan causes them
//! must not use up its saving beyond the least gain. A saving counts for the part of the horizon that the workload is
//! expected to last.
//!
//! Invariant: other workloads can only reject a plan. None makes a plan pay that does not pay by the present workload.

use std::cell::OnceCell;

use super::considered::{Considered, Estimate, Hold, Rejected};
use super::layout::{Key, Layout, Operator, Site};
use super::parameters::Parameters;
use super::price::{Price, Situation, plan_cost, price, price_by};
use super::redesign::Redesign;
use super::regimes::{Expected, OtherRegime};
use super::workload::{Accesses, Numbered};

/// Least saving of a redesign, as a share (0..1) of a transaction's cost: it changes everything, by a prediction that is
/// further from what was measured than that of a small plan.
const REDESIGN_GAIN_MIN: f64 = 0.15;
/// Least saving of a redesign that only adds replicas, as a share (0..1) of a transaction's cost: no transaction waits for
/// a master that moves. It is many plans in one of which none saves the least gain, because each serves the reads of one
/// partition.
const REPLICAS_GAIN_MIN: f64 = 0.03;
/// Share (0..1) of transactions that some site can run from which on a redesign is stable. Each other transaction changes
/// the design: with many of them it would soon be another one than the one that was priced.
const STABLE_FROM: f64 = 0.98;

/// The basis on which plans are weighed: a design with its price, and the workload.
pub(super) struct Weighing<'w, K: Key> {
    layout: &'w Layout<K>,
    before: &'w Price,
    situation: &'w Situation<'w, K>,
    parameters: &'w Parameters,
    accesses: &'w Accesses,
    held: &'w dyn Fn(&Operator<K>) -> Option<Hold>,
    /// Accesses and price of each other expected workload on the design, computed when first needed.
    others: OnceCell<Vec<(Accesses, Price)>>,
}

/// Returns the situation in which the expected workload `other` is the present one.
fn situation_of<'o, K>(other: &'o OtherRegime<K>, now: &Situation<'o, K>) -> Situation<'o, K> {
    let (samples, rate_s, population) = (&other.samples[..], other.rate_s, other.population);
    Situation { samples, rate_s, population, expected: Expected::default(), ..*now }
}

impl<'w, K: Key> Weighing<'w, K> {
    pub(super) fn new(
        layout: &'w Layout<K>,
        before: &'w Price,
        situation: &'w Situation<'w, K>,
        parameters: &'w Parameters,
        accesses: &'w Accesses,
        held: &'w dyn Fn(&Operator<K>) -> Option<Hold>,
    ) -> Self {
        let others = OnceCell::new();
        Self { layout, before, situation, parameters, accesses, held, others }
    }

    /// Returns a plan without weighing it: its saving and cost are zero, and its latency and CPU time are those of the
    /// present design.
    pub(super) fn untouched(
        &self,
        trigger: Option<K>,
        site: Site,
        operators: Vec<Operator<K>>,
    ) -> Considered<K> {
        Considered {
            trigger,
            redesign: None,
            site,
            operators,
            latency_us: (self.before.latency_us, self.before.latency_us),
            work_us: (self.before.work_us, self.before.work_us),
            takes_back: None,
            realized: 1.0,
            latency_ratio: Estimate::exact(1.0),
            operators_us: 0.0,
            operators_expected_us: Estimate::exact(0.0),
            operators_took_us: None,
            benefit_us: 0.0,
            cost_us: 0.0,
            rejected: None,
        }
    }

    /// True if a plan that was made for another design can be applied to this one, within the limits of partitions and
    /// replicas.
    pub(super) fn is_possible(&self, operators: &[Operator<K>]) -> bool {
        self.parameters.thresholds.permits(self.layout, operators)
    }

    /// Returns why an operator must not be executed now; `None` if it may be.
    pub(super) fn forbids(&self, operator: &Operator<K>) -> Option<Hold> {
        (self.held)(operator).filter(|hold| matches!(hold, Hold::Forbidden(_)))
    }

    /// Returns a redesign with its saving and cost. It is rejected also if it saves too little for a change of everything,
    /// or if more transactions than before would change the design again.
    pub(super) fn redesigned(
        &self,
        redesign: Redesign,
        site: Site,
        operators: Vec<Operator<K>>,
    ) -> Considered<K> {
        let (mut plan, after) = self.weighed_with_price(None, site, operators);
        plan.redesign = Some(redesign);
        if let Some(after) = after.filter(|_| plan.rejected.is_none()) {
            let saved_us = plan.realized * (self.before.total_us - after.total_us);
            let only_adds =
                plan.operators.iter().all(|one| matches!(one, Operator::AddReplica(..)));
            let gain_min = if only_adds { REPLICAS_GAIN_MIN } else { REDESIGN_GAIN_MIN };
            plan.rejected = if after.single_site < self.before.single_site.min(STABLE_FROM) {
                Some(Rejected::Unstable)
            } else if saved_us < gain_min * self.before.total_us {
                Some(Rejected::TooLittle)
            } else {
                None
            };
        }
        plan
    }

    /// Returns a plan with its saving and cost, and with the reason for its rejection, if it is rejected.
    pub(super) fn weighed(
        &self,
        trigger: Option<K>,
        site: Site,
        operators: Vec<Operator<K>>,
    ) -> Considered<K> {
        self.weighed_with_price(trigger, site, operators).0
    }

    /// Returns a plan as [`Self::weighed`] does, and the price of its design, unless the plan is held back.
    fn weighed_with_price(
        &self,
        trigger: Option<K>,
        site: Site,
        operators: Vec<Operator<K>>,
    ) -> (Considered<K>, Option<Price>) {
        let Self { layout, before, situation, parameters, accesses, held, .. } = self;
        let mut plan = self.untouched(trigger, site, operators);
        let mut times = 1.0_f64;
        for operator in &plan.operators {
            match held(operator) {
                Some(Hold::Forbidden(why)) => {
                    plan.rejected = Some(Rejected::OnHold(why));
                    return (plan, None);
                }
                Some(Hold::Reversal(more, why)) if more >= times => {
                    (times, plan.takes_back) = (more, Some(why));
                }
                Some(Hold::Reversal(..)) | None => {}
            }
        }
        let costed = plan_cost(layout, &plan.operators, situation, before, &accesses.statistics);
        let (after, cost_us) = costed.expect("a plan can be applied to its design");
        let after_price = priced(&after, &plan.operators, accesses, situation);
        plan.latency_us.1 = after_price.latency_us;
        plan.work_us.1 = after_price.work_us;
        plan.cost_us = cost_us * parameters.cost_factor;
        plan.realized = parameters.realized.of(&plan.operators);
        let predicted = after_price.latency_us / before.latency_us.max(f64::MIN_POSITIVE);
        plan.latency_ratio = parameters.realized.expected_ratio(&plan.operators, predicted);
        plan.operators_us = cost_us;
        plan.operators_expected_us = parameters.realized.expected_time(&plan.operators, cost_us);
        let saved_us = plan.realized * (before.total_us - after_price.total_us);
        let is_uncertain = plan.operators.iter().any(|one| !matches!(one, Operator::Split(_)));
        let least_gain = parameters.least_gain(layout.sites().len(), is_uncertain);
        let least_us = times * least_gain * before.total_us;
        let lasts = (situation.expected.lasts_s / parameters.horizon_s).min(1.0);
        plan.benefit_us = saved_us * situation.rate_s * parameters.horizon_s * lasts;
        let grows = |site: &Site| after.bytes_at(*site) > layout.bytes_at(*site);
        let full = parameters.memory_max.and_then(|max| {
            layout.sites().iter().find(|site| grows(site) && after.bytes_at(*site) > max)
        });
        plan.rejected = if let Some(site) = full {
            Some(Rejected::Memory(site))
        } else if plan.net_us(parameters.lambda) <= 0.0 {
            Some(Rejected::DoesNotPay)
        } else if saved_us * lasts < least_us {
            let more = plan.takes_back.as_ref().filter(|_| times > 1.0).map(|why| {
                Rejected::OnHold(format!(
                    "{why}: it would have to save {times:.0} times the least gain"
                ))
            });
            Some(more.unwrap_or(Rejected::TooLittle))
        } else if !situation.expected.others.is_empty() {
            // The mean saving over all expected workloads, in µs per transaction of the present one.
            let (others_us, weight) = self.saved_by_others_us(&after, &plan.operators);
            let all_us = saved_us + plan.realized * others_us;
            let mean_us = all_us / (1.0 + weight);
            plan.benefit_us = mean_us * situation.rate_s * parameters.horizon_s * lasts;
            if plan.net_us(parameters.lambda) <= 0.0 || all_us * lasts < least_us {
                Some(Rejected::Harmful)
            } else {
                None
            }
        } else {
            None
        };
        (plan, Some(after_price))
    }

    /// Returns the weighted saving of the other expected workloads on the design `after`, in µs per transaction of the
    /// present one, and the sum of their weights.
    fn saved_by_others_us(&self, after: &Layout<K>, operators: &[Operator<K>]) -> (f64, f64) {
        let (situation, layout) = (self.situation, self.layout);
        let others = situation.expected.others;
        let before = self.others.get_or_init(|| {
            let of = |other: &OtherRegime<K>| {
                let situation = situation_of(other, situation);
                let accesses = Accesses::counted(&Numbered::new(layout), situation.samples);
                let price = price_by(&accesses, layout, &situation);
                (accesses, price)
            };
            others.iter().map(of).collect()
        });
        let (mut saved_us, mut weight) = (0.0, 0.0);
        for (other, (accesses, before)) in others.iter().zip(before) {
            let price = priced(after, operators, accesses, &situation_of(other, situation));
            let share = other.weight * other.rate_s / situation.rate_s.max(1.0);
            saved_us += share * (before.total_us - price.total_us);
            weight += other.weight;
        }
        (saved_us, weight)
    }
}

/// Returns the price of the design `after`. The `accesses` were counted on the design before the operators; they are
/// counted again if an operator moves a partition bound.
fn priced<K: Key>(
    after: &Layout<K>,
    operators: &[Operator<K>],
    accesses: &Accesses,
    situation: &Situation<'_, K>,
) -> Price {
    let moves_boundary = |one: &Operator<K>| matches!(one, Operator::Split(_) | Operator::Merge(_));
    if operators.iter().any(moves_boundary) {
        price(after, situation)
    } else {
        price_by(accesses, after, situation)
    }
}

/// Weighs one plan that can be applied to the design `layout`: returns its saving and cost, and the reason why it is
/// rejected, if it is. Guardrails are ignored: no operator is held back.
#[must_use]
pub fn weigh<K: Key>(
    layout: &Layout<K>,
    before: &Price,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    site: Site,
    operators: &[Operator<K>],
) -> Considered<K> {
    let accesses = &Accesses::of(&Numbered::new(layout), situation.samples);
    let held = &|_: &Operator<K>| None;
    let by = Weighing::new(layout, before, situation, parameters, accesses, held);
    by.weighed(None, site, operators.to_vec())
}

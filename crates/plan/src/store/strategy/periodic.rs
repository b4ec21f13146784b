//! Strategies that change the design in one of several decisions and compare no prices: ADR and Clay.

use rand::Rng;

use super::{Strategy, adr, clay};
use crate::store::considered::{Considered, Estimate, Hold, Rejected};
use crate::store::decide::{Decided, HoldCheck};
use crate::store::layout::{Key, Layout, Operator, Site};
use crate::store::parameters::Parameters;
use crate::store::price::{Price, Situation};
use crate::store::workload::Sample;

/// Plans for a design and the samples of its workload, each with the site that it is for.
type Plans<K> = fn(&Layout<K>, &[(f64, Sample<K>)]) -> Vec<(Site, Vec<Operator<K>>)>;

/// A strategy that makes plans in one of several decisions, and executes them without comparing prices.
#[derive(Clone, Copy, Debug)]
pub struct Periodic<K> {
    name: &'static str,
    plans: Plans<K>,
    /// Number of decisions in a period.
    period: u32,
    /// Number of decisions until the next that makes plans.
    left: u32,
}

impl<K: Key> Periodic<K> {
    /// Returns an ADR that adds and removes replicas in one of `period` decisions.
    #[must_use]
    pub fn adr(period: u32) -> Self {
        Self { name: "adr", plans: adr::changes, period, left: period }
    }

    /// Returns a Clay that moves partitions in one of `period` decisions.
    #[must_use]
    pub fn clay(period: u32) -> Self {
        Self { name: "clay", plans: clay::moves, period, left: period }
    }
}

impl<K: Key + Send> Strategy<K> for Periodic<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn distrust(&self, _: &Situation<'_, K>) -> Option<String> {
        None
    }

    fn decide(
        &mut self,
        layout: &Layout<K>,
        situation: &Situation<'_, K>,
        _: &Parameters,
        held: &HoldCheck<'_, K>,
        _: &mut dyn Rng,
    ) -> Decided<K> {
        self.left = self.left.saturating_sub(1);
        let mut plans = Vec::new();
        if self.left == 0 {
            self.left = self.period;
            plans = (self.plans)(layout, situation.samples);
        }
        unpriced(layout, plans, held)
    }
}

/// Returns the decision of a strategy that does not compare prices: each plan, with its site, is chosen unless one of its
/// operators must not be executed now, as `held` returns.
fn unpriced<K: Key>(
    layout: &Layout<K>,
    plans: Vec<(Site, Vec<Operator<K>>)>,
    held: &HoldCheck<'_, K>,
) -> Decided<K> {
    let plan = |(site, operators): (Site, Vec<Operator<K>>)| {
        let why = operators.iter().find_map(|operator| match held(layout, operator) {
            Some(Hold::Forbidden(why)) => Some(why),
            Some(Hold::Reversal(..)) | None => None,
        });
        Considered {
            trigger: operators.first().map(|operator| operator.key().clone()),
            redesign: None,
            site,
            operators,
            latency_us: (0.0, 0.0),
            work_us: (0.0, 0.0),
            takes_back: None,
            realized: 1.0,
            latency_ratio: Estimate::exact(1.0),
            operators_us: 0.0,
            operators_expected_us: Estimate::exact(0.0),
            operators_took_us: None,
            benefit_us: 0.0,
            cost_us: 0.0,
            rejected: why.map(Rejected::OnHold),
        }
    };
    let considered = plans.into_iter().map(plan).collect();
    Decided { considered, before: Price::default(), after: Price::default() }
}

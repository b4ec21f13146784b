//! Strategies that choose a store's design: each gets the same statistics, and returns plans of the same form.
//!
//! The code that executes plans, holds them back, watches and explains them knows a strategy by this trait alone.

use rand::Rng;

use super::decide::{Decided, HoldCheck, Parameters, decide};
use super::layout::{Key, Layout};
use super::price::Situation;

/// A strategy that chooses a store's design.
pub trait Strategy<K: Key>: Send {
    /// Returns the name of the strategy, which is reported with its decisions.
    fn name(&self) -> &'static str;

    /// Returns why the strategy cannot decide yet; `None` if it can.
    fn distrust(&self, situation: &Situation<'_, K>) -> Option<String>;

    /// Decides which plans pay on the present design, for the workload of `situation`. `held` returns why an operator
    /// must not be executed now.
    fn decide(
        &mut self,
        layout: &Layout<K>,
        situation: &Situation<'_, K>,
        parameters: &Parameters,
        held: &HoldCheck<'_, K>,
        dice: &mut dyn Rng,
    ) -> Decided<K>;
}

/// The strategy of MorphoSys (§5): plans that save more time than they take, by learned costs.
///
/// A plan is executed when it has paid in several consecutive decisions. With many partitions and sites each decision
/// considers only a few transactions, so those whose plans paid are considered again in the next decision.
#[derive(Clone, Debug)]
pub struct MorphoSys<K> {
    /// Triggers of the plans that the last decision chose.
    paid: Vec<K>,
}

impl<K> Default for MorphoSys<K> {
    fn default() -> Self {
        Self { paid: Vec::new() }
    }
}

impl<K: Key + Send> Strategy<K> for MorphoSys<K> {
    fn name(&self) -> &'static str {
        "morphosys"
    }

    fn distrust(&self, situation: &Situation<'_, K>) -> Option<String> {
        situation.cost.distrust()
    }

    fn decide(
        &mut self,
        layout: &Layout<K>,
        situation: &Situation<'_, K>,
        parameters: &Parameters,
        held: &HoldCheck<'_, K>,
        dice: &mut dyn Rng,
    ) -> Decided<K> {
        let decided = decide(layout, situation, parameters, held, &self.paid, dice);
        self.paid = decided.chosen().filter_map(|plan| plan.trigger.clone()).collect();
        decided
    }
}

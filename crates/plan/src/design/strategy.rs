//! Strategies that choose a store's design: each sees the same statistics, and answers with the same plans.
//!
//! The code that carries plans out, holds them back, watches and explains them knows a strategy by this trait alone.

use rand::Rng;

use super::decide::{Decided, Held, Parameters, decide};
use super::layout::{Key, Layout};
use super::price::Situation;

/// A strategy.
pub trait Strategy<K: Key>: Send {
    /// Its name, as it is told with its decisions.
    fn name(&self) -> &'static str;

    /// The reason why it can decide nothing yet, if so.
    fn distrust(&self, situation: &Situation<'_, K>) -> Option<String>;

    /// Decides which plans pay, by the design that is and the workload. `held` says why an operator may not be carried
    /// out now, if it may not.
    fn decide(
        &mut self,
        layout: &Layout<K>,
        situation: &Situation<'_, K>,
        parameters: &Parameters,
        held: &Held<'_, K>,
        dice: &mut dyn Rng,
    ) -> Decided<K>;
}

/// Plans that save more time than they take, by learned costs (MorphoSys, §5).
///
/// A plan is carried out when it paid in several decisions in a row. Of many partitions and sites each decision looks
/// at a few alone: so what gave rise to a plan that paid is looked at again in the next one.
#[derive(Clone, Debug)]
pub struct MorphoSys<K> {
    /// The triggers of the plans that were chosen last.
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
        held: &Held<'_, K>,
        dice: &mut dyn Rng,
    ) -> Decided<K> {
        let decided = decide(layout, situation, parameters, held, &self.paid, dice);
        self.paid = decided.chosen().filter_map(|plan| plan.trigger.clone()).collect();
        decided
    }
}

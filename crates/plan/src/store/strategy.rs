//! Strategies that choose a store's design: each gets the same statistics of the workload, and returns plans of the
//! same form.
//!
//! The code that executes plans, holds them back, measures their effect and explains them knows a strategy by this
//! trait alone.

mod adr;
pub mod clay;
pub mod dynamast;
mod periodic;

pub use periodic::Periodic;
use rand::Rng;

use super::decide::{Again, Decided, HoldCheck, decide};
use super::layout::{Key, Layout};
use super::parameters::Parameters;
use super::price::Situation;

/// A strategy that chooses changes of a store's design.
pub trait Strategy<K: Key>: Send {
    /// Returns the name of the strategy, which is reported with its decisions.
    fn name(&self) -> &'static str;

    /// Returns why the strategy cannot decide yet in this situation; `None` if it can.
    fn distrust(&self, situation: &Situation<'_, K>) -> Option<String>;

    /// Decides which plans to execute on the present design `layout`, for the workload of `situation`. `held` returns
    /// why an operator must not be executed now. `dice` is the source of random choices.
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
/// A plan is executed when several consecutive decisions have chosen it. With many partitions and sites each decision
/// considers only a few transactions, and many plans save about as much. So the plans that were chosen are considered
/// again in the next decision, and come first if they still pay.
#[derive(Clone, Debug)]
pub struct MorphoSys<K> {
    /// The plans that the last decision chose.
    paid: Vec<Again<K>>,
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
        self.paid = Again::of(&decided);
        decided
    }
}

//! Markov chains of first and second order over mixes of operations in tenths; they learn online (SOPHIA, §6.1 and
//! §6.2).
//!
//! A chain of second order predicts the next mix from the last two. If it has never observed these two in sequence, it
//! uses the last one alone; if it has never observed that, it predicts no change. For several intervals ahead, the
//! probabilities are propagated step by step.

use std::collections::BTreeMap;

use super::{Chances, Forecast};
use crate::tune::workload::{Interval, Tenths};

/// The states that precede a predicted one, the most recent first.
type Context = Vec<Tenths>;

/// Limit on the number of contexts that are propagated from step to step; the least likely ones are dropped.
const CARRIED_MAX: usize = 256;

/// A forecast by a Markov chain over mixes of operations in tenths.
#[derive(Clone, Debug)]
pub struct Markov {
    /// Number of past states on which a prediction depends.
    order: usize,
    /// Number of times that each state followed each context, for contexts of every length up to the order.
    transitions: BTreeMap<Context, BTreeMap<Tenths, u64>>,
    /// The last observed states, the most recent first, at most as many as the order.
    last: Context,
}

impl Markov {
    /// Creates a chain that predicts a state from the last one.
    #[must_use]
    pub fn first_order() -> Self {
        Self::new(1)
    }

    /// Creates a chain that predicts a state from the last two.
    #[must_use]
    pub fn second_order() -> Self {
        Self::new(2)
    }

    fn new(order: usize) -> Self {
        Self { order, transitions: BTreeMap::new(), last: Vec::new() }
    }

    /// Returns the number of distinct contexts of the full order that were observed and followed by a state.
    #[must_use]
    pub fn states(&self) -> usize {
        self.transitions.keys().filter(|context| context.len() == self.order).count()
    }

    /// Returns the possible states after a context, with their probabilities. An unknown context predicts its last
    /// state.
    fn next(&self, context: &[Tenths]) -> Vec<(f64, Tenths)> {
        let known =
            (1..=context.len()).rev().find_map(|length| self.transitions.get(&context[..length]));
        match known {
            Some(transitions) => {
                let all: u64 = transitions.values().sum();
                transitions
                    .iter()
                    .map(|(state, count)| (*count as f64 / all as f64, *state))
                    .collect()
            }
            None => vec![(1.0, context[0])],
        }
    }

    /// Returns the context that results if `state` follows `context`.
    fn pushed(&self, context: &[Tenths], state: Tenths) -> Context {
        std::iter::once(state).chain(context.iter().copied()).take(self.order).collect()
    }
}

impl Forecast for Markov {
    fn name(&self) -> &'static str {
        if self.order == 1 { "Markov chain, first order" } else { "Markov chain, second order" }
    }

    fn observe(&mut self, seen: &Interval) {
        let Some(mix) = seen.mix else { return };
        let state = Tenths::of(mix);
        for length in 1..=self.last.len() {
            let transitions = self.transitions.entry(self.last[..length].to_vec()).or_default();
            *transitions.entry(state).or_default() += 1;
        }
        self.last = self.pushed(&self.last, state);
    }

    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>> {
        if self.last.is_empty() {
            return None;
        }
        let mut contexts = BTreeMap::from([(self.last.clone(), 1.0)]);
        let mut all = Vec::with_capacity(intervals);
        for _ in 0..intervals {
            let mut next: BTreeMap<Context, f64> = BTreeMap::new();
            for (context, chance) in &contexts {
                for (of, state) in self.next(context) {
                    *next.entry(self.pushed(context, state)).or_default() += chance * of;
                }
            }
            contexts = likeliest(next);
            let mut chances: BTreeMap<Tenths, f64> = BTreeMap::new();
            for (context, chance) in &contexts {
                *chances.entry(context[0]).or_default() += chance;
            }
            all.push(chances.into_iter().map(|(state, chance)| (chance, state.mix())).collect());
        }
        Some(all)
    }
}

/// Returns the most likely contexts, with probabilities normalised to sum up to 1.
fn likeliest(contexts: BTreeMap<Context, f64>) -> BTreeMap<Context, f64> {
    let mut by_chance: Vec<(Context, f64)> = contexts.into_iter().collect();
    by_chance.sort_by(|(_, one), (_, two)| two.total_cmp(one));
    by_chance.truncate(CARRIED_MAX);
    let all: f64 = by_chance.iter().map(|(_, chance)| chance).sum();
    by_chance.into_iter().map(|(context, chance)| (context, chance / all)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tune::workload::Mix;

    fn observe(chain: &mut Markov, reads: impl IntoIterator<Item = f64>) {
        for (n, share) in (0..).zip(reads) {
            let (start_s, mix) = (1_492_560_000 + n * 300, Some(Mix::of_reads(share)));
            chain.observe(&Interval { start_s, mix, rate_s: Some(2_400.0) });
        }
    }

    fn chance_of(chances: &Chances, reads: f64) -> f64 {
        let is = |(_, mix): &&(f64, Mix)| (mix.shares()[0] - reads).abs() < 1e-9;
        chances.iter().filter(is).map(|(chance, _)| chance).sum()
    }

    /// Two intervals of reads, then one of writes, again and again.
    #[test]
    fn a_second_order_tells_what_a_first_one_cannot() {
        let pattern = (0..300).map(|n| if n % 3 < 2 { 0.9 } else { 0.1 });
        let (mut first, mut second) = (Markov::first_order(), Markov::second_order());
        assert_eq!(first.ahead(2), None);
        observe(&mut first, pattern.clone());
        observe(&mut second, pattern);
        let (one, two) = (first.ahead(4).unwrap(), second.ahead(4).unwrap());
        let told: Vec<f64> = two.iter().map(|chances| chance_of(chances, 0.9)).collect();
        assert_eq!(told, [1.0, 1.0, 0.0, 1.0]);
        assert!((chance_of(&one[0], 0.9) - 1.0).abs() < 1e-9, "reads follow writes");
        assert!((chance_of(&one[1], 0.9) - 0.5).abs() < 0.01, "then it cannot tell");
        assert_eq!((first.states(), second.states()), (2, 3));
    }

    #[test]
    fn what_was_never_seen_stays() {
        let mut chain = Markov::second_order();
        observe(&mut chain, [0.5]);
        assert_eq!(chain.ahead(3).unwrap(), vec![vec![(1.0, Mix::of_reads(0.5))]; 3]);
    }

    proptest! {
        #[test]
        fn chances_are_those_of_all_paths(shares in prop::collection::vec(0..4_u8, 2..40), order in 1..3_usize) {
            let mut chain = Markov::new(order);
            observe(&mut chain, shares.iter().map(|n| f64::from(*n) * 0.3));
            let told = chain.ahead(4).unwrap();
            for (distance, chances) in told.iter().enumerate() {
                let all: f64 = chances.iter().map(|(chance, _)| chance).sum();
                prop_assert!((all - 1.0).abs() < 1e-9);
                for (chance, mix) in chances {
                    let by_paths = paths(&chain, chain.last.clone(), distance + 1, Tenths::of(*mix));
                    prop_assert!((chance - by_paths).abs() < 1e-9, "{chance} {by_paths}");
                }
            }
        }
    }

    /// The chance to be in a state after some steps, path by path.
    fn paths(chain: &Markov, context: Context, steps: usize, state: Tenths) -> f64 {
        if steps == 0 {
            return if context[0] == state { 1.0 } else { 0.0 };
        }
        let next = chain.next(&context).into_iter();
        next.map(|(chance, to)| chance * paths(chain, chain.pushed(&context, to), steps - 1, state))
            .sum()
    }
}

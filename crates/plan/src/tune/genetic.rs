//! The paper's search for a plan: a genetic algorithm (SOPHIA, §4.4), provided for comparison with the exact search
//! ([`super::schedule`]).
//!
//! An individual is a plan: for each interval no change, or the configuration to change to. Its fitness is the number
//! of operations that it serves. As published: a population of 200, a crossover fraction of 0.8, and the best of ten
//! searches. The other parameters are those of the library which the authors used (pyeasyga), by its documentation: 100
//! generations, a mutation probability of 0.2, tournaments among a tenth of the population, and the best individual
//! survives.

use rand::{Rng, RngExt as _};

use super::schedule::{Change, Outlook, Schedule};

/// The parameters of a genetic search for a plan of configuration changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Number of individuals (candidate plans) in each generation.
    pub population: usize,
    /// Number of generations of one search.
    pub generations: usize,
    /// Probability that two parents are crossed, from 0 to 1.
    pub crossover: f64,
    /// Probability that a child is mutated, from 0 to 1.
    pub mutation: f64,
    /// Number of independent searches, of which the best result is taken.
    pub searches: usize,
}

impl Default for Search {
    fn default() -> Self {
        Self { population: 200, generations: 100, crossover: 0.8, mutation: 0.2, searches: 10 }
    }
}

/// The genes of an individual: for each interval the index of the configuration to change to; `None`: no change.
type Genes = Vec<Option<usize>>;

impl Search {
    /// Returns the best plan that the searches find. A limit on the number of changes is met by dropping the changes
    /// beyond it.
    ///
    /// # Panics
    /// If there is no individual or no search.
    #[must_use]
    pub fn run(&self, outlook: &Outlook, dice: &mut impl Rng) -> Schedule {
        let found = (0..self.searches).map(|_| self.search(outlook, dice));
        let by_operations =
            |one: &Schedule, two: &Schedule| one.operations.total_cmp(&two.operations);
        found.max_by(by_operations).expect("a search")
    }

    /// Runs one search, and returns the best plan of its last generation.
    fn search(&self, outlook: &Outlook, dice: &mut impl Rng) -> Schedule {
        let mut all: Vec<(Genes, f64)> = (0..self.population)
            .map(|_| {
                rated(outlook, (0..outlook.intervals()).map(|_| gene(outlook, dice)).collect())
            })
            .collect();
        for _ in 0..self.generations {
            let mut next = vec![best(&all).clone()];
            while next.len() < self.population {
                let (mut one, mut two) = (self.parent(&all, dice), self.parent(&all, dice));
                if dice.random::<f64>() < self.crossover {
                    let at = dice.random_range(0..=outlook.intervals());
                    one[at..].swap_with_slice(&mut two[at..]);
                }
                for mut child in [one, two] {
                    if dice.random::<f64>() < self.mutation && !child.is_empty() {
                        let at = dice.random_range(0..child.len());
                        child[at] = gene(outlook, dice);
                    }
                    next.push(rated(outlook, child));
                }
            }
            next.truncate(self.population);
            all = next;
        }
        outlook.served(&changes(outlook, &best(&all).0))
    }

    /// Returns the genes of the winner of a tournament among randomly drawn individuals.
    fn parent(&self, all: &[(Genes, f64)], dice: &mut impl Rng) -> Genes {
        let entrants = (self.population / 10).max(2);
        let drawn = (0..entrants).map(|_| &all[dice.random_range(0..all.len())]);
        let winner = drawn.max_by(|one, two| one.1.total_cmp(&two.1)).expect("two at least");
        winner.0.clone()
    }
}

/// Returns the individual with the greatest fitness.
fn best(all: &[(Genes, f64)]) -> &(Genes, f64) {
    all.iter().max_by(|one, two| one.1.total_cmp(&two.1)).expect("an individual")
}

/// Draws a gene: no change, or a change to any configuration, all equally likely.
fn gene(outlook: &Outlook, dice: &mut impl Rng) -> Option<usize> {
    let drawn = dice.random_range(0..=outlook.configurations());
    (drawn < outlook.configurations()).then_some(drawn)
}

/// Returns the changes of an individual that can be executed, up to the limit on their number.
fn changes(outlook: &Outlook, genes: &Genes) -> Vec<Change> {
    let all = genes.iter().enumerate();
    let all = all.filter_map(|(interval, to)| to.map(|to| Change { interval, to }));
    let done = outlook.served(&all.collect::<Vec<_>>()).changes;
    done.into_iter().take(outlook.changes_max.unwrap_or(usize::MAX)).collect()
}

/// Returns the genes with their fitness, the number of operations that their plan serves.
fn rated(outlook: &Outlook, genes: Genes) -> (Genes, f64) {
    let operations = outlook.served(&changes(outlook, &genes)).operations;
    (genes, operations)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::super::schedule::tests::outlooks;
    use super::*;

    const SMALL: Search =
        Search { population: 30, generations: 20, crossover: 0.8, mutation: 0.2, searches: 2 };

    proptest! {
        #[test]
        fn it_never_finds_more_than_the_exact_plan(outlook in outlooks(24), seed: u64) {
            let found = SMALL.run(&outlook, &mut StdRng::seed_from_u64(seed));
            let best = outlook.best();
            prop_assert!(found.operations <= best.operations * (1.0 + 1e-9), "{found:?} {best:?}");
            prop_assert!(found.changes.len() <= outlook.changes_max.unwrap_or(usize::MAX));
            prop_assert_eq!(outlook.served(&found.changes), found);
        }
    }

    #[test]
    fn as_published_it_finds_a_plan_of_one_change() {
        let roll = super::super::roll::Sliced { capacity_s: vec![(10.0, 15.0)] };
        let rates_s = (0..30)
            .map(|n| if n < 10 { vec![40_000.0, 30_000.0] } else { vec![40_000.0, 52_000.0] });
        let rates_s: Vec<_> = rates_s.collect();
        let rolls = vec![vec![roll; 2]; 2];
        let outlook = Outlook { rates_s, interval_s: 30.0, rolls, start: 0, changes_max: None };
        let found = Search { searches: 1, ..Search::default() }
            .run(&outlook, &mut StdRng::seed_from_u64(7));
        assert_eq!(found, outlook.best());
        // Before clients turn: then the new configuration is there from the first interval that it suits.
        assert_eq!(found.changes, [Change { interval: 9, to: 1 }]);
    }
}

//! Whether the predicted saving of a plan can be told from the chance of the samples.
//!
//! A decision prices designs by some thousand sampled transactions, and compares hundreds of plans by the same samples. The
//! loads of sites that are told by so few differ by some percent although they are the same, and of many plans one always
//! seems to even them out. So the samples are divided into groups, the saving of a plan is computed without each group in
//! turn, and it has to exceed [`ERRORS_MIN`] standard errors, which follow from how much these savings differ (the
//! delete-a-group jackknife). Savings by each group alone would be biased: by few samples no design looks even.
//!
//! A plan by which more transactions find a site that can run them is not judged: it saves the changes of the design that
//! these transactions need now, and these do not depend on how even the loads are.
//!
//! A plan that moves load from a site that every group shows to be the busiest passes, however little it saves; one that
//! moves load between sites of which each group shows another one as the busiest does not.

use super::layout::{Key, Layout, Operator};
use super::price::{Situation, price};
use super::regimes::Expected;
use super::workload::Sample;

/// Number of groups into which the samples are divided.
const GROUPS: usize = 8;
/// Number of samples in a group below which the groups say nothing about chance.
const SAMPLES_MIN: usize = 12;
/// Share (0..1) of transactions that find a site by a plan and did not before, above which the plan is not judged: what it
/// saves are changes of the design, and not the evenness of loads.
const GAINED_MIN: f64 = 0.001;
/// Least saving, in standard errors. With more, loads that are uneven in truth stay so.
const ERRORS_MIN: f64 = 2.0;

/// The samples of a decision, all but one group of them each.
pub(super) struct Subsets<K>(Vec<Vec<(f64, Sample<K>)>>);

impl<K: Key> Subsets<K> {
    /// Divides samples into groups of about the same size, neighbours into different ones, and leaves out each group once.
    /// There are no subsets if there are too few samples.
    pub(super) fn of(samples: &[(f64, Sample<K>)]) -> Self {
        if samples.len() < GROUPS * SAMPLES_MIN {
            return Self(Vec::new());
        }
        let without = |group: usize| {
            let numbered = samples.iter().enumerate();
            let others = numbered.filter(|(at, _)| at % GROUPS != group);
            others.map(|(_, sample)| sample.clone()).collect()
        };
        Self((0..GROUPS).map(without).collect())
    }

    /// Returns whether the saving of a plan on the design `layout` can be told from chance, and its standard error, as a share
    /// of what transactions cost before. It cannot be judged, and passes with an error of 0, if there are no subsets, or if an
    /// operator is impossible.
    pub(super) fn judge(
        &self,
        layout: &Layout<K>,
        operators: &[Operator<K>],
        situation: &Situation<'_, K>,
    ) -> (bool, f64) {
        let mut after = layout.clone();
        let moves_load =
            |one: &Operator<K>| !matches!(one, Operator::Split(_) | Operator::Merge(_));
        if self.0.is_empty()
            || !operators.iter().any(moves_load)
            || operators.iter().any(|operator| after.apply(operator).is_err())
        {
            return (true, 0.0);
        }
        let mut gained = 0.0;
        let saving = |samples: &Vec<(f64, Sample<K>)>| {
            let situation = Situation { samples, expected: Expected::default(), ..*situation };
            let (before, after) = (price(layout, &situation), price(&after, &situation));
            gained += (after.single_site - before.single_site) / GROUPS as f64;
            1.0 - after.total_us / before.total_us.max(f64::MIN_POSITIVE)
        };
        let savings: Vec<f64> = self.0.iter().map(saving).collect();
        let (mean, error) = jackknife(&savings);
        (gained > GAINED_MIN || mean > ERRORS_MIN * error, error)
    }
}

/// Returns the mean of the savings that are computed without each group in turn, and the standard error of the saving.
fn jackknife(savings: &[f64]) -> (f64, f64) {
    let many = savings.len() as f64;
    let mean = savings.iter().sum::<f64>() / many;
    let squares = savings.iter().map(|saving| (saving - mean).powi(2)).sum::<f64>();
    (mean, (squares * (many - 1.0) / many).sqrt())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::store::layout::Site;
    use crate::store::price::CPU_WEIGHT;
    use crate::store::tests::{learned, users, writes};

    /// Returns for how many of 40 draws of 800 transactions moving the third of eight partitions from site 0 to site 1
    /// saves something, and for how many of those the saving can be told from chance. Site 0 has the first `at_first`
    /// partitions, site 1 the others; all are used alike.
    fn moves(at_first: usize) -> (usize, usize) {
        let masters: Vec<(Site, &[Site])> =
            (0..8).map(|n| (Site::from(n >= at_first), &[][..])).collect();
        let layout = users(&masters);
        let start = layout.partitions().nth(2).map(|(start, _)| start.clone()).unwrap();
        let operators = [
            Operator::AddReplica(start.clone(), 1),
            Operator::Remaster(start.clone(), 1),
            Operator::RemoveReplica(start, 0),
        ];
        let mut after = layout.clone();
        operators.iter().for_each(|one| after.apply(one).unwrap());
        let (cost, lag_entries) = (learned(), BTreeMap::new());
        let mut dice = StdRng::seed_from_u64(47);
        let (mut saving, mut told) = (0, 0);
        for _ in 0..40 {
            let samples: Vec<_> =
                (0..800).map(|_| (1.0, writes([dice.random_range(0..8_000)]))).collect();
            let situation = Situation {
                samples: &samples,
                rate_s: 20_000.0,
                population: 32.0,
                cost: &cost,
                lag_entries: &lag_entries,
                cpu_weight: CPU_WEIGHT,
                expected: Expected::default(),
            };
            if price(&after, &situation).total_us < price(&layout, &situation).total_us {
                saving += 1;
                told += usize::from(Subsets::of(&samples).judge(&layout, &operators, &situation).0);
            }
        }
        (saving, told)
    }

    #[test]
    fn loads_that_are_uneven_are_told_from_those_that_only_look_so() {
        let (saving, told) = moves(6);
        assert!(saving == 40 && told >= 36, "six and two partitions: {saving}, {told}");
        // Five and three become four and four; four and four become three and five.
        let (saving, told) = moves(4);
        assert!(told <= 2, "four and four partitions: {saving}, {told}");
    }

    #[test]
    fn few_samples_or_splits_alone_are_not_judged() {
        let samples: Vec<_> = (0..40).map(|n| (1.0, writes([n * 100]))).collect();
        assert!(Subsets::of(&samples).0.is_empty());
        assert_eq!(Subsets::of(&[samples.clone(), samples].concat()[..]).0.len(), 0);
    }
}

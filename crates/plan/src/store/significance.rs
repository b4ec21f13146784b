//! Whether the predicted saving of a plan can be told from the chance of the samples.
//!
//! A decision prices designs by some thousand sampled transactions, and compares hundreds of plans by the same samples. The
//! loads of sites that are told by so few differ by some percent although they are the same, and of many plans one always
//! seems to even them out. So the samples are divided into groups, a plan is priced by each, and its mean saving has to
//! exceed [`ERRORS_MIN`] standard errors of that mean (the method of batch means).
//!
//! A plan that moves load from a site that every group shows to be the busiest passes, however little it saves; one that
//! moves load between sites of which each group shows another one as the busiest does not.

use super::layout::{Key, Layout, Operator};
use super::price::{Situation, price};
use super::regimes::Expected;
use super::workload::Sample;

/// Number of groups into which the samples are divided.
const GROUPS: usize = 12;
/// Number of samples in a group below which the groups say nothing about chance.
const SAMPLES_MIN: usize = 8;
/// Least mean saving, in standard errors of the mean. It is more than the usual two, because a plan is the best of many.
const ERRORS_MIN: f64 = 3.0;

/// The samples of a decision in groups.
pub(super) struct Groups<K>(Vec<Vec<(f64, Sample<K>)>>);

impl<K: Key> Groups<K> {
    /// Divides samples into groups of about the same size, neighbours into different ones. There are no groups if there are
    /// too few samples.
    pub(super) fn of(samples: &[(f64, Sample<K>)]) -> Self {
        if samples.len() < GROUPS * SAMPLES_MIN {
            return Self(Vec::new());
        }
        let group = |at: usize| samples.iter().skip(at).step_by(GROUPS).cloned().collect();
        Self((0..GROUPS).map(group).collect())
    }

    /// Returns true if the saving of a plan on the design `layout` can be told from chance. It cannot be judged, and
    /// passes, if there are no groups, or if an operator is impossible.
    pub(super) fn tell(
        &self,
        layout: &Layout<K>,
        operators: &[Operator<K>],
        situation: &Situation<'_, K>,
    ) -> bool {
        let mut after = layout.clone();
        let moves_load =
            |one: &Operator<K>| !matches!(one, Operator::Split(_) | Operator::Merge(_));
        if self.0.is_empty()
            || !operators.iter().any(moves_load)
            || operators.iter().any(|operator| after.apply(operator).is_err())
        {
            return true;
        }
        let saving = |samples: &Vec<(f64, Sample<K>)>| {
            let situation = Situation { samples, expected: Expected::default(), ..*situation };
            let (before, after) = (price(layout, &situation), price(&after, &situation));
            1.0 - after.total_us / before.total_us.max(f64::MIN_POSITIVE)
        };
        exceeds_chance(&self.0.iter().map(saving).collect::<Vec<f64>>())
    }
}

/// True if the mean of independent savings is above zero by more than chance.
fn exceeds_chance(savings: &[f64]) -> bool {
    let many = savings.len() as f64;
    let mean = savings.iter().sum::<f64>() / many;
    let squares = savings.iter().map(|saving| (saving - mean).powi(2)).sum::<f64>();
    let error = (squares / (many - 1.0) / many).sqrt();
    mean > ERRORS_MIN * error
}

//! Fig. 9: noise in the predicted batch queue (SOPHIA, §6.5): users withdraw jobs, and submit others.
//!
//! The predicted share of reads in an interval differs from the real one by U(-R, R), clamped to the range of a
//! share. The tuner plans by the prediction and observes the real workload, so it plans anew where the two differ too
//! much.

use imago_plan::tune::workload::{Interval, Mix};
use rand::rngs::StdRng;
use rand::{Rng, RngExt as _, SeedableRng as _};
use serde::Serialize;

use super::queue::{Jobs, TWO_STEPS};
use super::{Basis, Size};
use crate::statistics::Figure;

/// Levels of noise: R, the maximum difference of the predicted share of reads from the real one.
pub(crate) const LEVELS: [f64; 6] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5];

/// Returns predictions of intervals, whose shares of reads differ from the real ones by at most `most`. The other
/// operations share the rest in their real proportions; if there were none, the rest is updates.
fn predicted(intervals: &[Interval], most: f64, dice: &mut impl Rng) -> Vec<Interval> {
    let mut of = |mix: Mix| {
        let [reads, updates, inserts, scans] = mix.shares();
        let off: f64 = if most > 0.0 { dice.random_range(-most..most) } else { 0.0 };
        let predicted = (reads + off).clamp(0.0, 1.0);
        let (rest, left) = (1.0 - reads, 1.0 - predicted);
        if off == 0.0 {
            return Some(mix);
        }
        if rest <= 0.0 {
            return Mix::of([predicted, left, 0.0, 0.0]);
        }
        let [updates, inserts, scans] = [updates, inserts, scans].map(|share| share / rest * left);
        Mix::of([predicted, updates, inserts, scans])
    };
    intervals.iter().map(|one| Interval { mix: one.mix.and_then(&mut of), ..*one }).collect()
}

/// Results for a level of noise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the basis; see [`super::BasisRow`].
    pub basis: &'static str,
    /// R: maximum difference of the predicted share of reads from the real one.
    pub noise: f64,
    /// Operations of the tuner divided by those of the best fixed configuration, over the draws.
    pub ratio_to_static_optimal: Figure,
    /// Operations of the tuner divided by those that it serves without noise, both as ratios to the best fixed
    /// configuration.
    pub ratio_to_noiseless: Figure,
    /// Number of changes that the tuner makes, over the draws.
    pub changes: Figure,
}

/// Returns the rows of Fig. 9, for four nodes, RF 3 and CL 1.
pub(super) fn rows(bases: &[Basis], size: Size) -> Vec<Row> {
    let jobs = Jobs::drawn(size);
    bases.iter().flat_map(|basis| of_basis(basis, &jobs, size)).collect()
}

fn of_basis(basis: &Basis, jobs: &Jobs, size: Size) -> Vec<Row> {
    let mut noiseless = None;
    let mut rows = Vec::new();
    for noise in LEVELS {
        // Without noise, all draws are the same.
        let draws = if noise > 0.0 { size.draws.max(1) } else { 1 };
        let served = (0..draws).map(|draw| {
            let mut dice = StdRng::seed_from_u64(size.seed ^ ((u64::from(draw) << 32) | 0x9015e));
            let predicted = predicted(&jobs.intervals, noise, &mut dice);
            let lived = jobs.replay(basis, &basis.costs, &TWO_STEPS, &predicted);
            (lived.ratios(|_| 1.0).tuned, lived.changes(|_| true).tuned)
        });
        let served: Vec<(f64, usize)> = served.collect();
        let without = *noiseless.get_or_insert(served[0].0);
        rows.push(Row {
            basis: basis.name,
            noise,
            ratio_to_static_optimal: Figure::of(served.iter().map(|(ratio, _)| *ratio)),
            ratio_to_noiseless: Figure::of(served.iter().map(|(ratio, _)| ratio / without)),
            changes: Figure::of(served.iter().map(|(_, changes)| *changes as f64)),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::queue::tests::SIZE;
    use super::super::tests::telling;
    use super::*;

    #[test]
    fn no_noise_is_the_plan_without_noise() {
        let (basis, jobs) = (telling(), Jobs::drawn(SIZE));
        let quiet = predicted(&jobs.intervals, 0.0, &mut StdRng::seed_from_u64(1));
        assert_eq!(quiet, jobs.intervals);
        let rows = of_basis(&basis, &jobs, SIZE);
        let without = jobs.replay(&basis, &basis.costs, &TWO_STEPS, &jobs.intervals);
        let first = &rows[0];
        assert_eq!(first.ratio_to_static_optimal.median, without.ratios(|_| 1.0).tuned);
        assert_eq!(first.changes.median, without.changes(|_| true).tuned as f64);
        let bound = without.ratios(|_| 1.0).oracle;
        for row in &rows {
            assert!(row.ratio_to_static_optimal.max <= bound * (1.0 + 1e-9), "{row:?} {bound}");
        }
    }

    #[test]
    fn much_noise_costs_something() {
        let (basis, jobs) = (telling(), Jobs::drawn(SIZE));
        let rows = of_basis(&basis, &jobs, SIZE);
        assert!(rows[5].ratio_to_noiseless.median < 1.0, "{rows:?}");
    }

    proptest! {
        #[test]
        fn what_is_predicted_is_off_by_at_most_the_noise_and_still_a_mix(
            counts in prop::array::uniform4(0.0..5_000.0_f64), most in 0.0..0.9_f64, seed in any::<u64>(),
        ) {
            prop_assume!(counts.iter().sum::<f64>() > 0.0);
            let mix = Mix::of(counts);
            let one = Interval { start_s: 1_500_000_000, mix, rate_s: Some(2_900.0) };
            let idle = Interval { mix: None, ..one };
            let said = predicted(&[one, idle], most, &mut StdRng::seed_from_u64(seed));
            prop_assert_eq!(said[1], idle);
            let (was, said) = (mix.unwrap().shares(), said[0].mix.unwrap().shares());
            prop_assert!((was[0] - said[0]).abs() <= most + 1e-9, "{was:?} {said:?}");
            prop_assert!((said.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(said.iter().all(|share| (0.0..=1.0).contains(share)), "{said:?}");
        }
    }
}

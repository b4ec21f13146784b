//! The prediction of how long a roll takes, from the rolls of its kind that the cluster's journal has.
//!
//! A roll takes as long for each node as earlier ones with the same effect on nodes took (in running nodes, by restarts, or by
//! restarts of all nodes at once), in the median. The interval follows from how much they differ. A cluster without such rolls goes
//! by what a node took elsewhere, within a wide interval.

use imago_job::prediction::Interval;
use imago_plan::statistics::median;

/// Name of the predicted quantity, in the jobs' records: the time of a roll from its first check to its end, in seconds.
pub(crate) const ROLL_S: &str = "roll_s";
/// Maximum number of recent rolls that a prediction is made from.
pub(crate) const LEARNS_FROM: usize = 12;
/// Factor of the interval without earlier rolls: a machine, and how its nodes are reached, may be that much quicker or slower.
const UNKNOWN: f64 = 3.0;
/// Standard deviation of the logarithm of a roll's time that is assumed besides what earlier rolls show, as if one more had been
/// seen.
const SPREAD: f64 = 0.3;
/// Quantile of the standard normal distribution for a 90 % interval.
const NORMAL_90: f64 = 1.645;

/// Predicts the time of a roll of `nodes` nodes, in seconds, with its 90 % interval. `past` has the time of each earlier roll for each of
/// its nodes, the latest first; `assumed_s` is that of one node without any, and `fixed_s` is a further time of the roll, both in
/// seconds.
pub(crate) fn roll_time(nodes: usize, past: &[f64], assumed_s: f64, fixed_s: f64) -> Interval {
    let nodes = nodes.max(1) as f64;
    let past = &past[..past.len().min(LEARNS_FROM)];
    let with_fixed = |of: Interval| {
        if fixed_s > 0.0 { of.plus(Interval::within(fixed_s, 1.0)) } else { of }
    };
    let Some(middle) = median(past.iter().copied()).filter(|middle| *middle > 0.0) else {
        return with_fixed(Interval::within(nodes * assumed_s, UNKNOWN));
    };
    let count = past.len() as f64;
    let squares = past.iter().map(|one| (one.max(1e-3) / middle).ln().powi(2)).sum::<f64>();
    let variance = (squares + SPREAD.powi(2)) / count * (1.0 + 1.0 / count);
    // Of few rolls the spread is itself uncertain.
    let quantile = NORMAL_90 * (1.0 + 1.5 / count);
    with_fixed(Interval::within(nodes * middle, (quantile * variance.sqrt()).exp()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn without_earlier_rolls_it_goes_by_what_a_node_takes() {
        let found = roll_time(3, &[], 60.0, 240.0);
        assert!((found.expected - 420.0).abs() < 1e-9, "{found:?}");
        assert!(found.low < 301.0 && found.high > 779.0, "{found:?}");
    }

    #[test]
    fn with_earlier_ones_it_goes_by_those_and_is_narrower() {
        let past = [1.31, 1.22, 1.27, 1.35, 1.19, 1.24];
        let found = roll_time(6, &past, 60.0, 0.0);
        assert!((found.expected - 6.0 * 1.255).abs() < 1e-6, "{found:?}");
        let one = roll_time(6, &past[..1], 60.0, 0.0);
        assert!(one.high / one.expected > found.high / found.expected, "{one:?} {found:?}");
        assert!(found.high < 1.5 * found.expected, "{found:?}");
        // What is long ago does not count.
        let old = [vec![1.25; LEARNS_FROM], vec![90.0; 40]].concat();
        assert!((roll_time(3, &old, 60.0, 0.0).expected - 3.75).abs() < 1e-9);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        /// Of rolls whose times differ as they did so far, at least 84 of 100 are inside.
        #[test]
        fn intervals_cover_what_they_say(seed in any::<u64>(), spread in 0.02..0.6_f64, count in 3..14_usize) {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut roll = || {
                let normal = (0..12).map(|_| rng.random_range(-0.5..0.5)).sum::<f64>();
                1.3 * (spread * normal).exp()
            };
            let inside = (0..300).filter(|_| {
                let past: Vec<f64> = (0..count).map(|_| roll()).collect();
                roll_time(1, &past, 60.0, 0.0).contains(roll())
            }).count();
            prop_assert!(inside >= 240, "{} of 300", inside);
        }
    }
}

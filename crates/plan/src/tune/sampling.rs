//! The order in which configurations are measured, and the test whether a database is warm.
//!
//! The first measurement is made cold: a JVM compiles, caches fill. If configurations were always measured in the same
//! order, the tuner would learn that effect. So the order is drawn at random, each second round has the opposite order of the
//! one before (A B B A), and a measurement begins only when throughput neither rises nor falls.

use rand::Rng;
use rand::seq::SliceRandom as _;

/// Difference of a window's throughput from the mean of the two windows before, as a share, above which the throughput still
/// rises or falls.
const CHANGE: f64 = 0.05;

/// Returns pairs of the index of a round and the index of a configuration, in the order of measurement; odd rounds are
/// in reverse order.
#[must_use]
pub fn order(configurations: usize, rounds: usize) -> Vec<(usize, usize)> {
    rounds_of((0..configurations).collect(), rounds, |_| {})
}

/// Returns the same pairs, where the order of each even round is drawn at random.
pub fn drawn_order(
    configurations: usize,
    rounds: usize,
    rng: &mut impl Rng,
) -> Vec<(usize, usize)> {
    rounds_of((0..configurations).collect(), rounds, |numbers| numbers.shuffle(rng))
}

/// Returns the pairs of all rounds; `arrange` changes the order before each even round.
fn rounds_of(
    first: Vec<usize>,
    rounds: usize,
    mut arrange: impl FnMut(&mut Vec<usize>),
) -> Vec<(usize, usize)> {
    let mut forth = first;
    let mut all = Vec::new();
    for round in 0..rounds {
        if round.is_multiple_of(2) {
            arrange(&mut forth);
            all.extend(forth.iter().map(|number| (round, *number)));
        } else {
            all.extend(forth.iter().rev().map(|number| (round, *number)));
        }
    }
    all
}

/// Returns true if the throughput of a database no longer rises, so that it is warm. `windows` has the number of
/// operations of consecutive windows of equal length; fewer than three are not enough.
#[must_use]
pub fn is_warm(windows: &[f64]) -> bool {
    let [.., before, middle, last] = windows else { return false };
    *last <= (1.0 + CHANGE) * f64::midpoint(*before, *middle)
}

/// Returns true if the throughput of a database neither rises nor falls: it is on a plateau, as before and after a change that
/// is measured. `windows` is as for [`is_warm`].
#[must_use]
pub fn is_plateau(windows: &[f64]) -> bool {
    let [.., before, middle, last] = windows else { return false };
    is_warm(windows) && *last >= (1.0 - CHANGE) * f64::midpoint(*before, *middle)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn rounds_go_forth_and_back() {
        assert_eq!(order(2, 3), [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
        let mut first = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let all = drawn_order(3, 4, &mut StdRng::seed_from_u64(seed));
            assert_eq!(all.len(), 12);
            first.insert(all[0].1);
            // The mean place of each is the same, as if no order were preferred.
            for number in 0..3 {
                let places = all.iter().enumerate().filter(|(_, (_, one))| *one == number);
                assert_eq!(places.map(|(place, _)| place).sum::<usize>(), 22, "{number}");
            }
        }
        assert_eq!(first.len(), 3, "each is the first some time");
    }

    #[test]
    fn a_database_is_warm_when_it_serves_no_more_than_before() {
        assert!(!is_warm(&[]));
        assert!(!is_warm(&[17_000.0, 17_000.0]), "too little to tell");
        assert!(!is_warm(&[17_000.0, 31_000.0, 44_000.0]));
        assert!(!is_warm(&[31_000.0, 44_000.0, 40_000.0]), "it was still rising");
        assert!(is_warm(&[44_000.0, 55_000.0, 51_000.0]));
        assert!(is_warm(&[55_000.0, 54_000.0, 55_500.0]));
        assert!(is_warm(&[55_000.0, 54_000.0, 40_000.0]), "compaction may begin");
    }

    #[test]
    fn on_a_plateau_throughput_does_not_fall_either() {
        assert!(!is_plateau(&[55_000.0, 54_000.0]));
        assert!(!is_plateau(&[17_000.0, 31_000.0, 44_000.0]));
        assert!(!is_plateau(&[55_000.0, 54_000.0, 40_000.0]));
        assert!(is_plateau(&[55_000.0, 54_000.0, 53_500.0]));
    }
}

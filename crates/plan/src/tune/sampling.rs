//! The order in which configurations are measured, and the test whether a database is warm.
//!
//! The first measurement is made cold: a JVM compiles, caches fill. If configurations were always measured in the same
//! order, the tuner would learn that effect. So rounds alternate their direction (A B B A), and a measurement begins
//! only when throughput no longer rises.

/// Ratio of a window's throughput to the mean of the two windows before, above which the throughput still rises.
const RISE: f64 = 1.05;

/// Returns pairs of the index of a round and the index of a configuration, in the order of measurement; odd rounds are
/// in reverse order.
#[must_use]
pub fn order(configurations: usize, rounds: usize) -> Vec<(usize, usize)> {
    let round = |round: usize| {
        let forth = (0..configurations).map(move |number| (round, number));
        let back = (0..configurations).rev().map(move |number| (round, number));
        if round.is_multiple_of(2) { forth.collect::<Vec<_>>() } else { back.collect() }
    };
    (0..rounds).flat_map(round).collect()
}

/// Returns true if the throughput of a database no longer rises. `windows` has the number of operations of consecutive
/// windows of equal length; fewer than three are not enough.
#[must_use]
pub fn is_warm(windows: &[f64]) -> bool {
    let [.., before, middle, last] = windows else { return false };
    *last <= RISE * (before + middle) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_forth_and_back() {
        assert_eq!(order(2, 2), [(0, 0), (0, 1), (1, 1), (1, 0)]);
        let all = order(3, 4);
        assert_eq!(all.len(), 12);
        // The mean place of each is the same, as if no order were preferred.
        for number in 0..3 {
            let places = all.iter().enumerate().filter(|(_, (_, one))| *one == number);
            assert_eq!(places.map(|(place, _)| place).sum::<usize>(), 22, "{number}");
        }
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
}

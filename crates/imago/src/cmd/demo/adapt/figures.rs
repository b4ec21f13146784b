//! Figures of a demo's load, computed from its throughput in each second.

use std::fmt;

use serde::Serialize;

/// A span of seconds since the start of a load, from the first field, inclusive, to the second, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Span(pub usize, pub usize);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.0, self.1)
    }
}

/// Number of consecutive seconds whose mean throughput is compared with that before the move of the hotspot.
const OVER: usize = 3;
/// Share of the throughput before the hotspot moved at which a load counts as recovered.
const BACK: f64 = 0.9;

/// Returns the spans in which adaptation counts as having learned, in a load of this many seconds whose hotspot moves
/// half-way: the second half of the time before the move, and of the time after it.
pub(super) fn learned(seconds: usize) -> Vec<Span> {
    let half = seconds / 2;
    vec![Span(half / 2, half), Span(half + (seconds - half) / 2, seconds)]
}

/// Returns the mean throughput over the measured seconds of the spans, in transactions/s; 0 if none was measured.
pub(super) fn mean_s(throughput_s: &[f64], spans: &[Span]) -> f64 {
    let many = throughput_s.len();
    let within = |span: &Span| &throughput_s[span.0.min(many)..span.1.min(many)];
    let of: Vec<f64> = spans.iter().flat_map(within).copied().collect();
    of.iter().sum::<f64>() / of.len().max(1) as f64
}

/// Returns the seconds from `moved_s`, when the hotspot moved, to the first three seconds whose mean throughput is 90
/// % of the best three seconds before the move. Returns `None` if throughput did not recover, or if fewer than three
/// seconds preceded the move.
pub(super) fn recover_s(throughput_s: &[f64], moved_s: usize) -> Option<usize> {
    let (before, after) = throughput_s.split_at_checked(moved_s)?;
    let mean = |some: &[f64]| some.iter().sum::<f64>() / OVER as f64;
    let best = before.windows(OVER).map(mean).reduce(f64::max)?;
    after.windows(OVER).position(|some| mean(some) >= BACK * best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_is_the_second_half_before_and_after_the_move() {
        assert_eq!(learned(80), [Span(20, 40), Span(60, 80)]);
        assert_eq!(learned(9), [Span(2, 4), Span(6, 9)]);
    }

    #[test]
    fn the_mean_is_of_the_seconds_that_there_are() {
        let throughput_s = [100.0, 2.0, 4.0, 100.0, 9.0];
        assert!((mean_s(&throughput_s, &[Span(1, 3), Span(4, 8)]) - 5.0).abs() < 1e-9);
        assert!(mean_s(&[], &[Span(1, 3)]).abs() < 1e-9);
    }

    #[test]
    fn a_load_is_back_with_three_seconds_near_the_best_before() {
        let before = [5.0, 10.0, 10.0, 10.0];
        let after = |after: &[f64]| recover_s(&[&before[..], after].concat(), before.len());
        // One good second is not enough.
        assert_eq!(after(&[2.0, 10.0, 2.0, 9.0, 9.0, 9.0, 2.0]), Some(3));
        assert_eq!(after(&[10.0, 10.0, 10.0]), Some(0));
        assert_eq!(after(&[2.0, 8.0, 8.0, 8.0, 10.0, 10.0]), Some(3));
        assert_eq!(after(&[2.0, 8.0, 8.0, 8.0]), None);
        assert_eq!((recover_s(&[1.0, 1.0], 9), recover_s(&[1.0; 9], 2)), (None, None));
    }
}

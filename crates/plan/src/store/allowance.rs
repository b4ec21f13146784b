//! A CPU budget for a planner: the time for which the planner rests between rounds, so that it never uses more than
//! its share of a core.
//!
//! The budget grows with elapsed time up to a bound, so that a planner that was idle may decide often for a moment. A
//! new budget is empty. A round begins when the budget covers the CPU time of the last round.
//!
//! Invariant: the CPU time used so far is at most the share of the elapsed time, as long as no round takes longer than
//! the one before it.

/// The CPU budget of a planner, which grows with elapsed time and from which the CPU time of rounds is deducted. All
/// times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    share: f64,
    saved_max_s: f64,
    saved_s: f64,
    last_s: f64,
}

impl Allowance {
    /// Creates a budget that grows by `share` seconds of a core per second, up to `saved_max_s` seconds of a core.
    #[must_use]
    pub fn new(share: f64, saved_max_s: f64) -> Self {
        Self { share, saved_max_s, saved_s: 0.0, last_s: 0.0 }
    }

    /// Adds the budget for `passed_s` seconds of elapsed time: that time multiplied by the planner's share of a core.
    pub fn earn(&mut self, passed_s: f64) {
        // The bound is at least the last round's CPU time: otherwise no next round would begin.
        let most_s = self.saved_max_s.max(self.last_s);
        self.saved_s = (self.saved_s + passed_s * self.share).min(most_s);
    }

    /// Deducts the CPU time `took_s` of a round that has ended, in seconds.
    pub fn spend(&mut self, took_s: f64) {
        self.saved_s -= took_s;
        self.last_s = took_s;
    }

    /// Returns the time that the planner has to rest before its next round, in seconds; 0 if the budget covers a round
    /// with the CPU time of the last one.
    #[must_use]
    pub fn rest_s(&self) -> f64 {
        ((self.last_s - self.saved_s) / self.share).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_more_than_the_share_is_used_at_any_moment(
            first_s in 0.0001..0.2_f64, later in prop::collection::vec(0.2..1.0_f64, 1..60)
        ) {
            let (share, mut took_s) = (0.0125, first_s);
            let mut allowance = Allowance::new(share, 0.25);
            let (mut now_s, mut used_s) = (0.0, 0.0);
            for (n, factor) in later.into_iter().enumerate() {
                let rest_s = allowance.rest_s().max(0.25);
                now_s += rest_s;
                allowance.earn(rest_s);
                allowance.spend(took_s);
                used_s += took_s;
                // Only the CPU time of the first round is not known beforehand.
                let most_s = share * now_s + if n == 0 { first_s } else { 1e-9 };
                prop_assert!(used_s <= most_s, "{used_s} s of {now_s} s");
                took_s *= factor;
            }
        }
    }

    #[test]
    fn what_was_saved_is_spent_at_once() {
        let mut allowance = Allowance::new(0.0125, 0.25);
        allowance.earn(1_000.0);
        for _ in 0..24 {
            allowance.spend(0.01);
            assert!(allowance.rest_s() < 1e-9);
        }
        allowance.spend(0.01);
        assert!((allowance.rest_s() - 0.8).abs() < 1e-9, "{}", allowance.rest_s());
    }
}

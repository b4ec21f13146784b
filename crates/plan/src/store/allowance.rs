//! A CPU budget for a planner: the time for which the planner rests between rounds, so that it never uses more than
//! its share of a core.
//!
//! The budget grows with elapsed time up to a bound, so that a planner that was idle may decide often for a moment. A
//! new budget is empty. A round begins when the budget covers the CPU time of the last round.
//!
//! While decisions find plans that save far more than a decision costs, the planner may use a larger share: a plan is
//! executed only if consecutive decisions choose it, and a design that has just begun needs many plans.
//!
//! Invariants, as long as no round takes longer than the one before it:
//! - The CPU time used so far is at most the share of the elapsed time: of the larger share in any case, and of the
//!   usual one without the rounds that paid.
//! - Not more than [`UNEXECUTED_MAX`] rounds in a row count as paying if no plan is executed.

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

/// Factor by which the saving of a decision's plans must exceed the CPU time of the decision, so that the next one may
/// follow sooner.
const PAYS_TIMES: f64 = 10.0;
/// Maximum number of consecutive rounds that pay although no plan is executed.
pub const UNEXECUTED_MAX: u32 = 4;

/// The CPU budget of a planner with two shares of a core: the usual one, and a larger one for rounds that pay.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    usual: Allowance,
    paying: Allowance,
    /// Number of the last consecutive rounds that paid without an executed plan.
    unexecuted: u32,
}

/// A round of the planner that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// Time since the end of the round before, in seconds.
    pub passed_s: f64,
    /// CPU time of the round, in seconds.
    pub took_s: f64,
    /// Predicted net saving of the plans that the round chose, in seconds of transactions; 0 if none may be executed.
    pub saves_s: f64,
    /// True if the round executed a plan.
    pub has_changed: bool,
}

impl Budget {
    /// Creates a budget with these shares of a core, each of which saves up to `saved_max_s` seconds of a core.
    #[must_use]
    pub fn new(usual_share: f64, paying_share: f64, saved_max_s: f64) -> Self {
        let usual = Allowance::new(usual_share, saved_max_s);
        let paying = Allowance::new(paying_share, saved_max_s);
        Self { usual, paying, unexecuted: 0 }
    }

    /// Deducts a round, and returns the time that the planner has to rest before the next one, in seconds.
    pub fn spend(&mut self, round: Spent) -> f64 {
        let Spent { passed_s, took_s, saves_s, has_changed } = round;
        self.usual.earn(passed_s);
        self.paying.earn(passed_s);
        self.paying.spend(took_s);
        let pays = saves_s >= PAYS_TIMES * took_s
            && took_s > 0.0
            && (has_changed || self.unexecuted < UNEXECUTED_MAX);
        self.unexecuted = if pays && !has_changed { self.unexecuted + 1 } else { 0 };
        if pays {
            return self.paying.rest_s();
        }
        self.usual.spend(took_s);
        self.usual.rest_s().max(self.paying.rest_s())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decisions_that_pay_follow_each_other_until_nothing_comes_of_them() {
        let mut budget = Budget::new(0.0125, 0.125, 0.25);
        let round =
            |saves_s, has_changed, passed_s| Spent { passed_s, took_s: 0.2, saves_s, has_changed };
        // What pays is decided on again after 1.6 s, and anything else after 16 s.
        let mut rest_s = budget.spend(round(0.0, false, 10.0));
        for _ in 0..3 {
            rest_s = budget.spend(round(2.5, true, rest_s));
            assert!((0.0..=1.61).contains(&rest_s), "{rest_s}");
        }
        for _ in 0..UNEXECUTED_MAX {
            rest_s = budget.spend(round(2.5, false, rest_s));
            assert!((1.5..=1.61).contains(&rest_s), "{rest_s}");
        }
        rest_s = budget.spend(round(2.5, false, rest_s));
        assert!(rest_s > 5.0, "{rest_s}");
        rest_s = budget.spend(round(1.9, true, rest_s));
        assert!(rest_s > 15.0, "a saving of less than ten times the round: {rest_s}");
    }

    proptest! {
        #[test]
        fn no_more_than_the_larger_share_is_used(
            first_s in 0.0001..0.2_f64,
            rounds in prop::collection::vec((0.2..1.0_f64, 0.0..20.0_f64, any::<bool>()), 1..60),
        ) {
            let (share, mut took_s) = (0.125, first_s);
            let mut budget = Budget::new(0.0125, share, 0.25);
            let (mut elapsed_s, mut used_s, mut unpaid_s) = (first_s / share, 0.0, 0.0);
            let mut passed_s = elapsed_s;
            for (shrinks, saves_s, has_changed) in rounds {
                took_s *= shrinks;
                used_s += took_s;
                let rest_s = budget.spend(Spent { passed_s, took_s, saves_s, has_changed });
                prop_assert!(used_s <= share * elapsed_s + 1e-9, "{used_s} of {elapsed_s}");
                if saves_s < PAYS_TIMES * took_s {
                    unpaid_s += took_s;
                }
                passed_s = 0.25_f64.max(rest_s);
                elapsed_s += passed_s;
                prop_assert!(unpaid_s <= 0.0125 * elapsed_s + first_s, "{unpaid_s} of {elapsed_s}");
            }
        }

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

//! Calibration of predicted savings: what share of the savings that were predicted for executed plans came true, by kind
//! of plan.
//!
//! A prediction can be wrong in one direction. Where all sites use all of their processor time, for example, a price follows
//! the site with the most load, the samples of a few seconds tell the loads of sites to some percent only, and every decision
//! finds a plan that seems to even them out. Each such plan is harmless, and none saves anything. So the saving that is
//! predicted for a plan counts only to the share that came true for executed plans of its kind.
//!
//! With the predicted saving p and the measured saving m of a plan, as logarithms of the ratio of the latencies before and
//! after, the share is the slope of m over p: a regression through the origin, in which each plan counts by the inverse of
//! its squared error, as if a plan of slope 1 had been seen before any other (ridge regression). The evidence is halved in
//! each [`HALF_LIFE_MS`], so that a kind of plan that did not pay is tried again.
//!
//! Large plans, redesigns, are not calibrated: there are few of them, and they have a large least saving of their own.
//!
//! Invariants: a share is between 0 and 1, and 1 without evidence. Evidence is bounded by [`EVIDENCE_MAX`].

use super::considered::LARGE_ABOVE;
use super::guardrails::Watched;
use super::layout::{Key, Operator};

/// Time in which the weight of an executed plan is halved, in ms.
const HALF_LIFE_MS: f64 = 60_000.0;
/// Weight of the assumption that predicted savings come true: the inverse of the squared standard error of the share.
const PRIOR: f64 = 4.0;
/// Limit on the weight of all executed plans of a kind: after it a plan of this kind is tried again within a few half-lives.
const EVIDENCE_MAX: f64 = 60.0;
/// Standard error of a measured saving, in addition to that of the latencies: the speed of a machine and of its clients
/// drifts.
const DRIFT: f64 = 0.05;
/// Largest measured or predicted saving, as a logarithm: one measurement beyond it would outweigh all others.
const SAVING_MAX: f64 = 1.0;

/// The kinds of plans whose savings are calibrated separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanKind {
    /// Nothing but removals of replicas.
    Removal,
    /// Nothing but splits and merges, which move no load.
    Bounds,
    /// A few operators that move or copy partitions.
    Small,
}

/// Number of kinds of plans.
const KINDS: usize = 3;

impl PlanKind {
    /// Returns the kind of a plan with these operators; `None` for a large plan, which is not calibrated.
    #[must_use]
    pub fn of<K>(operators: &[Operator<K>]) -> Option<Self> {
        let all = |is: fn(&Operator<K>) -> bool| operators.iter().all(is);
        Some(if all(|one| matches!(one, Operator::Split(_) | Operator::Merge(_))) {
            Self::Bounds
        } else if all(|one| matches!(one, Operator::RemoveReplica(..))) {
            Self::Removal
        } else if operators.len() > LARGE_ABOVE {
            return None;
        } else {
            Self::Small
        })
    }
}

/// For each kind of plan, the share (0..1) of its predicted saving that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RealizedShares([f64; KINDS]);

impl Default for RealizedShares {
    fn default() -> Self {
        Self([1.0; KINDS])
    }
}

impl RealizedShares {
    /// Returns the share (0..1) of the predicted saving that counts for a plan with these operators.
    #[must_use]
    pub fn of<K>(&self, operators: &[Operator<K>]) -> f64 {
        PlanKind::of(operators).map_or(1.0, |kind| self.0[kind as usize])
    }
}

/// The evidence of one kind of plan: weighted sums over its executed plans.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// Sum of the squared predicted savings.
    predicted: f64,
    /// Sum of the products of predicted and measured saving.
    realized: f64,
}

/// What share of the savings that were predicted for executed plans came true.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calibration {
    kinds: [Evidence; KINDS],
    /// Time to which the evidence is decayed, in ms of the planner's clock.
    at_ms: u64,
}

impl Calibration {
    /// Adds an executed plan whose effect on the latency was measured.
    pub fn add<K: Key>(&mut self, watched: &Watched<K>, now_ms: u64) {
        let factor = self.decay(now_ms);
        self.at_ms = self.at_ms.max(now_ms);
        for of in &mut self.kinds {
            of.predicted *= factor;
            of.realized *= factor;
        }
        let Some(kind) = PlanKind::of(&watched.operators) else { return };
        let (before, Some(after)) = (watched.before.latency, watched.after) else { return };
        let (from_us, to_us) = watched.before.predicted_us;
        if [before.mean_us, after.mean_us, from_us, to_us].iter().any(|us| *us <= 0.0) {
            return;
        }
        let saving = |from: f64, to: f64| (from / to).ln().clamp(-SAVING_MAX, SAVING_MAX);
        let (predicted, measured) = (saving(from_us, to_us), saving(before.mean_us, after.mean_us));
        let chance = (before.error_us / before.mean_us).hypot(after.error_us / after.mean_us);
        let weight = 1.0 / (chance.powi(2) + DRIFT.powi(2));
        let of = &mut self.kinds[kind as usize];
        of.predicted += weight * predicted.powi(2);
        of.realized += weight * predicted * measured;
        let over = (of.predicted / EVIDENCE_MAX).max(1.0);
        of.predicted /= over;
        of.realized /= over;
    }

    /// Returns the shares of predicted savings that came true.
    #[must_use]
    pub fn shares(&self, now_ms: u64) -> RealizedShares {
        let factor = self.decay(now_ms);
        let share = |of: Evidence| (factor * of.realized + PRIOR) / (factor * of.predicted + PRIOR);
        RealizedShares(self.kinds.map(|of| share(of).clamp(0.0, 1.0)))
    }

    /// Returns the factor by which the evidence has decayed since it was last decayed.
    fn decay(&self, now_ms: u64) -> f64 {
        0.5_f64.powf(now_ms.saturating_sub(self.at_ms) as f64 / HALF_LIFE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::guardrails::LatencyBaseline;
    use crate::store::regimes::Latency;

    /// Returns a removal of a replica that was predicted to save 10 %, and saved `saved` (0..1).
    fn removal(saved: f64) -> Watched<String> {
        let latency = |mean_us: f64| Latency { mean_us, error_us: 0.02 * mean_us };
        let before = LatencyBaseline {
            regime: 3,
            latency: latency(4_000.0),
            predicted_us: (5_000.0, 4_500.0),
            others: Vec::new(),
        };
        Watched {
            operators: vec![Operator::RemoveReplica("user:4711".to_owned(), 2)],
            inverse: vec![Operator::AddReplica("user:4711".to_owned(), 2)],
            done_ms: 0,
            before,
            after: Some(latency(4_000.0 * (1.0 - saved))),
            suspected_ms: None,
        }
    }

    fn of_removals(calibration: &Calibration, now_ms: u64) -> f64 {
        calibration.shares(now_ms).of(&removal(0.0).operators)
    }

    #[test]
    fn savings_that_do_not_come_true_count_less_until_they_are_forgotten() {
        let mut calibration = Calibration::default();
        assert_eq!(of_removals(&calibration, 0), 1.0);
        for n in 0..40 {
            calibration.add(&removal(0.0), n * 500);
        }
        let share = of_removals(&calibration, 20_000);
        assert!(share < 0.1, "{share}");
        let moved = [Operator::Remaster("user:4711".to_owned(), 2)];
        assert_eq!(calibration.shares(20_000).of(&moved), 1.0, "other kinds count as before");
        // However many there were, such a plan is tried again some minutes later.
        let later = of_removals(&calibration, 20_000 + 5 * 60_000);
        assert!(later > 0.6, "{later}");
    }

    #[test]
    fn savings_that_come_true_count_in_full_and_harm_counts_nothing() {
        let mut calibration = Calibration::default();
        for n in 0..40 {
            calibration.add(&removal(0.1), n * 500);
        }
        assert!((of_removals(&calibration, 20_000) - 1.0).abs() < 1e-9);
        for n in 0..80 {
            calibration.add(&removal(-0.2), 20_000 + n * 500);
        }
        assert_eq!(of_removals(&calibration, 60_000), 0.0);
    }

    #[test]
    fn one_measurement_does_not_outweigh_the_expectation() {
        let mut calibration = Calibration::default();
        calibration.add(&removal(0.0), 0);
        let share = of_removals(&calibration, 0);
        assert!((0.3..0.9).contains(&share), "{share}");
    }
}

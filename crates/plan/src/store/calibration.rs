//! Calibration of predictions by kind of plan: what share of the savings that were predicted for executed plans came true,
//! and how long their operators took.
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
//! The saving of a large plan, a redesign, counts in full: there are few of them, and they have a large least saving of their own.
//! What is expected of it ([`RealizedShares::expected_ratio`]) follows from earlier ones all the same.
//!
//! Around the regression lies the interval of a prediction. It follows from how far the measured savings of the same kind lay
//! from the line, as if one had been seen at a distance of [`SPREAD`] before, and from the error of the line's slope, by which
//! large savings are less certain than small ones.
//!
//! The time of operators is predicted from the queues at the sites, and consists of waits for most of its length, which vary by
//! more than the queues explain. Its interval follows from the ratios of measured to predicted times of earlier plans: their
//! mean logarithm and their spread around it, as if a few plans had lain [`TIME_SPREAD`] off before any other.
//!
//! Invariants: a share that counts is between 0 and 1, and 1 without evidence; the slope is at most [`SLOPE_MAX`]. Evidence is bounded by [`EVIDENCE_MAX`].

use super::considered::{Estimate, LARGE_ABOVE};
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
/// Standard deviation of a measured saving around the expected one, without evidence.
const SPREAD: f64 = 0.25;
/// Weight of that assumption: one measured plan.
const SPREAD_WEIGHT: f64 = 1.0 / (DRIFT * DRIFT);
/// Largest slope of measured over predicted savings. What a plan saves beyond its prediction does not count in decisions.
const SLOPE_MAX: f64 = 2.0;
/// Largest measured or predicted saving, as a logarithm: one measurement beyond it would outweigh all others.
const SAVING_MAX: f64 = 1.0;

/// Standard deviation of the logarithm of an operator's measured time around the predicted one, without evidence.
const TIME_SPREAD: f64 = 0.7;
/// Number of plans as which that assumption counts.
const TIME_PRIOR: f64 = 2.0;
/// Limit on the number of plans whose times count.
const TIMES_MAX: f64 = 40.0;
/// Largest deviation of a time that counts, as a logarithm.
const TIME_RATIO_MAX: f64 = 4.0;

/// The kinds of plans whose predictions are calibrated separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanKind {
    /// Nothing but removals of replicas.
    Removal,
    /// Nothing but splits and merges, which move no load.
    Bounds,
    /// A few operators that move or copy partitions.
    Small,
    /// More operators, as most redesigns have: their predicted saving counts in full.
    Large,
}

/// Number of kinds of plans.
const KINDS: usize = 4;

impl PlanKind {
    /// Returns the kind of a plan with these operators.
    #[must_use]
    pub fn of<K>(operators: &[Operator<K>]) -> Self {
        let all = |is: fn(&Operator<K>) -> bool| operators.iter().all(is);
        if all(|one| matches!(one, Operator::Split(_) | Operator::Merge(_))) {
            Self::Bounds
        } else if all(|one| matches!(one, Operator::RemoveReplica(..))) {
            Self::Removal
        } else if operators.len() > LARGE_ABOVE {
            Self::Large
        } else {
            Self::Small
        }
    }
}

/// For each kind of plan, the share of its predicted saving that is expected to come true.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RealizedShares([Expected; KINDS]);

/// What is expected of plans of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Expected {
    /// The share of the predicted saving, as a logarithm of the ratio of two latencies, that comes true: from 0 up to
    /// [`SLOPE_MAX`].
    slope: f64,
    /// Standard error of the slope.
    slope_error: f64,
    /// Standard deviation of the measured saving around what the slope tells.
    spread: f64,
    /// Mean and standard deviation of the logarithm of measured over predicted times of the plan's operators.
    time: (f64, f64),
}

impl Default for RealizedShares {
    fn default() -> Self {
        Self([Evidence::default().expected(); KINDS])
    }
}

impl RealizedShares {
    /// Returns the share (0..1) of the predicted saving that counts in decisions for a plan with these operators.
    #[must_use]
    pub fn of<K>(&self, operators: &[Operator<K>]) -> f64 {
        match PlanKind::of(operators) {
            PlanKind::Large => 1.0,
            kind => self.0[kind as usize].slope.min(1.0),
        }
    }

    /// Returns the ratio of the latencies after and before that is expected of a plan with these operators, for which
    /// `predicted` was predicted.
    #[must_use]
    pub fn expected_ratio<K>(&self, operators: &[Operator<K>], predicted: f64) -> Estimate {
        let Expected { slope, slope_error, spread, .. } = self.0[PlanKind::of(operators) as usize];
        let saving = predicted.ln().clamp(-SAVING_MAX, SAVING_MAX);
        let log_error = spread.hypot(slope_error * saving);
        Estimate { expected: predicted.powf(slope), log_error }
    }

    /// Returns the time that is expected of a plan's operators together, for which the cost functions predict
    /// `predicted_us`, in µs.
    #[must_use]
    pub fn expected_time<K>(&self, operators: &[Operator<K>], predicted_us: f64) -> Estimate {
        let (mean, spread) = self.0[PlanKind::of(operators) as usize].time;
        Estimate { expected: predicted_us * mean.exp(), log_error: spread }
    }
}

/// The evidence of one kind of plan: weighted sums over its executed plans.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// Sum of the squared predicted savings.
    predicted: f64,
    /// Sum of the products of predicted and measured saving.
    realized: f64,
    /// Sum of the squared measured savings.
    measured: f64,
    /// Sum of the weights.
    weight: f64,
    /// Of the logarithms of measured over predicted times of operators: their number, sum, and sum of squares.
    times: [f64; 3],
}

impl Evidence {
    fn times(self, factor: f64) -> Self {
        let Self { predicted, realized, measured, weight, times } = self;
        Self {
            predicted: factor * predicted,
            realized: factor * realized,
            measured: factor * measured,
            weight: factor * weight,
            times: times.map(|of| factor * of),
        }
    }

    fn expected(self) -> Expected {
        let slope = ((self.realized + PRIOR) / (self.predicted + PRIOR)).clamp(0.0, SLOPE_MAX);
        let squares = self.measured - 2.0 * slope * self.realized + slope.powi(2) * self.predicted;
        let squares = squares.max(0.0) + SPREAD_WEIGHT * SPREAD.powi(2);
        Expected {
            slope,
            slope_error: (self.predicted + PRIOR).powf(-0.5),
            spread: (squares / (self.weight + SPREAD_WEIGHT)).sqrt(),
            time: self.expected_time(),
        }
    }

    /// Returns the mean and the standard deviation of the logarithm of measured over predicted times; the error of the mean is
    /// in the deviation.
    fn expected_time(self) -> (f64, f64) {
        let [count, sum, squares] = self.times;
        let all = count + TIME_PRIOR;
        let mean = sum / all;
        let squares = squares + TIME_PRIOR * TIME_SPREAD.powi(2);
        let variance = (squares / all - mean * mean).max(0.0);
        (mean, (variance * (1.0 + 1.0 / all)).sqrt())
    }
}

/// What came true of what was predicted for executed plans.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calibration {
    kinds: [Evidence; KINDS],
    /// Time to which the evidence is decayed, in ms of the planner's clock.
    at_ms: u64,
}

impl Calibration {
    /// Adds an executed plan whose effect on the latency was measured.
    pub fn add<K: Key>(&mut self, watched: &Watched<K>, now_ms: u64) {
        self.forget(now_ms);
        let kind = PlanKind::of(&watched.operators);
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
        of.measured += weight * measured.powi(2);
        of.weight += weight;
        let factor = (EVIDENCE_MAX / of.predicted.max(f64::MIN_POSITIVE)).min(1.0);
        *of = Evidence { times: of.times, ..of.times(factor) };
    }

    /// Adds an executed plan whose operators took `took_us` together, where the cost functions predicted `predicted_us`.
    pub fn add_time<K>(
        &mut self,
        operators: &[Operator<K>],
        predicted_us: f64,
        took_us: f64,
        now_ms: u64,
    ) {
        self.forget(now_ms);
        if predicted_us <= 0.0 || took_us <= 0.0 {
            return;
        }
        let ratio = (took_us / predicted_us).ln().clamp(-TIME_RATIO_MAX, TIME_RATIO_MAX);
        let of = &mut self.kinds[PlanKind::of(operators) as usize].times;
        *of = [of[0] + 1.0, of[1] + ratio, of[2] + ratio * ratio];
        *of = of.map(|sum| sum * (TIMES_MAX / of[0]).min(1.0));
    }

    /// Lets the evidence decay until now.
    fn forget(&mut self, now_ms: u64) {
        let factor = self.decay(now_ms);
        self.at_ms = self.at_ms.max(now_ms);
        self.kinds = self.kinds.map(|of| of.times(factor));
    }

    /// Returns the shares of predicted savings that came true.
    #[must_use]
    pub fn shares(&self, now_ms: u64) -> RealizedShares {
        let factor = self.decay(now_ms);
        RealizedShares(self.kinds.map(|of| of.times(factor).expected()))
    }

    /// Returns the factor by which the evidence has decayed since it was last decayed.
    fn decay(&self, now_ms: u64) -> f64 {
        0.5_f64.powf(now_ms.saturating_sub(self.at_ms) as f64 / HALF_LIFE_MS)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

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
    fn the_spread_is_that_of_the_measured_savings() {
        let error = |saved: [f64; 2]| {
            let mut calibration = Calibration::default();
            for n in 0..60 {
                calibration.add(&removal(saved[n % 2]), n as u64 * 500);
            }
            calibration.shares(30_000).expected_ratio(&removal(0.0).operators, 1.0).log_error
        };
        let (steady, uneven) = (error([0.1, 0.1]), error([0.3, -0.1]));
        assert!(steady < 0.08, "{steady}");
        // The logarithms of 0.7 and 1.1 lie 0.23 from their mean.
        assert!((uneven - 0.23).abs() < 0.04, "{uneven}");
    }

    #[test]
    fn large_savings_are_less_certain_and_may_exceed_what_was_predicted() {
        let unknown = RealizedShares::default();
        let operators = removal(0.0).operators;
        let at_once = Estimate { expected: 1.0, log_error: SPREAD };
        assert_eq!(unknown.expected_ratio(&operators, 1.0), at_once);
        let Estimate { expected: ratio, log_error: error } =
            unknown.expected_ratio(&operators, 0.5);
        assert_eq!(ratio, 0.5);
        assert!((error - SPREAD.hypot(0.5 * 2.0_f64.ln())).abs() < 1e-9, "{error}");
        // Plans that were predicted to save 10 % saved 19 %.
        let mut calibration = Calibration::default();
        for n in 0..60 {
            calibration.add(&removal(0.19), n * 500);
        }
        let shares = calibration.shares(30_000);
        let Estimate { expected: ratio, log_error: error } = shares.expected_ratio(&operators, 0.9);
        assert!((ratio - 0.81).abs() < 0.04 && error < 0.1, "{ratio}, {error}");
        assert_eq!(shares.of(&operators), 1.0, "decisions count no more than was predicted");
    }

    #[test]
    fn large_plans_count_in_full_and_are_expected_to_save_what_others_did() {
        let at = |n: usize| Operator::Remaster(format!("user:{n:04}"), 2);
        let redesign = Watched { operators: (0..100).map(at).collect(), ..removal(0.0) };
        let mut calibration = Calibration::default();
        for n in 0..20 {
            calibration.add(&redesign, n * 2_000);
        }
        let shares = calibration.shares(40_000);
        assert_eq!(shares.of(&redesign.operators), 1.0);
        let ratio = shares.expected_ratio(&redesign.operators, 0.5).expected;
        assert!(ratio > 0.87, "{ratio} of {shares:?}");
    }

    #[test]
    fn one_measurement_does_not_outweigh_the_expectation() {
        let mut calibration = Calibration::default();
        calibration.add(&removal(0.0), 0);
        let share = of_removals(&calibration, 0);
        assert!((0.3..0.9).contains(&share), "{share}");
    }
    #[test]
    fn times_of_operators_are_expected_as_earlier_ones_were() {
        let operators = removal(0.0).operators;
        let unknown = RealizedShares::default().expected_time(&operators, 900.0);
        // From a quarter to four times as long.
        assert_eq!(unknown.expected, 900.0);
        assert!((0.8..0.9).contains(&unknown.log_error), "{unknown:?}");
        // Operators take three times as long as the cost functions say, within a third.
        let mut dice = StdRng::seed_from_u64(7);
        let mut calibration = Calibration::default();
        let (mut inside, mut all) = (0, 0);
        for n in 0..400 {
            let took_us = 2_700.0 * dice.random_range(-0.3..0.3_f64).exp();
            let shares = calibration.shares(n * 200);
            let Estimate { expected, log_error } = shares.expected_time(&operators, 900.0);
            if n >= 20 {
                all += 1;
                inside += u32::from((took_us / expected).ln().abs() <= 1.645 * log_error);
            }
            calibration.add_time(&operators, 900.0, took_us, n * 200);
        }
        assert!(inside * 10 >= all * 9, "{inside} of {all}");
        let Estimate { expected, log_error } =
            calibration.shares(80_000).expected_time(&operators, 900.0);
        assert!((2_300.0..3_000.0).contains(&expected), "{expected}");
        assert!(log_error < 0.45, "{log_error}");
        // Savings were not measured, and are expected as before.
        assert_eq!(calibration.shares(80_000).of(&operators), 1.0);
        let moved = [Operator::Remaster("user:4711".to_owned(), 2)];
        assert_eq!(calibration.shares(80_000).expected_time(&moved, 900.0), unknown);
    }
}

//! The speed of a job and its expected end: a smoothed rate, and an interval of the time that is left if the rate allows one.
//!
//! The rate is an average over the recent past whose weights halve every half-life. Numerator and denominator are
//! smoothed alike, so that the rate is right from the first interval on and a stall lowers it at once. There is no
//! estimate before enough was observed, if the total is unknown or already exceeded, or after a long stall.
//!
//! The time that is left follows from the mean rate of what was observed since the counter first grew, or, as far as chance does not explain
//! its difference, of the second half of that. Its 90 % interval follows from
//! - how much the rates of equal windows differ: a mean over few windows, past or future, is uncertain;
//! - how much the second half differs from the whole, as far as chance does not explain it: a rate that has changed may change again;
//! - [`DRIFT`]: rates change also where they were steady so far, the more the longer the future is relative to the past.

use crate::prediction::Interval;

/// Measures the rate of a counter, such as the documents that a job has processed. The caller passes the times, in
/// milliseconds since any fixed point.
#[derive(Clone, Debug)]
pub struct Meter {
    half_life_ms: f64,
    last: Option<(u64, u64)>,
    first_ms: u64,
    last_change_ms: u64,
    amount: f64,
    time_ms: f64,
    /// Observations in equal distances of time, as time and counter: at most [`MARKS_MAX`].
    marks: Vec<(u64, u64)>,
    /// Least distance of two marks, in milliseconds.
    mark_ms: u64,
}

/// Limit on the number of marks. When it is reached, every other one is dropped.
const MARKS_MAX: usize = 64;
/// Distance of marks at the start, in milliseconds.
const MARK_MS: u64 = 250;
/// Number of windows into which the past is divided.
const WINDOWS: usize = 12;
/// Least number of marks for an interval.
const MARKS_MIN: usize = 5;
/// Standard deviation of the logarithm of a rate over a future as long as the past, beyond what was seen.
const DRIFT: f64 = 0.15;
/// Factor by which the variance of a mean over windows exceeds that of independent windows.
const CORRELATION: f64 = 2.0;
/// Quantile of the standard normal distribution for a 90 % interval.
const NORMAL_90: f64 = 1.645;

/// Minimum time between the first and the last observation before there is a rate, in milliseconds.
const OBSERVED_MS_MIN: u64 = 1_000;
/// Number of half-lives in which the counter did not grow, after which its rate no longer predicts the future.
const STALLED_HALF_LIVES: f64 = 4.0;
/// Longest estimate that is returned, in milliseconds: a hundred days.
const ETA_MS_MAX: f64 = 100.0 * 24.0 * 3_600_000.0;

impl Meter {
    /// Returns a meter without observations, in whose average the weights halve every `half_life_ms` milliseconds.
    ///
    /// # Panics
    ///
    /// Panics if the half-life is zero.
    pub fn new(half_life_ms: u64) -> Self {
        assert!(half_life_ms > 0, "a half-life lasts");
        Self {
            half_life_ms: half_life_ms as f64,
            last: None,
            first_ms: 0,
            last_change_ms: 0,
            amount: 0.0,
            time_ms: 0.0,
            marks: Vec::new(),
            mark_ms: MARK_MS,
        }
    }

    /// Records that the counter had the value `done` at the time `now_ms`. A value lower than the last one restarts
    /// the measurement.
    pub fn observe(&mut self, now_ms: u64, done: u64) {
        match self.last {
            Some((_, before)) if done < before => *self = Self::new(self.half_life_ms as u64),
            Some((at_ms, _)) if now_ms <= at_ms => return,
            Some((at_ms, before)) => {
                let passed_ms = (now_ms - at_ms) as f64;
                let kept = (-passed_ms / self.half_life_ms).exp2();
                self.amount = self.amount * kept + (done - before) as f64;
                self.time_ms = self.time_ms * kept + passed_ms;
                if done > before {
                    self.last_change_ms = now_ms;
                }
            }
            None => {}
        }
        if self.last.is_none() {
            (self.first_ms, self.last_change_ms) = (now_ms, now_ms);
        }
        self.last = Some((now_ms, done));
        if self.marks.last().is_none_or(|(at_ms, _)| now_ms - at_ms >= self.mark_ms) {
            self.marks.push((now_ms, done));
            if self.marks.len() == MARKS_MAX {
                let mut is_kept = false;
                self.marks.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
                self.mark_ms *= 2;
            }
        }
    }

    /// Returns the smoothed growth of the counter per second; `None` before the minimum time of observation.
    pub fn rate_s(&self) -> Option<f64> {
        let (at_ms, _) = self.last?;
        let seen = at_ms - self.first_ms >= OBSERVED_MS_MIN;
        seen.then(|| self.amount / self.time_ms * 1_000.0)
    }

    /// Returns the time from the last observation until the counter reaches `total`, in milliseconds, with its 90 % interval;
    /// `None` if it cannot be estimated, or if the total is reached or exceeded.
    pub fn left_ms(&self, total: Option<u64>) -> Option<Interval> {
        let ((at_ms, done), total) = (self.last?, total?);
        let left = total.checked_sub(done).filter(|left| *left > 0)? as f64;
        let stalled = (at_ms - self.last_change_ms) as f64 > STALLED_HALF_LIVES * self.half_life_ms;
        // Before the counter first grows, work is only begun: that time says nothing about its rate.
        let begun = self.marks.iter().take_while(|(_, done)| *done == self.marks[0].1).count();
        let seen = &self.marks[begun.saturating_sub(1)..];
        if stalled || at_ms - self.first_ms < OBSERVED_MS_MIN || seen.len() < MARKS_MIN {
            return None;
        }
        let mut marks = seen.to_vec();
        marks.push((at_ms, done));
        let rate = |from: (u64, u64), to: (u64, u64)| {
            (to.0 > from.0).then(|| (to.1 - from.1) as f64 / (to.0 - from.0) as f64)
        };
        let (first, half, last) = (marks[0], marks[marks.len() / 2], (at_ms, done));
        let (whole, recent) = (rate(first, last)?, rate(half, last)?);
        if whole <= 0.0 || recent <= 0.0 {
            return None;
        }
        // The last window may be shorter than the others: it is left out.
        let step = (seen.len() - 1).div_ceil(WINDOWS);
        let ends: Vec<(u64, u64)> = seen.iter().copied().step_by(step).collect();
        let rates: Vec<f64> = ends.windows(2).filter_map(|two| rate(two[0], two[1])).collect();
        let windows = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / windows;
        let squares = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
        // With few windows, their spread is itself uncertain.
        let spread = squares / (windows - 1.0).max(1.0) / mean.powi(2) * (1.0 + 2.0 / windows);
        // Of a difference between the second half and the whole, that part counts by which chance does not explain it.
        let change = (recent / whole).ln().powi(2);
        let by_chance = CORRELATION * spread / windows;
        let weight = if change > 0.0 { change / (change + by_chance) } else { 0.0 };
        let expected_ms = left / (whole * (recent / whole).powf(weight));
        if expected_ms > ETA_MS_MAX {
            return None;
        }
        let (passed_ms, window_ms) = ((at_ms - first.0) as f64, step as f64 * self.mark_ms as f64);
        let future = (expected_ms / window_ms).max(1.0);
        let chance = CORRELATION * spread * (2.0 / windows + 1.0 / future);
        let drift = DRIFT.powi(2) * (expected_ms / passed_ms).min(1.0);
        let factor = (NORMAL_90 * (chance + weight * change + drift).sqrt()).exp();
        Some(Interval::within(expected_ms, factor))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn steady(rate_s: u64, seconds: u64) -> Meter {
        let mut meter = Meter::new(5_000);
        (0..=seconds).for_each(|second| meter.observe(second * 1_000, second * rate_s));
        meter
    }

    proptest! {
        #[test]
        fn a_steady_rate_is_found_exactly(rate_s in 1..1_000_000_u64, seconds in 1..100_u64) {
            let found = steady(rate_s, seconds).rate_s().unwrap();
            prop_assert!((found - rate_s as f64).abs() < 1e-6 * rate_s as f64, "{found}");
        }

        #[test]
        fn the_rate_lies_between_the_slowest_and_the_fastest(
            steps in proptest::collection::vec((1..5_000_u64, 0..10_000_u64), 1..50)
        ) {
            let mut meter = Meter::new(5_000);
            let (mut now_ms, mut done) = (0, 0);
            meter.observe(now_ms, done);
            let rates = || steps.iter().map(|&(ms, amount)| amount as f64 / ms as f64 * 1_000.0);
            for &(passed_ms, amount) in &steps {
                (now_ms, done) = (now_ms + passed_ms, done + amount);
                meter.observe(now_ms, done);
            }
            if let Some(rate) = meter.rate_s() {
                let (low, high) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
                prop_assert!(rate >= low - 1e-6 && rate <= high * (1.0 + 1e-9) + 1e-6);
            }
        }
    }

    #[test]
    fn at_a_steady_rate_the_estimate_is_what_remains_by_the_rate() {
        let left = steady(100, 10).left_ms(Some(3_000)).unwrap();
        assert!((left.expected - 20_000.0).abs() < 1e-6, "{left:?}");
        assert!(left.low > 14_000.0 && left.high < 27_000.0, "{left:?}");
    }

    #[test]
    fn there_is_no_estimate_where_it_cannot_be_known() {
        assert_eq!(Meter::new(5_000).left_ms(Some(10)), None, "nothing seen");
        assert_eq!(steady(100, 10).left_ms(None), None, "no total");
        assert_eq!(steady(100, 10).left_ms(Some(999)), None, "more done than there is");
        assert_eq!(steady(100, 10).left_ms(Some(1_000)), None, "nothing left");
        assert_eq!(steady(0, 10).left_ms(Some(10)), None, "nothing moves");
        assert_eq!(steady(1, 10).left_ms(Some(u64::MAX)), None, "beyond any use");
        let mut early = Meter::new(5_000);
        early.observe(0, 0);
        early.observe(999, 50);
        assert_eq!(early.left_ms(Some(100)), None, "too early");
    }

    #[test]
    fn a_long_stall_ends_the_estimate_and_movement_brings_it_back() {
        let mut meter = steady(100, 10);
        (11..=40).for_each(|second| meter.observe(second * 1_000, 1_000));
        assert_eq!(meter.left_ms(Some(2_000)), None);
        meter.observe(41_000, 1_100);
        assert!(meter.left_ms(Some(2_000)).is_some());
    }

    /// How often the interval contains the time that was left, from a tenth of the way on, for many jobs whose rates are
    /// random. The logarithm of a rate returns to its mean within about `memory_s` seconds, and has the standard deviation
    /// `deviation`.
    fn coverage(deviation: f64, memory_s: f64, lasts_s: f64) -> f64 {
        const STEP_MS: u64 = 250;
        let mut dice = StdRng::seed_from_u64(8_080);
        let (mut inside, mut all) = (0, 0);
        for _ in 0..200 {
            let keeps = (-0.25 / memory_s).exp();
            let mut normal = || (0..12).map(|_| dice.random::<f64>()).sum::<f64>() - 6.0;
            let mut log_rate = deviation * normal();
            let total = (lasts_s * 10e6) as u64;
            let (mut meter, mut now_ms, mut done) = (Meter::new(5_000), 0, 0_u64);
            let mut told = Vec::new();
            while done < total {
                meter.observe(now_ms, done);
                if done * 10 >= total {
                    told.extend(meter.left_ms(Some(total)).map(|left| (now_ms, left)));
                }
                log_rate = keeps * log_rate + (1.0 - keeps * keeps).sqrt() * deviation * normal();
                done += (10e6 * log_rate.exp() * 0.25) as u64;
                now_ms += STEP_MS;
            }
            all += told.len();
            let contains =
                |(at_ms, left): &&(u64, Interval)| left.contains((now_ms - at_ms) as f64);
            inside += told.iter().filter(contains).count();
        }
        f64::from(inside as u32) / f64::from(all as u32)
    }

    #[test]
    fn intervals_contain_the_end_nine_times_of_ten() {
        for (deviation, memory_s, lasts_s) in [
            (0.05, 1.0, 20.0),
            (0.3, 0.5, 20.0),
            (0.3, 5.0, 60.0),
            (0.3, 30.0, 120.0),
            (0.5, 2.0, 300.0),
        ] {
            let coverage = coverage(deviation, memory_s, lasts_s);
            assert!(coverage >= 0.8, "{deviation} {memory_s} s {lasts_s} s: {coverage}");
        }
    }
}

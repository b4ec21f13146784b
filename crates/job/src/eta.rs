//! The speed of a job and its expected end: a smoothed rate, and an estimate if the rate allows one.
//!
//! The rate is an average over the recent past whose weights halve every half-life. Numerator and denominator are
//! smoothed alike, so that the rate is right from the first interval on and a stall lowers it at once. There is no
//! estimate before enough was observed, if the total is unknown or already exceeded, or after a long stall.

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
}

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
    }

    /// Returns the smoothed growth of the counter per second; `None` before the minimum time of observation.
    pub fn rate_s(&self) -> Option<f64> {
        let (at_ms, _) = self.last?;
        let seen = at_ms - self.first_ms >= OBSERVED_MS_MIN;
        seen.then(|| self.amount / self.time_ms * 1_000.0)
    }

    /// Returns the estimated time from the last observation until the counter reaches `total`, in milliseconds;
    /// `None` if it cannot be estimated, zero once the total is reached.
    pub fn eta_ms(&self, total: Option<u64>) -> Option<u64> {
        let ((at_ms, done), total) = (self.last?, total?);
        let remaining = match total.checked_sub(done) {
            Some(0) => return Some(0),
            Some(remaining) => remaining,
            // The counter exceeds the total, so the total is wrong.
            None => return None,
        };
        let stalled = (at_ms - self.last_change_ms) as f64 > STALLED_HALF_LIVES * self.half_life_ms;
        let rate_s = self.rate_s().filter(|rate_s| *rate_s > 0.0 && !stalled)?;
        let eta_ms = remaining as f64 / rate_s * 1_000.0;
        (eta_ms <= ETA_MS_MAX).then_some(eta_ms as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(steady(100, 10).eta_ms(Some(3_000)), Some(20_000));
    }

    #[test]
    fn there_is_no_estimate_where_it_cannot_be_known() {
        assert_eq!(Meter::new(5_000).eta_ms(Some(10)), None, "nothing seen");
        assert_eq!(steady(100, 10).eta_ms(None), None, "no total");
        assert_eq!(steady(100, 10).eta_ms(Some(999)), None, "more done than there is");
        assert_eq!(steady(0, 10).eta_ms(Some(10)), None, "nothing moves");
        assert_eq!(steady(1, 10).eta_ms(Some(u64::MAX)), None, "beyond any use");
        let mut early = Meter::new(5_000);
        early.observe(0, 0);
        early.observe(999, 50);
        assert_eq!(early.eta_ms(Some(100)), None, "too early");
    }

    #[test]
    fn a_long_stall_ends_the_estimate_and_movement_brings_it_back() {
        let mut meter = steady(100, 10);
        (11..=40).for_each(|second| meter.observe(second * 1_000, 1_000));
        assert_eq!(meter.eta_ms(Some(2_000)), None);
        meter.observe(41_000, 1_100);
        assert!(meter.eta_ms(Some(2_000)).is_some());
    }

    #[test]
    fn a_stall_lowers_the_rate_at_once() {
        let mut meter = steady(100, 10);
        let before = meter.rate_s().unwrap();
        meter.observe(12_000, 1_000);
        assert!(meter.rate_s().unwrap() < 0.9 * before);
    }

    #[test]
    fn what_is_done_is_done() {
        assert_eq!(steady(100, 10).eta_ms(Some(1_000)), Some(0));
    }
}

//! A token bucket as a pure function of time: the wait before an amount may pass.
//!
//! Requests take positions in one sequence of tokens, in the order in which they arrive. Tokens
//! accrue at the rate, and at most `burst` of them accumulate while there is no request. A request
//! may pass when as many tokens have accrued as its position requires. Two invariants follow:
//!
//! - by the time `t` at most `rate × t + burst` tokens have passed, however large a request is;
//! - every request passes after a finite time, even one larger than the burst, and even if the rate
//!   is changed while it waits (positions stay, only their time of passing changes).

const NANO: u128 = 1_000_000_000;

/// A token bucket, which limits a rate. Its times are nanoseconds since an epoch chosen by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    rate_s: u64,
    burst: u64,
    /// Tokens that have accrued since the bucket was created, in billionths, so that a rate in tokens per second times
    /// a time in nanoseconds is exact. `reserved`, the sum of all requests, has the same unit.
    accrued: u128,
    reserved: u128,
    at_ns: u64,
}

/// The position of a request in the sequence of tokens: the request may pass when [`Bucket::wait_ns`] returns zero for
/// this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u128);

impl Bucket {
    /// Creates a full bucket of `burst` tokens that accrues `rate_s` tokens per second from the time `now_ns` on.
    ///
    /// # Panics
    ///
    /// If the rate is zero: no request would ever pass.
    pub fn new(rate_s: u64, burst: u64, now_ns: u64) -> Self {
        assert!(rate_s > 0, "a bucket needs a rate");
        Self { rate_s, burst, accrued: u128::from(burst) * NANO, reserved: 0, at_ns: now_ns }
    }

    /// Takes the next position in the sequence of tokens, for a request of `amount` tokens that arrives at `now_ns`.
    pub fn reserve(&mut self, amount: u64, now_ns: u64) -> Position {
        self.advance(now_ns);
        self.reserved += u128::from(amount) * NANO;
        Position(self.reserved)
    }

    /// Returns the time, in nanoseconds from `now_ns`, until the request at this position may pass; zero if it may
    /// pass now.
    pub fn wait_ns(&mut self, position: Position, now_ns: u64) -> u64 {
        self.advance(now_ns);
        let missing = position.0.saturating_sub(self.accrued);
        let wait = missing.div_ceil(u128::from(self.rate_s));
        u64::try_from(wait).unwrap_or(u64::MAX)
    }

    /// Changes rate (tokens per second) and burst (tokens) from `now_ns` on, also for requests that already wait.
    ///
    /// # Panics
    ///
    /// If the rate is zero.
    pub fn set_rate(&mut self, rate_s: u64, burst: u64, now_ns: u64) {
        assert!(rate_s > 0, "a bucket needs a rate");
        self.advance(now_ns);
        (self.rate_s, self.burst) = (rate_s, burst);
        self.keep_burst();
    }

    /// Returns the rate at which tokens accrue, in tokens per second.
    pub fn rate_s(&self) -> u64 {
        self.rate_s
    }

    /// Accrues tokens up to `now_ns`. A time before the last one counts as the last one: time does not run backwards.
    fn advance(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        self.accrued += u128::from(self.rate_s) * u128::from(passed_ns);
        self.keep_burst();
    }

    fn keep_burst(&mut self) {
        self.accrued = self.accrued.min(self.reserved + u128::from(self.burst) * NANO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Requests `(gap_ns, amount)`, one after another, each waiting until it may pass: when it
    /// passed, and how much.
    fn pass(bucket: &mut Bucket, requests: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut now_ns = 0;
        let mut passed = Vec::new();
        for &(gap_ns, amount) in requests {
            now_ns += gap_ns;
            let position = bucket.reserve(amount, now_ns);
            now_ns += bucket.wait_ns(position, now_ns);
            assert_eq!(bucket.wait_ns(position, now_ns), 0, "waited and still may not pass");
            passed.push((now_ns, amount));
        }
        passed
    }

    fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0..3_000_000_000_u64, 0..5_000_u64), 1..60)
    }

    proptest! {
        #[test]
        fn never_more_than_rate_times_time_plus_burst(
            rate_s in 1..10_000_u64, burst in 0..2_000_u64, requests in requests()
        ) {
            let passed = pass(&mut Bucket::new(rate_s, burst, 0), &requests);
            // In every window from a passing (or the beginning) to a later passing.
            for from in 0..passed.len() {
                let start_ns = if from == 0 { 0 } else { passed[from - 1].0 };
                let mut sum = 0_u128;
                for &(at_ns, amount) in &passed[from..] {
                    sum += u128::from(amount) * NANO;
                    let most = u128::from(rate_s) * u128::from(at_ns - start_ns)
                        + u128::from(burst) * NANO;
                    // Rounding up to whole nanoseconds lets at most that fraction accrue early.
                    prop_assert!(sum <= most + u128::from(rate_s), "{sum} > {most}");
                }
            }
        }

        #[test]
        fn a_request_larger_than_the_burst_passes_in_the_time_it_takes_at_the_rate(
            rate_s in 1..10_000_u64, burst in 0..100_u64, amount in 101..1_000_000_u64
        ) {
            let mut bucket = Bucket::new(rate_s, burst, 0);
            let position = bucket.reserve(amount, 0);
            let exact = (u128::from(amount - burst) * NANO).div_ceil(u128::from(rate_s));
            prop_assert_eq!(u128::from(bucket.wait_ns(position, 0)), exact);
        }

        #[test]
        fn the_rate_is_reached_while_requests_wait(
            rate_s in 1..10_000_u64, amounts in proptest::collection::vec(1..1_000_u64, 1..60)
        ) {
            let requests: Vec<(u64, u64)> = amounts.iter().map(|&amount| (0, amount)).collect();
            let passed = pass(&mut Bucket::new(rate_s, 0, 0), &requests);
            let (end_ns, total) = (passed[passed.len() - 1].0, amounts.iter().sum::<u64>());
            let exact_ns = u128::from(total) * NANO / u128::from(rate_s);
            prop_assert!(u128::from(end_ns) <= exact_ns + requests.len() as u128);
        }
    }

    #[test]
    fn a_faster_rate_shortens_the_wait_of_those_who_wait() {
        let mut bucket = Bucket::new(10, 0, 0);
        let position = bucket.reserve(100, 0);
        assert_eq!(bucket.wait_ns(position, 0), 10_000_000_000);
        bucket.set_rate(100, 0, 5_000_000_000);
        assert_eq!(bucket.wait_ns(position, 5_000_000_000), 500_000_000);
    }

    #[test]
    fn idle_time_is_kept_only_up_to_the_burst() {
        let mut bucket = Bucket::new(10, 5, 0);
        let later_ns = 3_600_000_000_000;
        let position = bucket.reserve(15, later_ns);
        assert_eq!(bucket.wait_ns(position, later_ns), 1_000_000_000);
    }

    #[test]
    fn a_clock_that_steps_back_neither_adds_nor_takes() {
        let mut bucket = Bucket::new(10, 0, 1_000_000_000);
        let position = bucket.reserve(10, 0);
        assert_eq!(bucket.wait_ns(position, 500_000_000), 1_000_000_000);
        assert_eq!(bucket.wait_ns(position, 1_500_000_000), 500_000_000);
    }
}

//! The size of a batch of rate-limited work: small if replies are fast, larger if they are slow.
//!
//! Small batches reach servers at an even rate, and delay a client request after them only briefly.
//! But a worker waits for the reply to each batch: if replies are slow, because a machine is busy
//! or remote, a few workers with small batches never reach the rate, and pay for a round trip each
//! time. So a batch grows while no request has to wait for the rate, which shows that the rate is
//! not reached, and shrinks while one does.
//!
//! Invariant: a batch is the amount that passes in [`LEAST_NS`] to [`MOST_NS`] at the rate.

/// Size of a batch of rate-limited work, as the time that its amount takes at the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSize {
    ns: u64,
}

/// Lower bound of a batch's time at the rate, in nanoseconds: 10 ms, which clients do not notice.
pub const LEAST_NS: u64 = 10_000_000;
/// Upper bound of a batch's time at the rate, in nanoseconds: 100 ms, as much as a rate limit lets pass at once.
/// Larger batches would wait for the rate even if it is never reached.
pub const MOST_NS: u64 = 100_000_000;

impl Default for BatchSize {
    fn default() -> Self {
        Self { ns: LEAST_NS }
    }
}

impl BatchSize {
    /// Returns the number of units in one batch, if the rate is `rate_s` units per second.
    #[must_use]
    pub fn of(self, rate_s: u64) -> u64 {
        let amount = u128::from(rate_s) * u128::from(self.ns) / 1_000_000_000;
        u64::try_from(amount).unwrap_or(u64::MAX)
    }

    /// Returns the size of the next batch. `has_waited` is true if the last batch had to wait for the rate limit.
    ///
    /// The size grows by a quarter and shrinks by a sixty-fourth: of several workers that request
    /// at the same time, all but the first wait for each other, even if the rate is not reached.
    #[must_use]
    pub fn after(self, has_waited: bool) -> Self {
        let ns = if has_waited { self.ns - self.ns / 64 } else { self.ns + self.ns / 4 };
        Self { ns: ns.clamp(LEAST_NS, MOST_NS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::token_bucket::Bucket;
    use proptest::prelude::*;

    const RATE_S: u64 = 1_000_000;

    /// Workers that send a batch each and wait for its answer, for a simulated minute: the share of
    /// the rate that they reach in its second half, and the mean batch then.
    fn simulate(workers: u64, answer_ns: u64) -> (f64, u64) {
        let mut batch = BatchSize::default();
        let mut bucket = Bucket::new(RATE_S, RATE_S / 10, 0);
        let mut ready: Vec<u64> = (0..workers).collect();
        let (half_ns, end_ns) = (30_000_000_000, 60_000_000_000);
        let (mut sent, mut batch_ns, mut batches) = (0, 0, 0);
        loop {
            let (worker, &now_ns) = ready.iter().enumerate().min_by_key(|(_, at)| **at).unwrap();
            if now_ns >= end_ns {
                return (sent as f64 / (RATE_S as f64 * 30.0), batch_ns / batches);
            }
            let amount = batch.of(RATE_S);
            let position = bucket.reserve(amount, now_ns);
            let wait_ns = bucket.wait_ns(position, now_ns);
            batch = batch.after(wait_ns > 0);
            if now_ns >= half_ns {
                (sent, batch_ns, batches) = (sent + amount, batch_ns + batch.ns, batches + 1);
            }
            ready[worker] = now_ns + wait_ns + answer_ns;
        }
    }

    proptest! {
        #[test]
        fn the_rate_is_reached_where_some_batch_reaches_it(
            workers in 1..9_u64, percent_of_most in 0..=75_u64
        ) {
            let (reached, _) = simulate(workers, workers * MOST_NS / 100 * percent_of_most);
            prop_assert!((0.85..1.05).contains(&reached), "{}", reached);
        }

        #[test]
        fn it_is_no_longer_than_it_needs_to_be(workers in 1..9_u64, answer_ms in 1..2_000_u64) {
            let (_, batch_ns) = simulate(workers, answer_ms * 1_000_000);
            let needed_ns = (answer_ms * 1_000_000 / workers).clamp(LEAST_NS, MOST_NS);
            prop_assert!(batch_ns <= needed_ns / 4 * 5, "{} for {}", batch_ns, needed_ns);
        }
    }

    #[test]
    fn it_stays_within_its_bounds() {
        let grown = (0..100).fold(BatchSize::default(), |batch, _| batch.after(false));
        assert_eq!(grown.of(1_000_000), 100_000);
        let shrunk = (0..1_000).fold(grown, |batch, _| batch.after(true));
        assert_eq!(shrunk.of(1_000_000), 10_000);
        assert_eq!(grown.of(u64::MAX), u64::MAX / 10);
    }
}

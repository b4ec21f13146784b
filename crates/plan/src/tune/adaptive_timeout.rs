//! An adaptive timeout for replies, derived from the times of past replies.
//!
//! A busy machine replies late, but has not failed. So the timeout follows the replies: it is a multiple of the slowest
//! recent reply, within bounds. A reply that exceeds the timeout raises the next one.
//!
//! Invariant: a timeout is never below the minimum, nor above [`TIMEOUT_RATIO_MAX`] times the minimum.

use std::time::Duration;

/// Ratio of the timeout to the time of the slowest recent reply.
const SLOWEST_REPLY_RATIO: u32 = 3;
/// Maximum timeout, as a multiple of the minimum timeout.
pub const TIMEOUT_RATIO_MAX: u32 = 6;
/// Factor by which the time of the slowest recent reply decays with each quicker one, in tenths.
const DECAY_TENTHS: u32 = 9;

/// A timeout for replies that adapts to the times of past replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveTimeout {
    /// Minimum timeout, which applies until a reply is slow.
    least: Duration,
    /// Time of the slowest recent reply, decayed with each quicker one.
    slowest: Duration,
}

impl AdaptiveTimeout {
    /// Creates a timeout for which no reply was recorded so far; it is `least`, the minimum.
    #[must_use]
    pub fn new(least: Duration) -> Self {
        Self { least, slowest: Duration::ZERO }
    }

    /// Returns the time to wait for the next reply.
    #[must_use]
    pub fn limit(&self) -> Duration {
        (self.slowest * SLOWEST_REPLY_RATIO).clamp(self.least, self.least * TIMEOUT_RATIO_MAX)
    }

    /// Records a reply that arrived `took` after its request.
    pub fn record_reply(&mut self, took: Duration) {
        self.slowest =
            took.max(self.slowest / 10 * DECAY_TENTHS).min(self.least * TIMEOUT_RATIO_MAX);
    }

    /// Records that no reply came within the timeout, and raises it within its bounds. Returns true if the next
    /// timeout is longer.
    pub fn record_timeout(&mut self) -> bool {
        let limit = self.limit();
        self.slowest = limit;
        self.limit() > limit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAST: Duration = Duration::from_secs(20);

    #[test]
    fn a_limit_grows_with_what_answers_take_and_shrinks_again() {
        let mut timeout = AdaptiveTimeout::new(LEAST);
        assert_eq!(timeout.limit(), LEAST);
        timeout.record_reply(Duration::from_secs(2));
        assert_eq!(timeout.limit(), LEAST);
        timeout.record_reply(Duration::from_secs(15));
        assert_eq!(timeout.limit(), Duration::from_secs(45));
        for _ in 0..30 {
            timeout.record_reply(Duration::from_secs(1));
        }
        assert_eq!(timeout.limit(), LEAST);
    }

    #[test]
    fn an_answer_that_is_late_is_waited_for_longer_until_the_bound() {
        let mut timeout = AdaptiveTimeout::new(LEAST);
        assert!(timeout.record_timeout());
        assert_eq!(timeout.limit(), Duration::from_secs(60));
        assert!(timeout.record_timeout());
        assert_eq!(timeout.limit(), Duration::from_secs(120));
        assert!(!timeout.record_timeout());
        assert_eq!(timeout.limit(), Duration::from_secs(120));
    }

    proptest! {
        #[test]
        fn limits_keep_their_bounds(least_ms in 1..100_000_u64, took in prop::collection::vec(prop::option::of(0..10_000_000_u64), 0..40)) {
            let least = Duration::from_millis(least_ms);
            let mut timeout = AdaptiveTimeout::new(least);
            for took in took {
                match took {
                    Some(ms) => timeout.record_reply(Duration::from_millis(ms)),
                    None => drop(timeout.record_timeout()),
                }
                prop_assert!((least..=least * TIMEOUT_RATIO_MAX).contains(&timeout.limit()));
            }
        }
    }
}

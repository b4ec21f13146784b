//! Exponential backoff with jitter: pauses between attempts that grow up to a maximum, from random
//! numbers that the caller passes.
//!
//! The pause after attempt `n` lies in the upper half of `first × 2ⁿ⁻¹`, capped at a maximum:
//! callers that failed together do not retry together, and none retries at once.

/// A schedule of exponential backoff: the pauses between attempts of an operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Upper bound of the pause after the first failed attempt, in milliseconds.
    pub first_ms: u64,
    /// Upper bound of all pauses, in milliseconds.
    pub max_ms: u64,
}

impl Backoff {
    /// Returns the pause after failed attempt `attempt` (counted from 1), in milliseconds. `random` is a random
    /// number, uniform over all values of its type.
    pub fn pause_ms(&self, attempt: u32, random: u64) -> u64 {
        let longest = self.longest_ms(attempt);
        let shortest = longest.div_ceil(2);
        // The high half of the product maps `random` to 0..=span without a division's bias.
        let span = u128::from(longest - shortest) + 1;
        let spread = (u128::from(random) * span) >> 64;
        shortest + u64::try_from(spread).unwrap_or(0)
    }

    /// Returns the longest possible pause after failed attempt `attempt` (counted from 1), in milliseconds.
    pub fn longest_ms(&self, attempt: u32) -> u64 {
        let doublings = attempt.saturating_sub(1).min(63);
        let grown = u128::from(self.first_ms) << doublings;
        u64::try_from(grown).unwrap_or(u64::MAX).min(self.max_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pause_lies_in_the_upper_half_of_its_bound(
            first_ms in 0..100_000_u64, max_ms in 0..10_000_000_u64,
            attempt in 0..200_u32, random: u64
        ) {
            let backoff = Backoff { first_ms, max_ms };
            let (pause, longest) = (backoff.pause_ms(attempt, random), backoff.longest_ms(attempt));
            prop_assert!(pause <= longest && pause >= longest / 2, "{pause} of {longest}");
            prop_assert!(longest <= max_ms);
        }
    }

    #[test]
    fn pauses_double_until_the_maximum() {
        let backoff = Backoff { first_ms: 100, max_ms: 1_000 };
        let longest: Vec<u64> = (1..=6).map(|attempt| backoff.longest_ms(attempt)).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1_000, 1_000]);
    }

    #[test]
    fn randomness_reaches_both_ends() {
        let backoff = Backoff { first_ms: 100, max_ms: 100 };
        assert_eq!(backoff.pause_ms(1, 0), 50);
        assert_eq!(backoff.pause_ms(1, u64::MAX), 100);
    }
}

//! Pauses before a document that differed is compared again.

use std::time::Duration;

/// Rounds in which documents that differed are compared again, with growing pauses: each pause is twice the previous
/// one, up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of rounds in which a suspect is compared again.
    pub rounds: u32,
    /// Duration of the pause before the first round, in milliseconds.
    pub first_ms: u64,
    /// Duration of the longest pause, in milliseconds.
    pub pause_ms_max: u64,
}

impl Default for Retries {
    /// Returns eight rounds with about sixteen seconds of pauses in total.
    fn default() -> Self {
        Self { rounds: 8, first_ms: 100, pause_ms_max: 5_000 }
    }
}

impl Retries {
    /// Returns the pause before the round `round`, counted from 1, or `None` if there is no such round.
    #[must_use]
    pub fn pause(&self, round: u32) -> Option<Duration> {
        if round == 0 || round > self.rounds {
            return None;
        }
        let factor = 1u64.checked_shl(round - 1).unwrap_or(u64::MAX);
        let pause_ms = self.first_ms.saturating_mul(factor).min(self.pause_ms_max);
        Some(Duration::from_millis(pause_ms))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Retries;
    use proptest::prelude::*;

    #[test]
    fn pauses_double_up_to_their_bound_and_end() {
        let retries = Retries { rounds: 5, first_ms: 100, pause_ms_max: 500 };
        let pauses: Vec<u128> =
            (1..).map_while(|round| retries.pause(round)).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 500, 500]);
        assert_eq!(retries.pause(0), None);
    }

    #[test]
    fn the_default_waits_sixteen_seconds() {
        let retries = Retries::default();
        let total: Duration = (1..).map_while(|round| retries.pause(round)).sum();
        assert_eq!(total, Duration::from_millis(16_300));
    }

    proptest! {
        #[test]
        fn pauses_never_shrink_and_never_exceed_their_bound(
            first_ms in 0..u64::MAX, pause_ms_max in 0..u64::MAX, round in 1..200_u32
        ) {
            let retries = Retries { rounds: 300, first_ms, pause_ms_max };
            let (now, next) = (retries.pause(round).unwrap(), retries.pause(round + 1).unwrap());
            prop_assert!(now <= next && next.as_millis() <= u128::from(pause_ms_max));
        }
    }
}

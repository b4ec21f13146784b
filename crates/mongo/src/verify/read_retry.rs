//! Limits on the wait for a server that is unavailable, and on the retries of reads.
//!
//! All requests of a verification are reads, so each may be repeated. Two limits apply: the time without a reply
//! ([`crate::server::endpoint::answer`]), because a server whose majority is out of reach does not reply at all;
//! and the number and the duration of the retries of one request.

use std::time::{Duration, Instant};

use imago_job::control::Control;
use imago_job::retry::{Budget, retry};
use imago_plan::pacing::backoff::Backoff;

use crate::error::{Error, Result};

/// Retry budget of one read: enough for an election, and for a server that restarts.
const BUDGET: Budget = Budget {
    attempts_max: 60,
    elapsed_max: Duration::from_secs(120),
    backoff: Backoff { first_ms: 50, max_ms: 2_000 },
};

/// Runs the read `ask`, and repeats it within a budget while its error is transient. `what` names the read and
/// completes "cannot …".
pub(super) async fn retry_transient<T, F: Future<Output = Result<T>>>(
    what: &str,
    control: &Control,
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    Ok(retry(what, &BUDGET, control, Error::is_transient, |_| Box::pin(ask())).await?)
}

/// Retry budget of a long read that continues where it stopped. The budget is renewed with each batch that was read.
#[derive(Debug, Default)]
pub(super) struct ReadRetry {
    attempts: u32,
    failing_since: Option<Instant>,
}

impl ReadRetry {
    /// Renews the budget after a batch was read.
    pub(super) fn renew(&mut self) {
        *self = Self::default();
    }

    /// Counts the failed attempt of the read `what`, which ended with `error`, and returns the pause before the next
    /// attempt.
    ///
    /// # Errors
    /// Returns `error` itself, if a retry does not help; [`Error::Exhausted`] when the budget is used up.
    pub(super) fn after(&mut self, what: &str, error: Error) -> Result<Duration> {
        if !error.is_transient() {
            return Err(error);
        }
        self.attempts += 1;
        let elapsed = self.failing_since.get_or_insert_with(Instant::now).elapsed();
        if self.attempts >= BUDGET.attempts_max || elapsed > BUDGET.elapsed_max {
            let tried = format!(
                "cannot {what}: gave up after {} attempts in a row in {} ms: {error}",
                self.attempts,
                elapsed.as_millis()
            );
            return Err(Error::Exhausted { tried, cause: Box::new(error) });
        }
        tracing::debug!(what, %error, attempts = self.attempts, "trying again");
        let pause_ms = BUDGET.backoff.pause_ms(self.attempts, rand::random());
        Ok(Duration::from_millis(pause_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing() -> Error {
        Error::Transient { doing: "find".into(), cause: "an election".into() }
    }

    #[test]
    fn patience_ends_after_so_many_failures_in_a_row_and_begins_anew_when_something_is_read() {
        let mut read_retry = ReadRetry::default();
        for _ in 0..2 {
            for _ in 1..BUDGET.attempts_max {
                assert!(read_retry.after("read", passing()).is_ok());
            }
            read_retry.renew();
        }
        for _ in 1..BUDGET.attempts_max {
            assert!(read_retry.after("read", passing()).is_ok());
        }
        let tired = read_retry.after("read", passing());
        assert!(matches!(tired, Err(Error::Exhausted { .. })), "{tired:?}");
    }

    #[test]
    fn what_does_not_pass_is_not_asked_again() {
        let error = Error::malformed("find", "no cursor");
        let refused = ReadRetry::default().after("read", error);
        assert!(matches!(refused, Err(Error::Malformed { .. })), "{refused:?}");
    }
}

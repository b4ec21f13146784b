//! Retries of a failed action, within a budget of attempts and time.
//!
//! Delays grow and are jittered ([`imago_plan::pacing::backoff`]); attempts and time are limited. The error names the
//! action, the number of attempts, the elapsed time, the limit that was reached, and the last cause.
//!
//! `backon` does not fit: a retry here ends when its job must end, and its error names the limit.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use imago_plan::pacing::backoff::Backoff;
use tokio::time::Instant;

use crate::control::{Control, Stop};

/// Limits on the attempts of one action, and the delays between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of attempts, the first included; at least one is made.
    pub attempts_max: u32,
    /// Maximum time from the start of the first attempt until the start of the last.
    pub elapsed_max: Duration,
    /// The delays between consecutive attempts.
    pub backoff: Backoff,
}

/// The limit that ended the attempts of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The maximum number of attempts, [`Budget::attempts_max`].
    Attempts,
    /// The maximum time, [`Budget::elapsed_max`].
    Elapsed,
    /// No limit was reached: the last error is permanent, so that a retry does not help.
    Permanent,
}

/// The reason why the attempts of an action ended without success.
#[derive(Debug)]
pub enum RetryError<E> {
    /// The last attempt failed, and no other was permitted.
    Failed {
        /// The attempted action; completes the sentence "cannot …".
        what: String,
        /// Number of attempts that were made.
        attempts: u32,
        /// Time from the start of the first attempt to the end of the last, in milliseconds.
        elapsed_ms: u64,
        /// The limit that ended the attempts.
        bound: Bound,
        /// The error of the last attempt.
        last: E,
    },
    /// The operation that made the attempts must end.
    Stopped(Stop),
}

impl<E: fmt::Display> fmt::Display for RetryError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RetryError::Stopped(stop) => stop.fmt(f),
            RetryError::Failed { what, attempts, elapsed_ms, bound, last } => {
                write!(f, "cannot {what}: ")?;
                match (bound, attempts) {
                    (Bound::Permanent, 1) => {}
                    (Bound::Permanent, _) => {
                        write!(f, "after {attempts} attempts in {elapsed_ms} ms: ")?;
                    }
                    (Bound::Attempts, _) => {
                        write!(f, "gave up after {attempts} attempts in {elapsed_ms} ms: ")?;
                    }
                    (Bound::Elapsed, _) => write!(
                        f,
                        "gave up after {elapsed_ms} ms and {attempts} attempts, the time is up: "
                    )?,
                }
                last.fmt(f)
            }
        }
    }
}

impl<E: Error + 'static> Error for RetryError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The text of `last` is part of this error's text, so the chain continues with the cause of
            // `last`.
            RetryError::Failed { last, .. } => last.source(),
            RetryError::Stopped(_) => None,
        }
    }
}

/// Calls `attempt` (with its number, from 1) and returns its result once it succeeds. Ends with an error if `attempt`
/// fails with an error that is not `transient`, if the budget is exhausted, or if `control` stops the operation.
/// `what` names the action and completes the sentence "cannot …".
pub async fn retry<T, E, F>(
    what: &str,
    budget: &Budget,
    control: &Control,
    transient: impl Fn(&E) -> bool,
    mut attempt: impl FnMut(u32) -> F,
) -> Result<T, RetryError<E>>
where
    F: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let tried = control.or_stop(attempt(attempts)).await.map_err(RetryError::Stopped)?;
        let last = match tried {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let pause = Duration::from_millis(budget.backoff.pause_ms(attempts, rand::random()));
        let bound = if !transient(&last) {
            Some(Bound::Permanent)
        } else if attempts >= budget.attempts_max {
            Some(Bound::Attempts)
        } else if began.elapsed() + pause > budget.elapsed_max {
            Some(Bound::Elapsed)
        } else {
            None
        };
        if let Some(bound) = bound {
            let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let what = what.to_owned();
            return Err(RetryError::Failed { what, attempts, elapsed_ms, bound, last });
        }
        tracing::debug!(what, attempts, error = %last, pause_ms = pause.as_millis(), "trying again");
        control.sleep(pause).await.map_err(RetryError::Stopped)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const BUDGET: Budget = Budget {
        attempts_max: 4,
        elapsed_max: Duration::from_secs(3_600),
        backoff: Backoff { first_ms: 1, max_ms: 10 },
    };

    /// Fails with the number of the attempt until `succeeds_at`.
    async fn run(
        budget: Budget,
        control: &Control,
        succeeds_at: u32,
        transient: bool,
    ) -> (Result<u32, RetryError<String>>, u32) {
        let tried = Cell::new(0);
        let attempt = |number| {
            tried.set(number);
            let failed = Err(format!("no primary ({number})"));
            async move { if number >= succeeds_at { Ok(number) } else { failed } }
        };
        let done = retry("write the batch", &budget, control, |_| transient, attempt).await;
        (done, tried.get())
    }

    #[tokio::test]
    async fn goes_on_until_it_succeeds() {
        let (done, tried) = run(BUDGET, &Control::default(), 3, true).await;
        assert_eq!((done.unwrap(), tried), (3, 3));
    }

    #[tokio::test]
    async fn the_error_names_what_how_often_how_long_and_the_last_cause() {
        let (done, tried) = run(BUDGET, &Control::default(), u32::MAX, true).await;
        let text = done.unwrap_err().to_string();
        assert_eq!(tried, 4);
        let begins = "cannot write the batch: gave up after 4 attempts in ";
        assert!(text.starts_with(begins), "{text}");
        assert!(text.ends_with(" ms: no primary (4)"), "{text}");
    }

    #[tokio::test]
    async fn the_time_is_bounded_too() {
        let elapsed_max = Duration::from_millis(100);
        let budget = Budget { attempts_max: u32::MAX, elapsed_max, ..BUDGET };
        let (done, _) = run(budget, &Control::default(), u32::MAX, true).await;
        let elapsed = matches!(done, Err(RetryError::Failed { bound: Bound::Elapsed, .. }));
        assert!(elapsed, "{done:?}");
    }

    #[tokio::test]
    async fn what_trying_again_does_not_help_is_tried_once() {
        let (done, tried) = run(BUDGET, &Control::default(), 2, false).await;
        assert_eq!(tried, 1);
        assert_eq!(done.unwrap_err().to_string(), "cannot write the batch: no primary (1)");
    }

    #[tokio::test]
    async fn a_stop_ends_the_pause() {
        let control = Control::default();
        let stopper = control.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            stopper.stop(Stop::Cancelled);
        });
        let hour = Backoff { first_ms: 3_600_000, max_ms: 3_600_000 };
        let budget = Budget { backoff: hour, elapsed_max: Duration::MAX, ..BUDGET };
        let (done, tried) = run(budget, &control, u32::MAX, true).await;
        assert!(matches!(done, Err(RetryError::Stopped(Stop::Cancelled))), "{done:?}");
        assert_eq!(tried, 1);
    }
}

//! Trying again, within a budget.
//!
//! Pauses grow and are jittered ([`imago_plan::backoff`]); attempts and time are bounded; and the
//! error that comes out names what was tried, how often, for how long, which bound was hit, and the
//! last cause.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use imago_plan::backoff::Backoff;
use tokio::time::Instant;

use crate::control::{Control, Stop};

/// How long to go on trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Attempts, the first included; at least one is made.
    pub attempts_max: u32,
    /// No attempt begins later than this after the first began.
    pub elapsed_max: Duration,
    /// The pauses in between.
    pub backoff: Backoff,
}

/// Which bound ended the attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The number of attempts.
    Attempts,
    /// The time.
    Elapsed,
    /// None: the error is one that trying again does not help.
    Permanent,
}

/// Why something was not done.
#[derive(Debug)]
pub enum RetryError<E> {
    /// It failed.
    Failed {
        /// What was tried.
        what: String,
        /// How often.
        attempts: u32,
        /// For how long, in milliseconds.
        elapsed_ms: u64,
        /// Why no further attempt was made.
        bound: Bound,
        /// The error of the last attempt.
        last: E,
    },
    /// The operation must end.
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
            // Its text is part of this one's; its own causes follow.
            RetryError::Failed { last, .. } => last.source(),
            RetryError::Stopped(_) => None,
        }
    }
}

/// Tries `attempt` (handed its number, from 1) until it succeeds, fails with an error that is not
/// `transient`, or the budget is used up. `what` completes "cannot …".
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

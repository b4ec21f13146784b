//! Waits of tests: for a condition, with a time limit whose error names the condition.
//!
//! A test that sleeps and then checks is right only on the machine where it was written. Tests therefore do not
//! sleep (a layout rule). They wait [`until`] a condition holds, or they spend a time that is itself under test
//! ([`lasts`]): the duration of a fault, a random moment, the interval of a writer.

use std::panic::Location;
use std::time::{Duration, Instant};

/// Time limit of every wait of a test, longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(420);
/// Pause between two checks of a cheap condition.
const POLL: Duration = Duration::from_millis(5);

/// A wait with time limit for the condition of a loop: `while !holds { wait.again().await }`.
#[derive(Debug)]
pub struct Wait<'a> {
    what: &'a str,
    poll: Duration,
    caller: &'static Location<'static>,
    began: Instant,
}

impl<'a> Wait<'a> {
    /// Starts a wait for the condition that `what` describes; `poll` is the pause between two checks.
    #[track_caller]
    #[must_use]
    pub fn until(poll: Duration, what: &'a str) -> Self {
        Self { what, poll, caller: Location::caller(), began: Instant::now() }
    }

    /// Sleeps until the next check of the condition.
    ///
    /// # Panics
    /// Panics with the awaited condition when [`PATIENCE`] has elapsed since the wait started.
    #[crate::boxed]
    pub async fn again(&self) {
        assert_in_time(self.began, self.what, self.caller);
        tokio::time::sleep(self.poll).await;
    }
}

/// Waits until `happened` returns true; it is called every 5 ms. `what` describes the awaited condition.
///
/// # Panics
/// Panics with `what` when [`PATIENCE`] has elapsed.
#[track_caller]
pub fn until(what: &str, happened: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    until_with(POLL, what, happened)
}

/// Waits until `happened`, a costly check, returns true; `poll` is the pause between two checks. `what` describes the
/// awaited condition.
///
/// # Panics
/// Panics with `what` when [`PATIENCE`] has elapsed.
#[track_caller]
pub fn until_with(
    poll: Duration,
    what: &str,
    mut happened: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let wait = Wait::until(poll, what);
    async move {
        while !happened().await {
            wait.again().await;
        }
    }
}

/// Waits until `happened` returns true, without an async runtime. `what` describes the awaited condition.
///
/// # Panics
/// Panics with `what` when [`PATIENCE`] has elapsed.
#[track_caller]
pub fn until_blocking(what: &str, happened: impl FnMut() -> bool) {
    until_or_report(what, String::new, happened);
}

/// Waits until `happened` returns true, without an async runtime. `what` describes the awaited condition, `known` the
/// state that a failure reports.
///
/// # Panics
/// Panics with `what` and the result of `known` when [`PATIENCE`] has elapsed.
#[track_caller]
pub fn until_or_report(
    what: &str,
    known: impl FnOnce() -> String,
    mut happened: impl FnMut() -> bool,
) {
    let (caller, began) = (Location::caller(), Instant::now());
    while !happened() {
        if began.elapsed() > PATIENCE {
            panic!("{}: {}", timeout_message(what, caller), known());
        }
        std::thread::sleep(POLL);
    }
}

fn assert_in_time(began: Instant, what: &str, caller: &Location<'_>) {
    assert!(began.elapsed() < PATIENCE, "{}", timeout_message(what, caller));
}

fn timeout_message(what: &str, caller: &Location<'_>) -> String {
    format!("{caller}: waited {} s in vain until {what}", PATIENCE.as_secs())
}

/// Sleeps for `time`, a time that is itself under test: the duration of a fault, the time to a random moment, the
/// pause of a writer.
#[crate::boxed]
pub async fn lasts(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Blocks the thread for `time`, a time that is itself under test, without an async runtime.
pub fn lasts_blocking(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        until_blocking("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[test]
    #[should_panic(expected = "wait.rs")]
    fn a_bound_that_is_reached_says_what_was_awaited_and_where() {
        assert_in_time(Instant::now() - 2 * PATIENCE, "the end of the world", Location::caller());
    }
}

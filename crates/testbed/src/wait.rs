//! Waits of tests: for a condition, with a bound that says what did not happen.
//!
//! A test that sleeps and then looks is right on the machine where it was written. So tests do not
//! sleep (a layout rule): they wait [`until`] a condition holds, or they spend a time that is itself
//! their subject: how long a fault [`lasts`], at which drawn moment one comes, how fast a writer
//! writes.

use std::panic::Location;
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks at a condition that is cheap to see.
const POLL: Duration = Duration::from_millis(5);

/// A wait whose condition is a loop's: `while !holds { wait.again().await }`.
#[derive(Debug)]
pub struct Wait<'a> {
    what: &'a str,
    poll: Duration,
    caller: &'static Location<'static>,
    began: Instant,
}

impl<'a> Wait<'a> {
    /// Begins to wait until `what`; `poll` is the pause between two looks.
    #[track_caller]
    #[must_use]
    pub fn until(poll: Duration, what: &'a str) -> Self {
        Self { what, poll, caller: Location::caller(), began: Instant::now() }
    }

    /// Passes the time to the next look.
    ///
    /// # Panics
    /// With the awaited condition, when [`PATIENCE`] is over.
    pub async fn again(&self) {
        in_time(self.began, self.what, self.caller);
        tokio::time::sleep(self.poll).await;
    }
}

/// Waits until `happened`.
///
/// # Panics
/// With `what`, when [`PATIENCE`] is over.
#[track_caller]
pub fn until(what: &str, happened: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    until_with(POLL, what, happened)
}

/// The same where each look costs something: so long passes between two of them.
///
/// # Panics
/// With `what`, when [`PATIENCE`] is over.
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

/// The same where there is no runtime.
///
/// # Panics
/// With `what`, when the bound is reached.
#[track_caller]
pub fn until_blocking(what: &str, happened: impl FnMut() -> bool) {
    until_or_say(what, String::new, happened);
}

/// The same, and when the bound is reached it tells the known facts about the cause.
///
/// # Panics
/// With `what` and the known facts, when the bound is reached.
#[track_caller]
pub fn until_or_say(
    what: &str,
    known: impl FnOnce() -> String,
    mut happened: impl FnMut() -> bool,
) {
    let (caller, began) = (Location::caller(), Instant::now());
    while !happened() {
        if began.elapsed() > PATIENCE {
            panic!("{}: {}", in_vain(what, caller), known());
        }
        std::thread::sleep(POLL);
    }
}

fn in_time(began: Instant, what: &str, caller: &Location<'_>) {
    assert!(began.elapsed() < PATIENCE, "{}", in_vain(what, caller));
}

fn in_vain(what: &str, caller: &Location<'_>) -> String {
    format!("{caller}: waited {} s in vain until {what}", PATIENCE.as_secs())
}

/// Passes the time that a fault lasts, a drawn moment is away, or a writer pauses.
pub async fn lasts(time: Duration) {
    tokio::time::sleep(time).await;
}

/// The same where there is no runtime.
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
        in_time(Instant::now() - 2 * PATIENCE, "the end of the world", Location::caller());
    }
}

//! The certainty with which a process may assume that its job is still its own.
//!
//! A job is taken over when its owner has been silent for long enough, and the owner may be the
//! last to know: it was frozen, or cut off from the journal. So before each step that its successor
//! must not meet it asks how long ago the journal last confirmed it.
//!
//! Invariant: the age counts from before the confirmed save was *sent*, so the journal's own record
//! of the owner's last sign of life is never older than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment on this machine's clock, as the time since it was started.
///
/// The time that it was suspended counts: a process that slept with its machine has lost its job
/// meanwhile. (A clock that a hypervisor stops with the machine cannot be known of from within.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    fn ms_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0).as_millis()).unwrap_or(u64::MAX)
    }
}

/// See the module's documentation; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ownership {
    claimed: Moment,
    /// In ms after the claim.
    confirmed_ms: Arc<AtomicU64>,
}

impl Ownership {
    /// A claim that was asked for at `claimed`, and granted.
    pub(crate) fn new(claimed: Moment) -> Self {
        Self { claimed, confirmed_ms: Arc::default() }
    }

    /// A save that was sent at `sent` was acknowledged under the owner's epoch.
    pub(crate) fn confirm(&self, sent: Moment) {
        self.confirmed_ms.fetch_max(sent.ms_since(self.claimed), Ordering::AcqRel);
    }

    /// Age of the last save that the journal acknowledged, counted from before it was sent.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age_at(Moment::now())
    }

    fn age_at(&self, now: Moment) -> Duration {
        let confirmed_ms = self.confirmed_ms.load(Ordering::Acquire);
        Duration::from_millis(now.ms_since(self.claimed).saturating_sub(confirmed_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_counts_from_when_the_save_was_sent() {
        let claimed = Moment::now();
        let after = |s| Moment(claimed.0 + Duration::from_secs(s));
        let ownership = Ownership::new(claimed);
        assert_eq!(ownership.age_at(after(5)), Duration::from_secs(5));
        ownership.confirm(after(3));
        assert_eq!(ownership.age_at(after(5)), Duration::from_secs(2));
        ownership.confirm(after(2));
        assert_eq!(ownership.age_at(after(5)), Duration::from_secs(2), "an older answer came late");
    }
}

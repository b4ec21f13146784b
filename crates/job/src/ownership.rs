//! Tells a process for how long it can be certain that it still owns its job.
//!
//! A job is taken over when its owner has been silent for long enough. The owner may be the last to learn of the
//! takeover: it may have been frozen, or disconnected from the journal. So before each step that must not coincide
//! with a step of its successor, the owner checks how long ago the journal last confirmed its ownership.
//!
//! Invariant: the age of a confirmation counts from before the confirmed save was *sent*, so the heartbeat in the
//! journal is never older than that age.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time on this machine's clock, as the time since the machine was started.
///
/// Suspended time counts: a process that was suspended with its machine may have lost its job meanwhile. (If
/// a hypervisor stops the clock with the machine, that cannot be detected from within.)
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

/// The time since the journal last confirmed that this process owns its job: see the module's documentation. Clones
/// are cheap and share that time.
#[derive(Clone, Debug)]
pub struct Ownership {
    claimed: Moment,
    /// Time from the claim until the last confirmed save was sent, in milliseconds.
    confirmed_ms: Arc<AtomicU64>,
}

impl Ownership {
    /// Returns the ownership that begins with a granted claim, which was requested at `claimed`.
    pub(crate) fn new(claimed: Moment) -> Self {
        Self { claimed, confirmed_ms: Arc::default() }
    }

    /// Records that the journal acknowledged a save, under the owner's epoch, that was sent at `sent`.
    pub(crate) fn confirm(&self, sent: Moment) {
        self.confirmed_ms.fetch_max(sent.ms_since(self.claimed), Ordering::AcqRel);
    }

    /// Returns the time since the last acknowledged save was sent, or since the claim was requested if no save was
    /// acknowledged.
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

//! How sure a process may be that its job is still its own.
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

use tokio::time::Instant;

/// See the module's documentation; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ownership {
    claimed: Instant,
    /// In ms after the claim.
    confirmed_ms: Arc<AtomicU64>,
}

impl Ownership {
    /// A claim that was asked for at `claimed`, and granted.
    pub(crate) fn new(claimed: Instant) -> Self {
        Self { claimed, confirmed_ms: Arc::default() }
    }

    /// A save that was sent at `sent` was acknowledged under the owner's epoch.
    pub(crate) fn confirm(&self, sent: Instant) {
        let ms = sent.saturating_duration_since(self.claimed).as_millis();
        self.confirmed_ms.fetch_max(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    /// How long ago the last save was sent that the journal acknowledged.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age_at(Instant::now())
    }

    fn age_at(&self, now: Instant) -> Duration {
        let confirmed = Duration::from_millis(self.confirmed_ms.load(Ordering::Acquire));
        now.saturating_duration_since(self.claimed).saturating_sub(confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_counts_from_when_the_save_was_sent() {
        let claimed = Instant::now();
        let after = |s| claimed + Duration::from_secs(s);
        let ownership = Ownership::new(claimed);
        assert_eq!(ownership.age_at(after(5)), Duration::from_secs(5));
        ownership.confirm(after(3));
        assert_eq!(ownership.age_at(after(5)), Duration::from_secs(2));
        ownership.confirm(after(2));
        assert_eq!(ownership.age_at(after(5)), Duration::from_secs(2), "an older answer came late");
    }
}

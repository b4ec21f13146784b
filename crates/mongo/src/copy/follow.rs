//! Following the source: until the destination has caught up, or for as long as the job lasts.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use bson::Timestamp;
use imago_job::id::JobId;

use super::{Copying, Until};
use crate::error::{Error, Result};

/// Longest time for which clients are spared while their changes of the copy's time are applied:
/// those that waited for the last slice have been applied by then, and the rest come faster than
/// they are applied at a pace.
const SPARES_MAX: Duration = Duration::from_secs(15);
/// A destination that is this close to being caught up is brought there at once.
const NEAR_MS: u64 = 3_000;
/// A destination that is this close is caught up.
pub(super) const CAUGHT_UP_MS: u64 = 1_000;
const CAUGHT_UP: Close = Close { there_ms: CAUGHT_UP_MS, near_ms: NEAR_MS, far_ms: FAR_MS };
/// A destination that is this close is brought to the end behind a block.
const BEFORE_BLOCK_MS: u64 = 500;
/// The longest wait for the lag to fall below that.
const BEFORE_BLOCK_WITHIN: Duration = Duration::from_secs(600);
/// On full servers changes come about as fast as they are applied: a destination that is near, and
/// comes no nearer for so long, is as near as it gets. What is left is drained behind a block that
/// has a deadline, and runs while clients write nothing.
const AS_NEAR_AS_IT_GETS: Duration = Duration::from_secs(5);
/// A destination that is no farther than this keeps up with the source.
const FAR_MS: u64 = 10_000;
/// Time without progress after which a destination that keeps up comes no nearer by waiting.
const NO_NEARER_BY_WAITING: Duration = Duration::from_secs(15);
/// Time without progress after which a destination does not catch up with the source.
const STUCK_AFTER: Duration = Duration::from_secs(1_800);

/// Why following ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The destination has caught up.
    CaughtUp,
    /// The source has got collections that join, or lost some, or its views are others.
    CatalogChanged,
}

impl Copying<'_> {
    /// Applies changes until `until`, or until the set of collections is to change.
    ///
    /// # Errors
    /// An error that ends the job; a destination that is to catch up and comes no closer for half
    /// an hour.
    pub async fn follow(&mut self, until: Until) -> Result<Followed> {
        if until == Until::HandedOver {
            while !self.is_catalog_changed() {
                self.step().await?;
            }
            return Ok(Followed::CatalogChanged);
        }
        let entered = self.source_time().await?;
        self.catch_up(entered).await?;
        Ok(if self.is_catalog_changed() { Followed::CatalogChanged } else { Followed::CaughtUp })
    }

    /// Applies changes until those up to `since` are applied, and no later one waits for long.
    ///
    /// # Errors
    /// An error that ends the job; a destination that comes no closer for half an hour.
    pub(crate) async fn catch_up(&mut self, since: Timestamp) -> Result<()> {
        if self.coordinator.applied_to() < since {
            self.heartbeat().await;
        }
        let began = Instant::now();
        let mut approach = Approach::new(began);
        loop {
            self.step().await?;
            let behind_ms = self.coordinator.progress().behind_ms;
            // The last changes are few; and under a heavy load it would never catch up at a pace.
            if behind_ms < NEAR_MS || began.elapsed() > SPARES_MAX {
                self.coordinator.hurry(true);
            }
            let (is_past, stuck_for) = self.look(&mut approach, since, behind_ms);
            if is_past && CAUGHT_UP.is_reached(behind_ms, stuck_for) {
                self.coordinator.hurry(false);
                return Ok(());
            }
            if stuck_for > STUCK_AFTER {
                return Err(too_fast(behind_ms, &self.run.record().id));
            }
        }
    }

    /// Applies changes until the lag is short enough for a block that may last `block_max`: less
    /// than [`BEFORE_BLOCK_MS`]; once it no longer falls, less than half of `block_max`; and in the
    /// end, less than `block_max`. The servers had everything else to do during that lag, so the
    /// drain is shorter.
    ///
    /// # Errors
    /// An error that ends the job; a destination that does not come so close in ten minutes.
    pub(crate) async fn come_near(&mut self, block_max: Duration) -> Result<()> {
        let since = self.source_time().await?;
        self.heartbeat().await;
        self.coordinator.hurry(true);
        let close = Close::before_block(block_max);
        let began = Instant::now();
        let mut approach = Approach::new(began);
        loop {
            let behind_ms = self.coordinator.progress().behind_ms;
            let (is_past, stuck_for) = self.look(&mut approach, since, behind_ms);
            if is_past && close.is_reached(behind_ms, stuck_for) {
                return Ok(());
            }
            if began.elapsed() > BEFORE_BLOCK_WITHIN {
                return Err(Error::precondition(
                    format!(
                        "the destination is still {behind_ms} ms behind after {} s",
                        BEFORE_BLOCK_WITHIN.as_secs()
                    ),
                    "the source is written faster than the destination takes it: try at a quieter \
                     time",
                ));
            }
            self.step().await?;
        }
    }

    /// True if everything up to `since` is applied, and the time without progress towards it.
    fn look(
        &self,
        approach: &mut Approach<(Timestamp, Reverse<u64>)>,
        since: Timestamp,
        behind_ms: u64,
    ) -> (bool, Duration) {
        let applied_to = self.coordinator.applied_to();
        // In whole seconds: by less it comes and goes.
        let reached = (applied_to.min(since), Reverse(behind_ms / 1_000));
        let is_paused = self.run.control().is_paused();
        (applied_to >= since, approach.stuck_for(Instant::now(), reached, is_paused))
    }
}

/// Lags that are short enough, in ms behind the source.
#[derive(Clone, Copy)]
struct Close {
    /// Short enough at once.
    there_ms: u64,
    /// Short enough after [`AS_NEAR_AS_IT_GETS`] without progress.
    near_ms: u64,
    /// Short enough after [`NO_NEARER_BY_WAITING`] without progress.
    far_ms: u64,
}

impl Close {
    fn before_block(block_max: Duration) -> Self {
        let most_ms = u64::try_from(block_max.as_millis()).unwrap_or(u64::MAX);
        Self {
            there_ms: BEFORE_BLOCK_MS,
            near_ms: NEAR_MS.min(most_ms / 2),
            far_ms: FAR_MS.min(most_ms),
        }
    }

    fn is_reached(self, behind_ms: u64, stuck_for: Duration) -> bool {
        let enough_ms = if stuck_for > NO_NEARER_BY_WAITING {
            self.far_ms
        } else if stuck_for > AS_NEAR_AS_IT_GETS {
            self.near_ms
        } else {
            self.there_ms
        };
        behind_ms < enough_ms.max(self.there_ms)
    }
}

fn too_fast(behind_ms: u64, job: &JobId) -> Error {
    Error::precondition(
        format!(
            "the destination is {behind_ms} ms behind the source, and came no closer in {} minutes",
            STUCK_AFTER.as_secs() / 60
        ),
        format!(
            "the source is written faster than the destination takes it: go on at a quieter time, or \
             let the job do more (`imago job status {job}` shows its limits, `imago job set {job}` \
             changes them)"
        ),
    )
}

/// The closest value reached, and the time of the last progress.
struct Approach<T> {
    closest: Option<T>,
    since: Instant,
}

impl<T: Ord> Approach<T> {
    fn new(now: Instant) -> Self {
        Self { closest: None, since: now }
    }

    /// The reached value, of which more is closer. A pause does not count.
    fn stuck_for(&mut self, now: Instant, reached: T, is_paused: bool) -> Duration {
        let reached = Some(reached);
        if is_paused || reached > self.closest {
            self.since = now;
        }
        if reached > self.closest {
            self.closest = reached;
        }
        now - self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_near_and_comes_no_nearer_is_caught_up() {
        let caught_up = |behind_ms, s| CAUGHT_UP.is_reached(behind_ms, Duration::from_secs(s));
        assert!(caught_up(999, 0) && !caught_up(1_000, 0));
        assert!(!caught_up(2_999, 5) && caught_up(2_999, 6));
        assert!(!caught_up(9_999, 15) && caught_up(9_999, 16));
        assert!(!caught_up(10_000, 1_800), "far away, waiting is no reason to go on");
    }

    #[test]
    fn what_may_be_left_for_a_block_is_no_more_than_it_may_last() {
        let enough = |block_ms, behind_ms, s| {
            let close = Close::before_block(Duration::from_millis(block_ms));
            close.is_reached(behind_ms, Duration::from_secs(s))
        };
        assert!(enough(5_000, 499, 0) && !enough(5_000, 500, 5));
        assert!(enough(5_000, 2_499, 6) && !enough(5_000, 2_500, 15));
        assert!(enough(5_000, 4_999, 16) && !enough(5_000, 5_000, 600));
        assert!(enough(60_000, 2_999, 6) && !enough(60_000, 3_000, 15));
        assert!(enough(60_000, 9_999, 16) && !enough(60_000, 10_000, 600));
        // A lag that is close anyway suffices, even for a block that may last less.
        assert!(enough(100, 499, 6) && !enough(100, 500, 600));
    }

    #[test]
    fn only_coming_closer_than_ever_counts() {
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        let mut approach = Approach::new(began);
        let mut stuck_s = |s, reached, is_paused| {
            approach.stuck_for(at(s), (1, Reverse(reached)), is_paused).as_secs()
        };
        assert_eq!(stuck_s(1, 900, false), 0, "the first look is as close as it ever was");
        assert_eq!(stuck_s(3, 950, false), 2);
        assert_eq!(stuck_s(5, 900, false), 4, "as close as before is no closer");
        assert_eq!(stuck_s(6, 899, false), 0);
        assert_eq!(stuck_s(9, 2_000, true), 0, "a paused copy is not stuck");
        assert_eq!(stuck_s(11, 899, false), 2, "falling back does not make coming back a progress");
        assert_eq!(approach.stuck_for(at(12), (2, Reverse(5_000)), false).as_secs(), 0);
    }
}

//! Following the source: until the destination has caught up, or as long as the job lasts.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use bson::Timestamp;
use imago_job::id::JobId;

use super::{CopyJob, StopWhen};
use crate::error::{Error, Result};

/// Longest time, from the start of [`CopyJob::catch_up`], for which changes are applied at a pace that spares
/// clients. By then the changes that waited for the last slice are applied, and later ones may arrive faster than a
/// paced coordinator applies them.
const SPARES_MAX: Duration = Duration::from_secs(15);
/// Lag, in ms, below which the last changes are applied at full speed, and which is accepted after [`NEAR_STALL_MAX`]
/// without progress.
const NEAR_MS: u64 = 3_000;
/// Lag, in ms, below which the destination counts as caught up at once.
pub(super) const CAUGHT_UP_MS: u64 = 1_000;
/// The lags below which the destination counts as caught up, by the time without progress.
const CAUGHT_UP: LagThresholds =
    LagThresholds { accepted_ms: CAUGHT_UP_MS, near_ms: NEAR_MS, far_ms: FAR_MS };
/// Lag, in ms, below which the changes that are not applied yet can be drained under a write block.
const BEFORE_BLOCK_MS: u64 = 500;
/// Longest time that [`CopyJob::reduce_lag`] waits for a lag that is short enough for a write block.
const BEFORE_BLOCK_WITHIN: Duration = Duration::from_secs(600);
/// Time without progress after which a lag below [`LagThresholds::near_ms`] is accepted: on full servers, changes
/// arrive about as fast as they are applied. The rest is drained under a block that has a deadline, and while
/// clients write nothing.
const NEAR_STALL_MAX: Duration = Duration::from_secs(5);
/// Lag, in ms, which is accepted after [`FAR_STALL_MAX`] without progress: below it the destination keeps up with the
/// source.
const FAR_MS: u64 = 10_000;
/// Time without progress after which a lag below [`LagThresholds::far_ms`] is accepted, since waiting does not shorten
/// it.
const FAR_STALL_MAX: Duration = Duration::from_secs(15);
/// Time without progress after which the destination counts as unable to catch up with the source.
const STUCK_AFTER: Duration = Duration::from_secs(1_800);

/// The reason that following ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowOutcome {
    /// The destination has caught up with the source.
    CaughtUp,
    /// Collections of the source are to join the job or are gone, or the job's views or functions differ.
    CatalogChanged,
}

impl CopyJob<'_> {
    /// Applies changes until `stop_when` holds, or until the job's collections, views or functions have to change.
    ///
    /// # Errors
    /// Returns an error that ends the job; fails if the destination is to catch up and makes no progress for half an
    /// hour.
    #[crate::boxed]
    pub async fn follow(&mut self, stop_when: StopWhen) -> Result<FollowOutcome> {
        if stop_when == StopWhen::HandedOver {
            while !self.is_catalog_changed() {
                self.step().await?;
            }
            return Ok(FollowOutcome::CatalogChanged);
        }
        let entered = self.source_time().await?;
        self.catch_up(entered).await?;
        Ok(if self.is_catalog_changed() {
            FollowOutcome::CatalogChanged
        } else {
            FollowOutcome::CaughtUp
        })
    }

    /// Applies changes until those up to the source's cluster time `since` are applied, and the lag is short or no
    /// longer falls.
    ///
    /// # Errors
    /// Returns an error that ends the job; fails if the destination makes no progress for half an hour.
    pub(crate) async fn catch_up(&mut self, since: Timestamp) -> Result<()> {
        if self.coordinator.applied_to() < since {
            self.heartbeat().await;
        }
        let began = Instant::now();
        let mut approach = LagProgress::new(began);
        loop {
            self.step().await?;
            let behind_ms = self.coordinator.progress().behind_ms;
            // The last changes are few; and under a heavy load a paced coordinator would never catch up.
            if behind_ms < NEAR_MS || began.elapsed() > SPARES_MAX {
                self.coordinator.set_awaited(true);
            }
            let (is_past, stuck_for) = self.measure_progress(&mut approach, since, behind_ms);
            if is_past && CAUGHT_UP.is_reached(behind_ms, stuck_for) {
                self.coordinator.set_awaited(false);
                return Ok(());
            }
            if stuck_for > STUCK_AFTER {
                return Err(too_fast(behind_ms, &self.run.record().id));
            }
        }
    }

    /// Applies changes until the lag is short enough for a block that may last `block_max`: less than
    /// [`BEFORE_BLOCK_MS`]; once it no longer falls, less than half of `block_max`; and in the end, less than
    /// `block_max`. During that lag the servers had all their other work too, so the drain takes less time.
    ///
    /// # Errors
    /// Returns an error that ends the job; fails if the lag is not that short after ten minutes.
    pub(crate) async fn reduce_lag(&mut self, block_max: Duration) -> Result<()> {
        let since = self.source_time().await?;
        self.heartbeat().await;
        self.coordinator.set_awaited(true);
        let close = LagThresholds::before_block(block_max);
        let began = Instant::now();
        let mut approach = LagProgress::new(began);
        loop {
            let behind_ms = self.coordinator.progress().behind_ms;
            let (is_past, stuck_for) = self.measure_progress(&mut approach, since, behind_ms);
            if is_past && close.is_reached(behind_ms, stuck_for) {
                return Ok(());
            }
            if began.elapsed() > BEFORE_BLOCK_WITHIN {
                let after_s = BEFORE_BLOCK_WITHIN.as_secs();
                let behind =
                    format!("the destination is still {behind_ms} ms behind after {after_s} s");
                return Err(match self.run.control().slowed_by() {
                    Some(cause) => {
                        Error::precondition(format!("{behind}: {cause}"), "try again then")
                    }
                    None => Error::precondition(
                        behind,
                        "the source is written faster than the destination takes it: try at a \
                         quieter time",
                    ),
                });
            }
            self.step().await?;
        }
    }

    /// Returns true if everything up to the source's cluster time `since` is applied, and the time for which neither
    /// the position up to `since` nor the lag `behind_ms` has improved.
    fn measure_progress(
        &self,
        approach: &mut LagProgress<(Timestamp, Reverse<u64>)>,
        since: Timestamp,
        behind_ms: u64,
    ) -> (bool, Duration) {
        let applied_to = self.coordinator.applied_to();
        // The lag counts in whole seconds: smaller differences are noise.
        let reached = (applied_to.min(since), Reverse(behind_ms / 1_000));
        let is_paused = self.run.control().is_paused();
        (applied_to >= since, approach.stuck_for(Instant::now(), reached, is_paused))
    }
}

/// The lags of the destination, in ms, that end a wait for it, by the time without progress.
#[derive(Clone, Copy)]
struct LagThresholds {
    /// Lag, in ms, below which the wait ends at once.
    accepted_ms: u64,
    /// Lag, in ms, below which the wait ends after [`NEAR_STALL_MAX`] without progress.
    near_ms: u64,
    /// Lag, in ms, below which the wait ends after [`FAR_STALL_MAX`] without progress.
    far_ms: u64,
}

impl LagThresholds {
    fn before_block(block_max: Duration) -> Self {
        let most_ms = u64::try_from(block_max.as_millis()).unwrap_or(u64::MAX);
        Self {
            accepted_ms: BEFORE_BLOCK_MS,
            near_ms: NEAR_MS.min(most_ms / 2),
            far_ms: FAR_MS.min(most_ms),
        }
    }

    fn is_reached(self, behind_ms: u64, stuck_for: Duration) -> bool {
        let enough_ms = if stuck_for > FAR_STALL_MAX {
            self.far_ms
        } else if stuck_for > NEAR_STALL_MAX {
            self.near_ms
        } else {
            self.accepted_ms
        };
        behind_ms < enough_ms.max(self.accepted_ms)
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

/// The best value that the destination has reached on its way to the source, and the time of the last progress.
struct LagProgress<T> {
    closest: Option<T>,
    since: Instant,
}

impl<T: Ord> LagProgress<T> {
    fn new(now: Instant) -> Self {
        Self { closest: None, since: now }
    }

    /// Records the value `reached` (a larger one is closer), and returns the time since the last progress. A pause
    /// does not count.
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
            let close = LagThresholds::before_block(Duration::from_millis(block_ms));
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
        let mut approach = LagProgress::new(began);
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

//! Limits the number of slices that are copied at once while clients are spared.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Counters, Worker};
use crate::error::Result;

/// Interval at which a worker checks whether it may start another slice.
const SLOT_CHECK_EVERY: Duration = Duration::from_millis(250);

/// A permission to copy one slice, which counts in [`Counters`] as being copied until this is dropped.
pub(super) struct SliceSlot(Arc<Counters>);

impl Drop for SliceSlot {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Worker {
    /// Waits until this process may start another slice, and counts it. At the same pace, copying slices one after
    /// another is less work than copying them all at once: changes in a slice that was not started need not be
    /// applied. So another slice is started only if those in progress do not reach the pace.
    pub(super) async fn wait_for_slot(&self) -> Result<SliceSlot> {
        let counters = &self.counters;
        loop {
            let throttle = self.control.throttle();
            let at_work = counters.at_work.load(Ordering::Acquire);
            let may = !throttle.is_paced() || at_work == 0 || throttle.is_below_pace();
            if may
                && counters
                    .at_work
                    .compare_exchange(at_work, at_work + 1, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            {
                return Ok(SliceSlot(Arc::clone(counters)));
            }
            self.control.sleep(SLOT_CHECK_EVERY).await?;
        }
    }
}

//! A lease that is renewed as long as its slice is being copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;

use crate::error::{Error, Result};
use crate::server::timing;
use crate::state::leases::{self, Lease, Leases};

/// A lease of a slice that is renewed in the background until this guard is dropped.
pub(super) struct LeaseGuard {
    /// The time at which this process began to renew the lease.
    began: Instant,
    /// Time at which the lease's last successful renewal was requested, in ms after `began`; `u64::MAX` once it is
    /// lost.
    renewed_ms: Arc<AtomicU64>,
    _renewal: AbortOnDropHandle<()>,
}

/// The value of `renewed_ms` once the lease is lost.
const LOST: u64 = u64::MAX;

impl LeaseGuard {
    pub(super) fn new(leases: Leases, lease: Lease) -> Self {
        let began = Instant::now();
        let renewed_ms = Arc::new(AtomicU64::new(0));
        let renewed = Arc::clone(&renewed_ms);
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(leases::RENEW_EVERY).await;
                let asked_ms = elapsed_ms(began);
                match leases.renew(&lease).await {
                    Ok(true) => renewed.store(asked_ms, Ordering::Release),
                    Ok(false) => return renewed.store(LOST, Ordering::Release),
                    Err(error) => tracing::debug!(%error, "a lease was not renewed"),
                }
            }
        });
        Self { began, renewed_ms, _renewal: AbortOnDropHandle::new(renewal) }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.renewed_ms.load(Ordering::Acquire) == LOST
    }

    /// Fails if the lease is lost, or was renewed too long ago for a write of the slice to be sent now.
    pub(super) fn check(&self) -> Result<()> {
        let renewed_ms = self.renewed_ms.load(Ordering::Acquire);
        if renewed_ms == LOST {
            return Err(Error::Superseded { what: "the slice".into() });
        }
        let age_ms = elapsed_ms(self.began) - renewed_ms.min(elapsed_ms(self.began));
        if u128::from(age_ms) > timing::LEASED_WRITE_WITHIN.as_millis() {
            let cause = format!("its lease was last renewed {age_ms} ms ago");
            return Err(Error::Transient { doing: "copying a slice".into(), cause });
        }
        Ok(())
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
}

//! The quota of memory that all connections together have for incomplete requests and for queues inside
//! MULTI.
//!
//! Each connection has a small memory of its own. Memory beyond that is a *share* of one quota for all connections,
//! so that ten thousand connections that have each sent nearly the longest request do not take ten thousand times the
//! memory of one such request. A small request needs no share, and works however large the other shares are.
//!
//! Invariant: the sum of the shares never exceeds the quota, and no share outlives its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Default of the quota for the incomplete input of all connections together, in bytes.
pub const INPUT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Memory that each connection may use for incomplete input without a share of the quota, in bytes: no less than an
/// idle connection retains.
pub(super) const OWN_BYTES: usize = 2 * super::parse::RETAINED_BYTES_MAX;

/// The quota of memory for the incomplete input of all connections, and the sum of the connections' shares.
pub struct InputQuota {
    bytes_max: usize,
    taken: AtomicUsize,
}

impl InputQuota {
    /// Returns a quota of `bytes_max` bytes, of which no connection has a share yet.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, taken: AtomicUsize::new(0) })
    }

    /// Returns the sum of all connections' shares, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the text of the error for a connection that needs a larger share than is left.
    pub(super) fn refusal(&self) -> String {
        format!(
            "unfinished requests of all clients together are too big: at most {} bytes, try later",
            self.bytes_max
        )
    }
}

/// The share that one connection has of the quota for incomplete input; dropping it returns the share.
pub(super) struct Share {
    of: Arc<InputQuota>,
    bytes: usize,
}

impl Share {
    pub fn new(of: &Arc<InputQuota>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    /// Returns true if the share is empty: the connection uses at most its own memory.
    pub fn is_none(&self) -> bool {
        self.bytes == 0
    }

    /// Sets the share to what a connection needs whose incomplete input uses `bytes`. Returns false, and leaves the
    /// share unchanged, if the quota does not suffice.
    #[must_use]
    pub fn hold(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(OWN_BYTES);
        if wanted <= self.bytes {
            self.give_back(self.bytes - wanted);
            return true;
        }
        let (more, most) = (wanted - self.bytes, self.of.bytes_max);
        let add = |taken: usize| taken.checked_add(more).filter(|sum| *sum <= most);
        let is_had = self.of.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        self.bytes += if is_had { more } else { 0 };
        is_had
    }

    fn give_back(&mut self, bytes: usize) {
        if bytes > 0 {
            self.of.taken.fetch_sub(bytes, Ordering::Relaxed);
            self.bytes -= bytes;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

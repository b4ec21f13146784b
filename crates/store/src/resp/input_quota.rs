//! The memory of all connections together for incomplete requests, and for queues inside MULTI.
//!
//! The idea: a little is each connection's own. What it holds beyond that is a *share* of one sum for
//! all of them, so that ten thousand that have each sent nearly the longest request do not take ten
//! thousand times its memory. What is small needs no share, and works however much others hold.
//!
//! Invariant: the shares are together never more than the bound, and none outlives its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most that all connections together hold, in bytes, if nothing else is set.
pub const INPUT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// The bytes that each connection may hold besides: no less than it keeps when it is idle.
pub(super) const OWN_BYTES: usize = 2 * super::parse::KEPT_BYTES_MAX;

/// The sum of the shares, and its bound.
pub struct InputQuota {
    bytes_max: usize,
    taken: AtomicUsize,
}

impl InputQuota {
    /// Nothing yet of so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, taken: AtomicUsize::new(0) })
    }

    /// Bytes of them now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// The error of a connection that gets no share.
    pub(super) fn refusal(&self) -> String {
        format!(
            "unfinished requests of all clients together are too big: at most {} bytes, try later",
            self.bytes_max
        )
    }
}

/// The share of one connection.
pub(super) struct Share {
    of: Arc<InputQuota>,
    bytes: usize,
}

impl Share {
    pub fn new(of: &Arc<InputQuota>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    /// True if it is empty: the connection holds no more than its own.
    pub fn is_none(&self) -> bool {
        self.bytes == 0
    }

    /// Makes it what a connection needs that holds so many bytes; where they are not to be had it stays
    /// as it is.
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

//! How much of the log a router sends to its sites.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one site was sent since the router started, by all of its connections.
#[derive(Default)]
pub(crate) struct Traffic {
    sent_bytes: AtomicU64,
    whole_bytes: AtomicU64,
}

/// Bytes of messages with log entries that a site was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTraffic {
    /// Those of its subscription.
    pub sent_bytes: u64,
    /// What they would have been with the whole log.
    pub whole_bytes: u64,
}

impl Traffic {
    pub(in crate::engine) fn add(&self, sent_bytes: usize, whole_bytes: usize) {
        self.sent_bytes.fetch_add(sent_bytes as u64, Ordering::Relaxed);
        self.whole_bytes.fetch_add(whole_bytes as u64, Ordering::Relaxed);
    }

    pub(in crate::engine) fn load(&self) -> LogTraffic {
        LogTraffic {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            whole_bytes: self.whole_bytes.load(Ordering::Relaxed),
        }
    }
}

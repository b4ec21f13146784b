//! Statistics of the log entries that a router sends to its sites.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the log messages to one site since the router started, over all its connections.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Bytes sent.
    sent_bytes: AtomicU64,
    /// Bytes that messages with the whole log would have had.
    whole_bytes: AtomicU64,
}

/// Size of the log messages to one site since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTraffic {
    /// Bytes sent: the deliveries of the site's subscription.
    pub sent_bytes: u64,
    /// Bytes that would have been sent with the whole log.
    pub whole_bytes: u64,
}

impl Traffic {
    /// Adds a message's bytes, and those that it would have had with the whole log.
    pub(in crate::engine) fn add(&self, sent_bytes: usize, whole_bytes: usize) {
        self.sent_bytes.fetch_add(sent_bytes as u64, Ordering::Relaxed);
        self.whole_bytes.fetch_add(whole_bytes as u64, Ordering::Relaxed);
    }

    /// Returns the current values.
    pub(in crate::engine) fn load(&self) -> LogTraffic {
        LogTraffic {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            whole_bytes: self.whole_bytes.load(Ordering::Relaxed),
        }
    }
}

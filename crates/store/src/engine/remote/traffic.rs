//! Statistics of the log entries that a router sends to its sites.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the log messages to one site since the router started, over all connections of the site's processes.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Size of the log messages that were sent to the site, in bytes.
    sent_bytes: AtomicU64,
    /// Size that these messages would have had with the whole log, in bytes.
    whole_bytes: AtomicU64,
}

/// Size of the log messages to one site since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTraffic {
    /// Size of the log messages that were sent, in bytes: the deliveries of the site's subscription.
    pub sent_bytes: u64,
    /// Size that the messages would have had with the whole log, in bytes.
    pub whole_bytes: u64,
}

impl Traffic {
    /// Adds the size of a log message, and the size that it would have had with the whole log, in bytes.
    pub(in crate::engine) fn add(&self, sent_bytes: usize, whole_bytes: usize) {
        self.sent_bytes.fetch_add(sent_bytes as u64, Ordering::Relaxed);
        self.whole_bytes.fetch_add(whole_bytes as u64, Ordering::Relaxed);
    }

    /// Returns the current values of the counters.
    pub(in crate::engine) fn load(&self) -> LogTraffic {
        LogTraffic {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            whole_bytes: self.whole_bytes.load(Ordering::Relaxed),
        }
    }
}

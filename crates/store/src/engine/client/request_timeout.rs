//! How long a client may keep half of a request here without going on with it.
//!
//! A client that is idle between its requests is none of that, however long; nor is one that waits for
//! an answer. And it is not enough to send a byte now and then: see [`Headway`].

use std::time::{Duration, Instant};

use crate::resp::Headway;

/// The time of one connection.
pub(in crate::engine) struct RequestTimeout {
    wait: Duration,
    last: Option<Headway>,
    until: Instant,
}

impl RequestTimeout {
    pub(in crate::engine) fn new(wait: Duration) -> Self {
        Self { wait, last: None, until: Instant::now() }
    }

    /// Until when the client has to come further than this; none where it need not.
    pub(in crate::engine) fn until(&mut self, headway: Option<Headway>) -> Option<Instant> {
        if self.last != headway {
            self.last = headway;
            if headway.is_some() {
                self.until = Instant::now() + self.wait;
            }
        }
        headway.map(|_| self.until)
    }
}

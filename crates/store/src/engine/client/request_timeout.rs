//! The timeout of an unfinished request.
//!
//! A client that is idle between requests, or waits for a reply, has no such limit. Sending a byte now and then
//! is not enough to extend the time: see [`Headway`].

use std::time::{Duration, Instant};

use crate::resp::Headway;

/// The timeout of one connection.
pub(in crate::engine) struct RequestTimeout {
    wait: Duration,
    last: Option<Headway>,
    until: Instant,
}

impl RequestTimeout {
    pub(in crate::engine) fn new(wait: Duration) -> Self {
        Self { wait, last: None, until: Instant::now() }
    }

    /// The time by which the client must have sent more than this; none if no request is unfinished.
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

//! The timeout of an unfinished request.
//!
//! A client that is idle between requests, or waits for a reply, has no such limit. Sending single bytes now and
//! then does not extend the time: see [`Headway`].

use std::time::{Duration, Instant};

use crate::resp::Headway;

/// The request timeout of one connection.
pub(in crate::engine) struct RequestTimeout {
    /// Time allowed without progress on an unfinished request.
    wait: Duration,
    /// The progress at the last call.
    last: Option<Headway>,
    /// The current deadline.
    until: Instant,
}

impl RequestTimeout {
    pub(in crate::engine) fn new(wait: Duration) -> Self {
        Self { wait, last: None, until: Instant::now() }
    }

    /// Returns the deadline for further progress beyond `headway`, or `None` if no request is unfinished.
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

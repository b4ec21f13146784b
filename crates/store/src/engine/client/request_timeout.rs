//! The timeout of a request that a client has sent only in part.
//!
//! A client that is idle between requests, or waits for a reply, has no such limit. Sending single bytes now and then
//! does not extend the time: see [`Headway`].

use std::time::{Duration, Instant};

use crate::resp::Headway;

/// The timeout of unfinished requests on one connection.
pub(in crate::engine) struct RequestTimeout {
    /// Time allowed without progress on an unfinished request.
    wait: Duration,
    /// The progress of the unfinished request at the last call of `until`; `None` if no request was unfinished.
    last: Option<Headway>,
    /// The deadline for further progress beyond `last`.
    until: Instant,
}

impl RequestTimeout {
    pub(in crate::engine) fn new(wait: Duration) -> Self {
        Self { wait, last: None, until: Instant::now() }
    }

    /// Returns the deadline for further progress beyond `headway`, or `None` if no request is unfinished (`headway`
    /// is `None`).
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

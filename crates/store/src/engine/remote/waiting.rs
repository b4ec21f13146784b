//! The router's requests that a site's process has not answered yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::site::mailbox::{Counted, ReplyTo};

/// The router's requests to one site's process that are not answered yet.
#[derive(Default)]
pub(in crate::engine) struct Waiting {
    /// The number that the next request to the process gets.
    pub next: u64,
    /// The recipient of each outstanding reply, by the number of the request.
    pub all: HashMap<u64, Waiter>,
}

/// The recipient of the process's reply to a request.
pub(in crate::engine) enum Waiter {
    /// Receives the outcome of a transaction, or of a step of a change of the design.
    ReplyTo(ReplyTo),
    /// Receives the sizes and access counts of the site's copies.
    Count(Counted),
}

pub(in crate::engine) fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

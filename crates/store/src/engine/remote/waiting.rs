//! The router's requests that a site's process has not answered yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::site::mailbox::{Counted, ReplyTo};

/// The requests to one site that are not answered yet.
#[derive(Default)]
pub(in crate::engine) struct Waiting {
    /// The number of the next request.
    pub next: u64,
    /// The recipient of each reply, by the number of the request.
    pub all: HashMap<u64, Waiter>,
}

/// The recipient of a reply.
pub(in crate::engine) enum Waiter {
    /// Receives the outcome of a transaction or a step.
    ReplyTo(ReplyTo),
    /// Receives the usage of the site's copies.
    Count(Counted),
}

pub(in crate::engine) fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

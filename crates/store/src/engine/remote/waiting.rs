//! The requests of a router that a site's process has not answered yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::site::mailbox::{Counted, ReplyTo};

/// Requests that the site has not answered yet.
#[derive(Default)]
pub(in crate::engine) struct Waiting {
    pub next: u64,
    pub all: HashMap<u64, Waiter>,
}

pub(in crate::engine) enum Waiter {
    ReplyTo(ReplyTo),
    Count(Counted),
}

pub(in crate::engine) fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The connections to one Redis node: a few, each of which carries many concurrent requests.
//!
//! Requests that wait while a connection is being opened share the outcome of that attempt. So a node that hangs
//! delays all of them by one timeout, and not each by one timeout more than the last.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use imago_tune::redis::connection;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

use super::outcome::cause_text;

/// The connections of a load to one Redis node, which its requests use in rotation.
#[derive(Debug)]
pub(super) struct Lanes {
    address: String,
    user: Option<(String, String)>,
    answer_wait: Duration,
    next: AtomicUsize,
    lanes: Vec<Mutex<Lane>>,
}

#[derive(Default)]
struct Lane {
    connection: Option<MultiplexedConnection>,
    /// Number of connections that this lane has opened so far; it identifies the current one.
    number: u64,
    /// Time and cause of the last failed attempt to open a connection; `None` if none failed.
    failed: Option<(Instant, String)>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("number", &self.number).finish_non_exhaustive()
    }
}

/// An open connection, with the index of its lane and its number in that lane.
pub(super) struct Open {
    pub(super) connection: MultiplexedConnection,
    lane: usize,
    number: u64,
}

impl Lanes {
    pub(super) fn new(
        address: &str,
        user: Option<&(String, String)>,
        answer_wait: Duration,
        count: usize,
    ) -> Self {
        let lanes = (0..count.max(1)).map(|_| Mutex::default()).collect();
        let (address, user) = (address.to_owned(), user.cloned());
        Self { address, user, answer_wait, next: AtomicUsize::new(0), lanes }
    }

    /// Returns the connection of the next lane in rotation, and opens it if it is not open. Fails with the cause as
    /// text.
    pub(super) async fn open(&self) -> Result<Open, String> {
        let asked = Instant::now();
        let lane = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let mut held = self.lanes[lane].lock().await;
        if let Some(connection) = held.connection.clone() {
            return Ok(Open { connection, lane, number: held.number });
        }
        if let Some((at, why)) = &held.failed
            && *at >= asked
        {
            return Err(why.clone());
        }
        match connection::open(&self.address, self.user.as_ref(), self.answer_wait).await {
            Ok(connection) => {
                held.connection = Some(connection.clone());
                held.number += 1;
                Ok(Open { connection, lane, number: held.number })
            }
            Err(error) => {
                let why = cause_text(&error);
                held.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Discards a connection that gave no reply, unless its lane has replaced it already.
    pub(super) async fn close(&self, open: &Open) {
        let mut held = self.lanes[open.lane].lock().await;
        if held.number == open.number {
            held.connection = None;
        }
    }
}

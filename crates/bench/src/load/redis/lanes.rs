//! The connections to one node: a few, over each of which many requests are under way at once.
//!
//! Requests that wait for a connection while one is being made share its outcome, so that a node that hangs costs each of
//! them one wait, and not one behind the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use imago_tune::redis::connection;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

use super::outcome::told;

/// The connections to a node.
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
    /// How many there were before.
    number: u64,
    /// When the last attempt to make one failed, and why.
    failed: Option<(Instant, String)>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A connection that may be used.
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

    /// The next connection; it is made if there is none.
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
                let why = told(&error);
                held.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Forgets a connection that gave no answer.
    pub(super) async fn close(&self, open: &Open) {
        let mut held = self.lanes[open.lane].lock().await;
        if held.number == open.number {
            held.connection = None;
        }
    }
}

//! Single-key operations at a steady rate, concurrent with another load of a store. Their latency shows the effect on
//! clients.
//!
//! Each operation has a time at which it is due, and its latency counts from then: an operation that waits for a slow
//! one is slow too. An operation that is refused or cut off is tried again until it is done, and counts once.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Value;

use super::AGAIN_WAIT;
use super::client::connect;

/// Number of keys that the probe writes and reads in rotation.
const KEYS: u64 = 1_000;

/// A running probe of a store's latency. If it is dropped without [`Probe::finish`], its thread ends by itself.
pub struct Probe {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Measured>>>,
}

/// An operation of a probe that the store has completed.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The time at which the operation was due.
    pub at: Instant,
    /// Time from the moment at which the operation was due until it was done, repeated attempts included.
    pub latency: Duration,
}

impl Probe {
    /// Starts a probe of the store at `address`, with one operation due in each interval of length `every`.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub fn start(address: SocketAddr, every: Duration) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let run = move || run(address, every, &over);
        let thread = Some(thread::Builder::new().name("probe".into()).spawn(run)?);
        Ok(Self { is_over, thread })
    }

    /// Ends the probe. Returns its completed operations in the order in which they were due.
    ///
    /// # Panics
    /// Panics if its thread panicked.
    #[must_use]
    pub fn finish(mut self) -> Vec<Measured> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map(|thread| thread.join().expect("a probe ends")).unwrap_or_default()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn run(address: SocketAddr, every: Duration, is_over: &AtomicBool) -> Vec<Measured> {
    let mut measured = Vec::new();
    let mut connection = None;
    let mut at = Instant::now();
    for n in 0.. {
        at += every;
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let key = format!("probe{:04}", n / 2 % KEYS);
        let command = match n % 2 {
            0 => redis::cmd("SET").arg(key).arg(n).take(),
            _ => redis::cmd("GET").arg(key).take(),
        };
        while !is_over.load(Ordering::Relaxed) {
            let open = match connection.take() {
                Some(open) => Ok(open),
                None => connect(address),
            };
            let done = open.is_ok_and(|mut open: redis::Connection| {
                let answered: Result<Value, _> = command.query(&mut open);
                let is_there = answered.is_ok();
                // After an error reply, the same connection serves the next attempt.
                if answered.is_ok() || answered.is_err_and(|error| error.code().is_some()) {
                    connection = Some(open);
                }
                is_there
            });
            if done {
                measured.push(Measured { at, latency: at.elapsed() });
                break;
            }
            thread::sleep(AGAIN_WAIT);
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    measured
}

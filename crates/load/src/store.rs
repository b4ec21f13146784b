//! A load of list-append transactions on a store that serves the Redis protocol, and its history (see
//! `imago_workload::lists`). The load continues after failures of the store.
//!
//! A session is one connection. Each thread runs one session after the other. MULTI, the steps of a transaction, and
//! EXEC are sent in one piece; occasionally several transactions are sent together. When the connection breaks, or
//! the store does not know the outcome of a transaction, the next transaction belongs to a new session, on a new
//! connection. The transactions that were sent together with such a transaction and follow it also count as those of
//! another session.
//!
//! Invariant: a transaction counts as not done only if the store replied that nothing happened. After any other
//! failure the outcome is unknown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use imago_workload::lists::{Element, Generator, Outcome, Pool, Request, Transaction};

mod client;
mod probe;
pub mod transactions;

pub use client::{Client, ClientError};
pub use probe::{Measured, Probe};

/// Delay before a failed connection or a failed operation is tried again.
const AGAIN_WAIT: Duration = Duration::from_millis(20);
/// Maximum time for which the read of all lists after a load is retried, while their partitions are brought together.
const LAST_WAIT: Duration = Duration::from_secs(30);

/// Parameters of a load of list-append transactions.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of sessions that run concurrently, each on its own connection.
    pub sessions: u32,
    /// Seed from which the transactions are drawn.
    pub seed: u64,
    /// Delay of a session after each transaction, or after several that were sent together.
    pub pause: Duration,
}

/// A load of list-append transactions that is running. If it is dropped without [`Load::finish`], its threads end by
/// themselves.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Transaction>>>,
}

struct Shared {
    addresses: Vec<SocketAddr>,
    began: Instant,
    pool: Arc<Pool>,
    /// Number of the next session, from 0.
    sessions: AtomicU32,
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// Starts the load on a store that serves at `address`.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub fn start(address: SocketAddr, options: Options) -> io::Result<Self> {
        Self::start_among(vec![address], options)
    }

    /// Starts the load on a store that may be at any of these addresses, and may move between them.
    ///
    /// # Errors
    /// Fails in the same cases as [`Load::start`].
    pub fn start_among(addresses: Vec<SocketAddr>, options: Options) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            addresses,
            began: Instant::now(),
            pool: Arc::default(),
            sessions: AtomicU32::new(0),
            acknowledged: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut load = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for number in 0..options.sessions {
            let shared = Arc::clone(&shared);
            let generator = Generator::new(options.seed, number, Arc::clone(&shared.pool));
            let run = move || shared.run(generator, options.pause);
            let thread = thread::Builder::new().name(format!("session {number}")).spawn(run);
            load.threads.push(thread?);
        }
        Ok(load)
    }

    /// Returns the number of transactions that the store has acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends the load. Returns the transactions with their replies, ordered by session, and the lists to which they
    /// appended.
    ///
    /// # Panics
    /// Panics if one of its threads panicked.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Transaction>, Lists) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let ended = self.threads.drain(..).map(|thread| thread.join().expect("sessions end"));
        let mut transactions: Vec<_> = ended.flatten().collect();
        // The transactions of a session are adjacent, and a stable sort keeps their order.
        transactions.sort_by_key(|transaction| transaction.session);
        (transactions, Lists { count: self.shared.pool.lists() })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// The lists to which the transactions of a load appended.
#[derive(Clone, Copy, Debug)]
pub struct Lists {
    count: u32,
}

impl Lists {
    /// Reads the elements of all lists from the store at `address`. No transaction may be in progress.
    ///
    /// # Errors
    /// Fails if the store does not return the lists within 30 s.
    pub fn read(self, address: SocketAddr) -> Result<Vec<Vec<Element>>, ClientError> {
        let until = Instant::now() + LAST_WAIT;
        loop {
            match Client::connect(address).and_then(|mut client| client.lists(self.count)) {
                Err(_) if Instant::now() < until => thread::sleep(AGAIN_WAIT),
                read => return read,
            }
        }
    }
}

impl Shared {
    fn run(&self, mut generator: Generator, pause: Duration) -> Vec<Transaction> {
        let mut sent = Vec::new();
        for address in self.addresses.iter().cycle() {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let Ok(mut client) = Client::connect(*address) else {
                thread::sleep(AGAIN_WAIT);
                continue;
            };
            let mut session = self.next_session();
            while !self.is_over.load(Ordering::Relaxed) && client.is_usable() {
                let requests = generator.draw_batch();
                session = self.transact(session, &mut client, requests, &mut sent);
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
            }
        }
        sent
    }

    fn next_session(&self) -> u32 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends `requests` as transactions of a session, and adds them with their outcomes to `sent`. Returns the number
    /// of the session to which the next transactions belong.
    fn transact(
        &self,
        mut session: u32,
        client: &mut Client,
        requests: Vec<Request>,
        sent: &mut Vec<Transaction>,
    ) -> u32 {
        let now_ns = || u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let began_ns = now_ns();
        let told = client.run(&requests);
        let ended_ns = now_ns();
        for (Request { steps, .. }, (outcome, reads)) in requests.into_iter().zip(told) {
            sent.push(Transaction { session, steps, outcome, reads, began_ns, ended_ns });
            match outcome {
                Outcome::Done => _ = self.acknowledged.fetch_add(1, Ordering::Relaxed),
                Outcome::NotDone => {}
                Outcome::Unknown => session = self.next_session(),
            }
        }
        session
    }
}

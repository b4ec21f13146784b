//! A load of a transactional benchmark (`imago_workload::procedures`) on a store that serves the Redis protocol.
//!
//! The transactions are procedures that the store's processes register ([`register`]) and that IMAGO.CALL_RW runs at one
//! site. A session is a thread with one connection, and one transaction in progress. In a closed loop it begins the next
//! one at once; at a rate, transactions are due at equal distances, and a latency counts from the time at which the
//! transaction was due.
//!
//! Invariants:
//! - A transaction counts as done only if the store has acknowledged it, and as not done only if the store replied that
//!   nothing happened, which is retried. Any other failure leaves its outcome unknown; it is never run again.
//! - After the load all rows are read and checked against the acknowledged transactions.

mod registered;
mod report;
mod rows;
mod session;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use imago_workload::procedures::{Procedure, smallbank, tpcc, twitter, ycsb};
use rand::rngs::StdRng;

pub use registered::{declared, in_process, key, register};
pub use report::{OfKind, Report};
use rows::Connection;
use session::Session;

/// Number of rows that one command writes while the store is filled.
const FILLED_AT_ONCE: usize = 500;
/// Maximum number of sessions.
pub const SESSIONS_MAX: u32 = 1_000;

/// A benchmark with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names of the benchmarks")]
pub enum Benchmark {
    SmallBank(smallbank::Parameters),
    TpcC(tpcc::Parameters),
    Twitter(twitter::Parameters),
    Ycsb(ycsb::Parameters),
}

impl Benchmark {
    /// Returns the rows at the start, as key and value, drawn by `seed`.
    pub fn rows(&self, seed: u64) -> Box<dyn Iterator<Item = (String, Vec<u8>)>> {
        match *self {
            Self::SmallBank(parameters) => Box::new(parameters.fill()),
            Self::TpcC(parameters) => Box::new(parameters.fill(seed)),
            Self::Twitter(parameters) => Box::new(parameters.fill(seed)),
            Self::Ycsb(parameters) => Box::new(parameters.fill()),
        }
    }
}

/// A failure of a load as a whole.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No store accepts connections at the address.
    #[error("the store at {address} cannot be reached: {source}")]
    Unreachable {
        /// Address of the store.
        address: SocketAddr,
        /// The failure.
        source: redis::RedisError,
    },
    /// The store asks for another password, or for one.
    #[error("the store at {address} does not admit this client: {source}")]
    Password {
        /// Address of the store.
        address: SocketAddr,
        /// The store's reply.
        source: redis::RedisError,
    },
    /// The store failed while it was filled or read.
    #[error("the store at {address} failed: {source}")]
    Store {
        /// Address of the store.
        address: SocketAddr,
        /// The failure.
        source: redis::RedisError,
    },
    /// The store has rows already.
    #[error("the store at {0} is not empty")]
    NotEmpty(SocketAddr),
    /// The system cannot start a thread.
    #[error("cannot start a session: {0}")]
    Thread(#[from] std::io::Error),
}

/// Parameters of a load.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the store.
    pub address: SocketAddr,
    /// Password of the store; `None` if it has none.
    pub password: Option<String>,
    /// Number of sessions, from 1 to [`SESSIONS_MAX`].
    pub sessions: u32,
    /// Transactions per second of all sessions together; `None` for a closed loop.
    pub rate_s: Option<f64>,
    /// Duration of the load.
    pub lasts: Duration,
    /// Seed of the rows and of the transactions.
    pub seed: u64,
}

/// The source of the transactions of one session.
#[allow(missing_docs, reason = "the names of the benchmarks")]
pub enum Drawing {
    SmallBank(smallbank::Parameters),
    TpcC(tpcc::Parameters),
    Twitter(twitter::Drawing),
    Ycsb(ycsb::Drawing),
}

impl Drawing {
    /// Returns the source of a benchmark's transactions.
    #[must_use]
    pub fn of(benchmark: &Benchmark) -> Self {
        match benchmark {
            Benchmark::SmallBank(parameters) => Self::SmallBank(*parameters),
            Benchmark::TpcC(parameters) => Self::TpcC(*parameters),
            Benchmark::Twitter(parameters) => Self::Twitter(parameters.drawing()),
            Benchmark::Ycsb(parameters) => Self::Ycsb(parameters.drawing()),
        }
    }

    /// Draws a transaction; `unique` is a number that no other transaction of the store has.
    pub fn draw(&self, rng: &mut StdRng, unique: u64) -> Procedure {
        match self {
            Self::SmallBank(parameters) => Procedure::SmallBank(parameters.draw(rng)),
            Self::TpcC(parameters) => Procedure::TpcC(parameters.draw(rng, unique)),
            Self::Twitter(drawing) => Procedure::Twitter(drawing.draw(rng, unique)),
            Self::Ycsb(drawing) => Procedure::Ycsb(drawing.draw(rng)),
        }
    }
}

/// The check of a benchmark's rows against its acknowledged transactions.
#[allow(missing_docs, reason = "the names of the benchmarks")]
pub enum Check {
    SmallBank(smallbank::Check),
    TpcC(Box<tpcc::Check>),
    Twitter(twitter::Check),
    Ycsb(ycsb::Check),
}

impl Check {
    /// Returns the check of a benchmark that has just been filled.
    #[must_use]
    pub fn of(benchmark: &Benchmark) -> Self {
        match benchmark {
            Benchmark::SmallBank(_) => Self::SmallBank(smallbank::Check::default()),
            Benchmark::TpcC(_) => Self::TpcC(Box::default()),
            Benchmark::Twitter(_) => Self::Twitter(twitter::Check::default()),
            Benchmark::Ycsb(_) => Self::Ycsb(ycsb::Check::default()),
        }
    }

    /// Records an acknowledged transaction; `done` is the number that it returned.
    ///
    /// # Panics
    /// Panics if the transaction is one of another benchmark.
    pub fn acknowledged(&mut self, procedure: &Procedure, done: i64) {
        match (self, procedure) {
            (Self::SmallBank(check), Procedure::SmallBank(one)) => check.acknowledged(one, done),
            (Self::TpcC(check), Procedure::TpcC(one)) => check.acknowledged(one, done),
            (Self::Twitter(check), Procedure::Twitter(one)) => check.acknowledged(one, done),
            (Self::Ycsb(check), Procedure::Ycsb(one)) => check.acknowledged(one, done),
            _ => unreachable!("the procedures are those of the check's benchmark"),
        }
    }

    /// Records a transaction of unknown outcome.
    pub fn unknown(&mut self, procedure: &Procedure) {
        if let (Self::SmallBank(check), Procedure::SmallBank(one)) = (self, procedure) {
            check.unknown(one);
        }
    }

    /// Takes a row into the check.
    ///
    /// # Errors
    /// Returns what is wrong with a row that is none of the benchmark's.
    pub fn row(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        match self {
            Self::SmallBank(check) => check.row(key, value),
            Self::TpcC(check) => check.row(key, value),
            Self::Twitter(check) => check.row(key, value),
            Self::Ycsb(check) => check.row(key, value),
        }
    }

    /// Returns the contradictions between the rows, and between them and the acknowledged transactions.
    ///
    /// # Panics
    /// Panics if the check is that of another benchmark.
    #[must_use]
    pub fn contradictions(&self, benchmark: &Benchmark) -> Vec<String> {
        match (self, benchmark) {
            (Self::SmallBank(check), Benchmark::SmallBank(parameters)) => {
                check.contradictions(parameters)
            }
            (Self::TpcC(check), _) => check.contradictions(),
            (Self::Twitter(check), _) => check.contradictions(),
            (Self::Ycsb(check), Benchmark::Ycsb(parameters)) => check.contradictions(parameters),
            _ => unreachable!("the check is that of the benchmark"),
        }
    }
}

/// Fills an empty store with the rows of a benchmark, and returns their number. Calls `filled` with the number of rows
/// so far.
///
/// # Errors
/// Fails if the store is not empty or does not take the rows.
pub fn fill(
    benchmark: &Benchmark,
    options: &Options,
    mut filled: impl FnMut(u64),
) -> Result<u64, LoadError> {
    let failed = |source| failed(options, source);
    let mut connection = Connection::open(options).map_err(failed)?;
    if !connection.is_empty().map_err(failed)? {
        return Err(LoadError::NotEmpty(options.address));
    }
    let mut rows = benchmark.rows(options.seed);
    let mut all = 0;
    loop {
        let some: Vec<_> = rows.by_ref().take(FILLED_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(all);
        }
        connection.put_all(&some).map_err(failed)?;
        all += some.len() as u64;
        filled(all);
    }
}

/// Returns the failure of the load for an error of the store or of a connection to it.
fn failed(options: &Options, source: redis::RedisError) -> LoadError {
    let address = options.address;
    match source.code() {
        Some("NOAUTH" | "WRONGPASS") => LoadError::Password { address, source },
        _ if source.kind() == redis::ErrorKind::AuthenticationFailed => {
            LoadError::Password { address, source }
        }
        _ if source.is_connection_refusal() || source.is_timeout() => {
            LoadError::Unreachable { address, source }
        }
        _ => LoadError::Store { address, source },
    }
}

/// State shared by the sessions of a load.
struct Shared<'a> {
    options: &'a Options,
    began: Instant,
    /// Random number from which the unique numbers of this load's transactions are counted, so that those of two loads
    /// differ.
    unique_base: u64,
    done: AtomicU64,
    is_over: AtomicBool,
    cancel: &'a AtomicBool,
    check: Mutex<Check>,
}

/// Runs a load on a filled store until its duration is over or `cancel` is set; then reads and checks all rows. Calls
/// `see` after each second with the number of the second, from 1 on, and the number of transactions done so far.
///
/// # Errors
/// Fails if no session can be started, or if the rows cannot be read after the load.
///
/// # Panics
/// Panics if a session panicked.
pub fn run(
    benchmark: &Benchmark,
    options: &Options,
    cancel: &AtomicBool,
    mut see: impl FnMut(u64, u64),
) -> Result<Report, LoadError> {
    let failed = |source| failed(options, source);
    Connection::open(options).map_err(failed)?;
    let mut check = Check::of(benchmark);
    if let Check::SmallBank(money) = &mut check {
        // A load before this one may have changed the sum.
        let mut opening = smallbank::Check::default();
        let row = |key: &str, value: &[u8]| _ = opening.row(key, value);
        rows::read_all(options, row).map_err(failed)?;
        money.begin_after(&opening);
    }
    let shared = Shared {
        options,
        began: Instant::now(),
        // The clock would not do: two loads may begin at the same time.
        unique_base: rand::random(),
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        cancel,
        check: Mutex::new(check),
    };
    let reports = thread::scope(|scope| {
        let mut sessions = Vec::new();
        // A load without a duration only checks the rows.
        let many = if options.lasts.is_zero() { 0 } else { options.sessions.min(SESSIONS_MAX) };
        for number in 0..many {
            let mut session = Session::new(number, Drawing::of(benchmark), &shared);
            let named = thread::Builder::new().name(format!("session {number}"));
            match named.spawn_scoped(scope, move || session.run()) {
                Ok(session) => sessions.push(session),
                Err(error) => {
                    shared.is_over.store(true, Ordering::Relaxed);
                    return Err(LoadError::Thread(error));
                }
            }
        }
        for second in 1.. {
            let until = shared.began + Duration::from_secs(second).min(options.lasts);
            while Instant::now() < until && !cancel.load(Ordering::Relaxed) {
                let left = until.saturating_duration_since(Instant::now());
                thread::sleep(left.min(Duration::from_millis(100)));
            }
            see(second, shared.done.load(Ordering::Relaxed));
            if cancel.load(Ordering::Relaxed) || shared.began.elapsed() >= options.lasts {
                break;
            }
        }
        shared.is_over.store(true, Ordering::Relaxed);
        Ok(sessions.into_iter().map(|one| one.join().expect("a session ends")).collect::<Vec<_>>())
    })?;
    let lasted = shared.began.elapsed();
    let mut check = shared.check.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut foreign = Vec::new();
    let row = |key: &str, value: &[u8]| foreign.extend(check.row(key, value).err());
    let rows = rows::read_all(options, row).map_err(failed)?;
    let mut report = Report::of(reports, options.sessions, lasted, rows);
    report.contradictions.extend(foreign);
    report.contradictions.extend(check.contradictions(benchmark));
    Ok(report)
}

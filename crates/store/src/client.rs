//! A client of the store with typed tables and transactions, from any process, over the Redis protocol.
//!
//! A transaction is a closure. Its reads are watched, its writes are kept back, and EXEC writes all of them
//! if no row that it read has changed; otherwise the closure runs again. So nothing is locked while it runs,
//! and a client that dies in between leaves nothing behind.
//!
//! ```no_run
//! use imago_store::client::{Client, ClientError, Options, Table};
//!
//! const ACCOUNTS: Table<u64, i64> = Table::new(1);
//!
//! # fn main() -> Result<(), ClientError> {
//! let mut client = Client::connect("127.0.0.1:7001", Options::default())?;
//! client.put_many(&ACCOUNTS, &[(1, 100), (2, 0)])?;
//! let left = client.transaction(|tx| {
//!     let from = tx.get(&ACCOUNTS, &1)?.unwrap_or(0) - 30;
//!     let to = tx.get(&ACCOUNTS, &2)?.unwrap_or(0) + 30;
//!     tx.put(&ACCOUNTS, &1, &from)?;
//!     tx.put(&ACCOUNTS, &2, &to)?;
//!     Ok::<_, ClientError>(from)
//! })?;
//! # _ = left;
//! # Ok(())
//! # }
//! ```
//!
//! # What a transaction may rely on
//!
//! *A transaction that counts saw one state.* Each call of [`Transaction::get`] or [`Transaction::get_many`]
//! reads a state of its own, and two of them may not fit each other: a closure may see a sum that never was,
//! and must not do anything with it but return. It counts only if all that it read is still so when it
//! commits, also if it only read, and also if it returned an error of its own.
//!
//! *Transactions that write are serializable* ([`Isolation::Serializable`]), as regards rows that are read by
//! their keys. The store itself gives snapshot isolation, under which two transactions may each read a row
//! that the other writes; so rows that were read are locked at the commit like written ones. The order is
//! that of the log, and a transaction that only reads sees a state between two of them, though perhaps not
//! the newest: it sees at least what its own connection has seen and done before. [`Isolation::Snapshot`]
//! leaves those locks out.
//!
//! *It knows rows, not what they might have been.* A key that had no row when it was read, got one and lost
//! it again counts as unchanged, which does no harm: the transaction could have run later, and read the same.
//! The set of rows in a range is not watched: [`Client::scan`] is no part of transactions.
//!
//! *The outcome is known, or reported as unknown.* A transaction that certainly did not happen is tried
//! again, a bounded number of times; [`ClientError::Unknown`] is never tried again by itself. A transaction
//! may be if it reads a row under a number of its own first, and does nothing where that is, and otherwise
//! writes it.
//!
//! Connections are not encrypted yet; a store that wants TLS cannot be reached by this client.

use std::hash::BuildHasher;
use std::thread;
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisConnectionInfo};

mod connection;
mod error;
mod ordered;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod transaction;

use connection::{Connection, Fault, Waits};
pub use error::ClientError;
pub use ordered::{OrderedKey, PrefixOf};
pub use table::Table;
pub use transaction::Transaction;

/// Longest delay before the second attempt; for each later one up to twice that of the one before.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Longest delay before any attempt.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Options of a client. They cannot be shown, since they have the password.
#[derive(Clone)]
pub struct Options {
    /// The store's password, if it has one.
    pub password: Option<String>,
    /// Deadline of one attempt to connect, for each address of the name.
    pub connect_wait: Duration,
    /// Time for which connecting is tried, and tried again, before it is an error.
    pub reach_wait: Duration,
    /// Deadline of an answer. The store's own patience is 5 s, and a transaction that moves partitions
    /// together may need several of these.
    pub answer_wait: Duration,
    /// Attempts at a transaction, the first included; at least one is made.
    pub attempts: u32,
    /// The isolation of transactions that write.
    pub isolation: Isolation,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            password: None,
            connect_wait: Duration::from_secs(2),
            reach_wait: Duration::from_secs(10),
            answer_wait: Duration::from_secs(20),
            attempts: 100,
            isolation: Isolation::Serializable,
        }
    }
}

/// The isolation of a transaction that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All happen as if one after the other. Rows that are only read are locked at the commit, which
    /// takes place where their masters are: the store may have to bring these together first.
    Serializable,
    /// Its reads are of the snapshot at which it commits, which may be that of a replica: two
    /// transactions that each read a row that the other writes may both commit, if these rows have
    /// different masters.
    Snapshot,
}

/// The internal work of a client, besides its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that met others' changes of what they had read.
    pub conflicts: u64,
    /// Attempts of which nothing happened for another reason.
    pub failures: u64,
    /// Connections that it made.
    pub connections: u64,
}

/// One session with the store: what it does is done one after the other, and sees what it did before.
/// After a broken connection, which it replaces by itself, it is a new session.
///
/// See the module's documentation for what its transactions may rely on.
pub struct Client {
    address: String,
    info: ConnectionInfo,
    options: Options,
    connection: Option<Connection>,
    counts: Counts,
}

impl Client {
    /// Connects to a store at `HOST:PORT`.
    ///
    /// # Errors
    /// Returns an error if no store answers there within `reach_wait`, or it does not take the password.
    pub fn connect(address: &str, options: Options) -> Result<Self, ClientError> {
        let mut redis =
            RedisConnectionInfo::default().set_lib_name("imago", env!("CARGO_PKG_VERSION"));
        if let Some(password) = &options.password {
            redis = redis.set_password(password);
        }
        let info = format!("redis://{address}/").into_connection_info();
        let info = info.map_err(|source| ClientError::Unreachable {
            address: address.to_owned(),
            waited: Duration::ZERO,
            source,
        })?;
        let info = info.set_redis_settings(redis);
        let (address, counts) = (address.to_owned(), Counts::default());
        let mut client = Self { address, info, options, connection: None, counts };
        client.connected()?;
        Ok(client)
    }

    /// Its internal work besides its requests.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Runs a transaction: the closure, until what it read was one state and what it wrote is written.
    /// It may run many times, so it should do nothing else. The result of an attempt that does
    /// not count nothing is left.
    ///
    /// See the module's documentation for what it may rely on.
    ///
    /// # Errors
    /// The closure's own error, and then nothing was written. [`ClientError::Exhausted`] after as many
    /// attempts as may be, and [`ClientError::Unknown`] if it may have happened.
    pub fn transaction<T, E: From<ClientError>>(
        &mut self,
        mut run: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let isolation = self.options.isolation;
        self.attempt(|connection| {
            let mut transaction = Transaction::begin(connection, isolation)?;
            let returned = run(&mut transaction);
            transaction.finish(returned)
        })?
    }

    /// Does something again until it is done, or known not to be, or tried often enough.
    fn attempt<T>(
        &mut self,
        mut run: impl FnMut(&mut Connection) -> Result<T, Fault>,
    ) -> Result<T, ClientError> {
        let (mut attempts, mut conflicts) = (0, 0);
        loop {
            let done = run(self.connected()?);
            self.connection.take_if(|connection| connection.is_broken());
            attempts += 1;
            let last = match done {
                Ok(done) => return Ok(done),
                Err(Fault::Failed(error)) => return Err(error),
                Err(Fault::Unknown(why)) => return Err(ClientError::Unknown(why)),
                Err(Fault::Conflict) => {
                    conflicts += 1;
                    self.counts.conflicts += 1;
                    "others had changed what was read".to_owned()
                }
                Err(Fault::Nothing(why)) => {
                    self.counts.failures += 1;
                    why
                }
            };
            if attempts >= self.options.attempts {
                return Err(ClientError::Exhausted { attempts, conflicts, last });
            }
            pause(attempts);
        }
    }

    /// The connection; a new one, where there is none any more.
    fn connected(&mut self) -> Result<&mut Connection, ClientError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.reach()?,
        };
        Ok(self.connection.insert(connection))
    }

    fn reach(&mut self) -> Result<Connection, ClientError> {
        let Options { connect_wait: connect, answer_wait: answer, reach_wait, .. } = self.options;
        let began = Instant::now();
        let mut attempts = 0;
        loop {
            let source = match Connection::open(&self.info, Waits { connect, answer }) {
                Ok(connection) => {
                    self.counts.connections += 1;
                    return Ok(connection);
                }
                Err(source) => source,
            };
            let (address, waited) = (self.address.clone(), began.elapsed());
            if source.kind() == ErrorKind::AuthenticationFailed
                || matches!(source.code(), Some("NOAUTH" | "WRONGPASS"))
            {
                return Err(ClientError::NoEntry { address, source });
            }
            if waited >= reach_wait {
                return Err(ClientError::Unreachable { address, waited, source });
            }
            attempts += 1;
            pause(attempts);
        }
    }
}

/// Waits before another attempt: by chance, or those that met each other would meet again.
fn pause(attempts: u32) {
    let most = LAST_WAIT.min(FIRST_WAIT * 2_u32.pow(attempts.min(10) - 1));
    // A new one has keys of its own, which is all the chance that is needed.
    let chance = std::hash::RandomState::new().hash_one(attempts) as u32;
    thread::sleep(most.mul_f64(f64::from(chance) / f64::from(u32::MAX)));
}

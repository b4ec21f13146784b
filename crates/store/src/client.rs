//! A client of the store with typed tables and transactions, from any process, over the Redis protocol.
//!
//! A transaction is a closure. The rows that it reads are watched, its writes are buffered, and EXEC applies
//! all of them if no row that it read has changed; otherwise the closure runs again. So nothing is locked
//! while the closure runs, and a client that dies in between leaves nothing behind.
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
//! # Guarantees of a transaction
//!
//! *A transaction that completes saw one state.* Each call of [`Transaction::get`] or
//! [`Transaction::get_many`] reads a state of its own, and two such states may differ. So a closure may see
//! an inconsistent sum, and must do nothing with it but return. The result of the closure is returned only if
//! all rows that it read are unchanged at the commit, also if the closure returned an error of its own. A
//! closure that read by one call and wrote nothing needs no such check.
//!
//! *Transactions that write are serializable* ([`Isolation::Serializable`]) with respect to rows that are
//! read by their keys. The store itself provides snapshot isolation, under which two transactions may each
//! read a row that the other writes; so rows that were read are locked at the commit like written ones. The
//! serial order is that of the log. A transaction that only reads sees a state between two of these
//! transactions, though perhaps not the newest: it includes at least all that its own connection has seen and
//! written before. [`Isolation::Snapshot`] omits those locks.
//!
//! *Rows are watched, ranges are not.* A key that had no row when it was read, got one and lost it again
//! counts as unchanged. That is harmless: the transaction could have run later, and read the same. The set of
//! rows in a range is not watched: [`Client::scan`] is not part of transactions.
//!
//! *The outcome is known, or reported as unknown.* A transaction that certainly had no effect is retried a
//! bounded number of times. One that ended with [`ClientError::Unknown`] is never retried by the client. The
//! caller may retry it if the closure first reads a row under an id of the transaction, does nothing if that
//! row exists, and otherwise writes it.
//!
//! Connections are not encrypted yet; this client cannot connect to a store that requires TLS.

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

/// Maximum delay before the second attempt at a request; it doubles with each later attempt, up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Maximum delay before any attempt at a request.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Options of a client. They do not implement `Debug`, since they contain the password.
#[derive(Clone)]
pub struct Options {
    /// The store's password; `None` for a store without one.
    pub password: Option<String>,
    /// Time limit of one attempt to connect, for each address that the host name resolves to.
    pub connect_wait: Duration,
    /// Time during which a failed attempt to connect is repeated before [`ClientError::Unreachable`] is returned.
    pub reach_wait: Duration,
    /// Time limit for the store's reply to one request. The store's own time limit is 5 s, and a transaction that
    /// moves partitions together may need several times that.
    pub answer_wait: Duration,
    /// Maximum number of attempts at one transaction or other request, the first included; at least one is made.
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
    /// All transactions appear to run one after the other. Rows that are only read are locked at the commit,
    /// which takes place at their masters: the store may have to move these rows to one master first.
    Serializable,
    /// The transaction reads the snapshot at which it commits, which may be that of a replica. Two
    /// transactions that each read a row that the other writes may both commit, if these rows have different
    /// masters.
    Snapshot,
}

/// Counters of a client's attempts and connections since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of attempts that failed because another transaction had changed a row that they had read.
    pub conflicts: u64,
    /// Number of attempts that had no effect for another reason than such a conflict.
    pub failures: u64,
    /// Number of connections that the client has made to the store.
    pub connections: u64,
}

/// One session with the store: its requests run one after the other, and each sees the effects of the requests before
/// it. The client replaces a broken connection by itself, which begins a new session.
///
/// See the module's documentation for the guarantees of its transactions.
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
    /// Returns an error if no store answers at the address within `reach_wait`, or if the store refuses the password.
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

    /// Returns the counters of this client's attempts and connections.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Runs `run` as a transaction, again and again until all rows that it read were of one state and its writes are
    /// committed. The closure may run many times, so it should have no other effects. The results of other attempts
    /// are dropped.
    ///
    /// See the module's documentation for the guarantees.
    ///
    /// # Errors
    /// Returns the closure's own error, in which case nothing was written; [`ClientError::Exhausted`] after the
    /// maximum number of attempts; and [`ClientError::Unknown`] if the transaction may have happened.
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

    /// Runs `run` with a connection until it succeeds, fails for good, or has been attempted [`Options::attempts`]
    /// times.
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
                    "other transactions had changed the rows that were read".to_owned()
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

    /// Returns the client's connection; opens a new one if there is none.
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

/// Sleeps for a random time after this many attempts: clients that conflicted would otherwise conflict again.
fn pause(attempts: u32) {
    let most = LAST_WAIT.min(FIRST_WAIT * 2_u32.pow(attempts.min(10) - 1));
    // Each new `RandomState` has random keys, which is all the randomness that is needed.
    let chance = std::hash::RandomState::new().hash_one(attempts) as u32;
    thread::sleep(most.mul_f64(f64::from(chance) / f64::from(u32::MAX)));
}

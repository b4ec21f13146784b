//! The cache: Redis, with the raw document of each key.
//!
//! An entry's name is the namespace, a zero byte, and the key's identity, so collections do not mix, and the cache of a
//! worker and one beside the router share their entries. Its value is the document as the collection has it.
//!
//! Invariants: a value is used only if it is one whole document of the asked `_id`; a cache that fails is not asked again
//! by this process, and the work goes on without it, unless it is required. Nothing tells the cache that a document has
//! changed: a time to live bounds how old an entry gets.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use serde::Serialize;

use super::error::{Error, Result};
use super::key::{Key, identity_of_document, whole_document};
use super::source::Namespace;

/// Time in which the cache has to take a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time in which it has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How a cache is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// `redis://[user:password@]host:port[/db]`.
    pub uri: String,
    /// Without it nothing goes on.
    pub is_required: bool,
    /// The time to live of entries, in seconds; for ever without one.
    pub ttl_s: Option<u32>,
}

/// A cache, for as long as it answers.
#[derive(Clone, Debug)]
pub struct Cache {
    connection: Option<MultiplexedConnection>,
    prefix: Vec<u8>,
    address: String,
    is_required: bool,
    ttl_s: Option<u32>,
    failure: Arc<OnceLock<String>>,
}

/// A cached value.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The document.
    Document(Vec<u8>),
    /// There is none.
    Nothing,
    /// A value that is torn, or another document's.
    Refused,
}

/// What a cache holds, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Its entries (`DBSIZE`), those of others included.
    pub entries: u64,
    /// Its memory in use (`used_memory`), in bytes.
    pub used_bytes: u64,
    /// Its limit; 0 without one.
    pub limit_bytes: u64,
    /// Entries that it has evicted since its start.
    pub evicted: u64,
}

impl Cache {
    /// Connects. A cache that is not there is used as one that died, unless it is required.
    ///
    /// # Errors
    /// The address cannot be read; or it is required and does not answer.
    pub async fn connect(options: &Options, namespace: &Namespace) -> Result<Self> {
        let client = redis::Client::open(&*options.uri).map_err(|error| {
            Error::Usage(format!(
                "the cache's address cannot be read ({error}); write redis://HOST:PORT"
            ))
        })?;
        // Without the password, which the address may have.
        let address = client.get_connection_info().addr().to_string();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(ANSWER_MAX));
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut cache = Self {
            connection: None,
            prefix: [namespace.to_string().as_bytes(), &[0]].concat(),
            address,
            is_required: options.is_required,
            ttl_s: options.ttl_s,
            failure: Arc::default(),
        };
        match connected {
            Ok(connection) => cache.connection = Some(connection),
            Err(cause) => cache.fail(&cause)?,
        }
        Ok(cache)
    }

    /// Why it is no longer asked; `None` while it is.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn living(&self) -> Option<MultiplexedConnection> {
        self.connection.clone().filter(|_| self.failure().is_none())
    }

    /// Notes that it failed, and says it once.
    fn fail(&self, cause: &RedisError) -> Result<()> {
        let (cache, cause) = (self.address.clone(), cause.to_string());
        if self.is_required {
            return Err(Error::Cache { cache, cause });
        }
        if self.failure.set(format!("{cache}: {cause}")).is_ok() {
            tracing::warn!(cache, cause, "the cache has failed; going on without it");
        }
        Ok(())
    }

    fn name(&self, identity: &[u8]) -> Vec<u8> {
        [&self.prefix, identity].concat()
    }

    /// What it has of these identities, by one MGET; nothing of any after it failed.
    ///
    /// # Errors
    /// It failed, and is required.
    pub async fn get(&self, identities: &[&[u8]]) -> Result<Vec<Found>> {
        let none = || identities.iter().map(|_| Found::Nothing).collect();
        let Some(mut connection) = self.living().filter(|_| !identities.is_empty()) else {
            return Ok(none());
        };
        let mut command = redis::cmd("MGET");
        command.arg(identities.iter().map(|identity| self.name(identity)).collect::<Vec<_>>());
        let values: RedisResult<Vec<Option<Vec<u8>>>> = command.query_async(&mut connection).await;
        match values {
            Ok(values) if values.len() == identities.len() => Ok(values
                .into_iter()
                .zip(identities)
                .map(|(value, id)| checked(value, id))
                .collect()),
            Ok(values) => {
                let detail = format!("{} values for {} keys", values.len(), identities.len());
                let kind = redis::ErrorKind::UnexpectedReturnType;
                self.fail(&RedisError::from((kind, "MGET", detail)))?;
                Ok(none())
            }
            Err(cause) => {
                self.fail(&cause)?;
                Ok(none())
            }
        }
    }

    /// Puts documents in, by one pipeline of SETs, and returns how many it took. One that it refuses (its memory is full,
    /// and its policy evicts nothing) is no failure.
    ///
    /// # Errors
    /// It failed, and is required.
    pub async fn set(&self, entries: &[(&[u8], &[u8])]) -> Result<u64> {
        let Some(mut connection) = self.living().filter(|_| !entries.is_empty()) else {
            return Ok(0);
        };
        let mut pipeline = redis::Pipeline::with_capacity(entries.len());
        pipeline.ignore_errors();
        for (identity, document) in entries {
            let command = pipeline.cmd("SET").arg(self.name(identity)).arg(*document);
            if let Some(ttl_s) = self.ttl_s {
                command.arg("EX").arg(ttl_s);
            }
        }
        let taken: RedisResult<Vec<RedisResult<()>>> = pipeline.query_async(&mut connection).await;
        match taken {
            Ok(taken) => Ok(taken.iter().filter(|one| one.is_ok()).count() as u64),
            Err(cause) => {
                self.fail(&cause)?;
                Ok(0)
            }
        }
    }

    /// What it holds; `None` after it failed.
    ///
    /// # Errors
    /// It failed, and is required.
    pub async fn held(&self) -> Result<Option<Held>> {
        let Some(mut connection) = self.living() else { return Ok(None) };
        let entries = redis::cmd("DBSIZE").query_async::<u64>(&mut connection).await;
        let told = redis::cmd("INFO").query_async::<String>(&mut connection).await;
        match (entries, told) {
            (Ok(entries), Ok(told)) => {
                let of = |name: &str| {
                    let mut lines = told.lines().filter_map(|line| line.split_once(':'));
                    let value = lines.find(|(field, _)| *field == name)?.1;
                    value.trim().parse::<u64>().ok()
                };
                Ok(Some(Held {
                    entries,
                    used_bytes: of("used_memory").unwrap_or(0),
                    limit_bytes: of("maxmemory").unwrap_or(0),
                    evicted: of("evicted_keys").unwrap_or(0),
                }))
            }
            (Err(cause), _) | (_, Err(cause)) => self.fail(&cause).map(|()| None),
        }
    }

    /// The name of a key's entry.
    #[must_use]
    pub fn entry(namespace: &Namespace, key: &Key) -> Vec<u8> {
        [namespace.to_string().as_bytes(), &[0], key.identity()].concat()
    }
}

fn checked(value: Option<Vec<u8>>, identity: &[u8]) -> Found {
    let Some(value) = value else { return Found::Nothing };
    let own = whole_document(&value).and_then(identity_of_document);
    if own.is_some_and(|own| own == identity) { Found::Document(value) } else { Found::Refused }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_value_that_is_torn_or_another_documents_is_refused() {
        let document = rawdoc! {"_id": 7_i64, "text": "a review"}.into_bytes();
        let (seven, eight) = (Key::of_number(7), Key::of_number(8));
        assert_eq!(checked(None, seven.identity()), Found::Nothing);
        let found = checked(Some(document.clone()), seven.identity());
        assert_eq!(found, Found::Document(document.clone()));
        assert_eq!(checked(Some(document.clone()), eight.identity()), Found::Refused);
        for cut in 0..document.len() {
            let torn = Some(document[..cut].to_vec());
            assert_eq!(checked(torn, seven.identity()), Found::Refused, "{cut}");
        }
    }
}

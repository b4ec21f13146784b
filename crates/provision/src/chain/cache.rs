//! The cache of a chain: a Redis server, with the raw document of each key.
//!
//! An entry's name is the namespace, a zero byte, and the key's identity. So collections do not share names, while the
//! cache of a worker and that of a proxy at the router share their entries. Its value is the document as the collection
//! has it.
//!
//! Invariants: a value is used only if it is exactly one document of the requested `_id`; after a cache has failed,
//! this process does not use it again, and continues without it, unless it is required. The cache is not notified of
//! changes to a document: a time to live bounds the age of an entry.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use serde::Serialize;

use super::error::{Error, Result};
use super::key::{Key, identity_of_document, whole_document};
use super::source::Namespace;

/// Maximum time to open the connection to the cache; after it, the cache has failed.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Maximum time to wait for the cache's reply to one command; after it, the cache has failed.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Options of a connection to a cache.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the cache: `redis://[user:password@]host:port[/db]`.
    pub uri: String,
    /// True if a failure of the cache ends the work with an error; false if the work continues without the cache.
    pub is_required: bool,
    /// Time to live of the entries that are written, in seconds; `None`: they do not expire.
    pub ttl_s: Option<u32>,
}

/// A connection to a cache for one collection; after the first failure, it is not used any more.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The connection to the Redis server; `None` if it could not be opened.
    connection: Option<MultiplexedConnection>,
    /// The bytes with which each entry's name begins: the collection as `database.collection`, and a zero byte.
    prefix: Vec<u8>,
    /// Address of the cache as `host:port`, without the password that the URI may contain.
    address: String,
    /// True if a failure of the cache is returned as an error; false if it is only logged.
    is_required: bool,
    /// Time to live of the entries that are written, in seconds; `None`: they do not expire.
    ttl_s: Option<u32>,
    /// Description of the first failure, shared by all clones of the cache; unset while the cache is used.
    failure: Arc<OnceLock<String>>,
}

/// The result of the lookup of one key in the cache.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The document of the key, as BSON.
    Document(Vec<u8>),
    /// The cache has no entry for the key, or is not used any more.
    Nothing,
    /// The entry's value is not one whole document with the `_id` of the key: it is truncated, or another document.
    Refused,
}

/// Statistics of a Redis server, from its replies to `DBSIZE` and `INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheUsage {
    /// Number of entries in the selected Redis database (`DBSIZE`), those of other programs included.
    pub entries: u64,
    /// Memory that the Redis server uses for all its data (`used_memory`), in bytes.
    pub used_bytes: u64,
    /// Memory limit of the Redis server (`maxmemory`), in bytes; 0: no limit.
    pub limit_bytes: u64,
    /// Number of entries that the Redis server has evicted since its start to stay within its memory limit.
    pub evicted: u64,
}

impl Cache {
    /// Connects to a cache for the documents of the collection `namespace`. If the cache does not reply, the returned
    /// cache counts as failed and is not used, unless `options` require it.
    ///
    /// # Errors
    /// The address is invalid; or the cache is required and does not reply.
    #[crate::boxed]
    pub async fn connect(options: &Options, namespace: &Namespace) -> Result<Self> {
        let client = redis::Client::open(&*options.uri).map_err(|error| {
            Error::Usage(format!(
                "the cache's address cannot be read ({error}); write redis://HOST:PORT"
            ))
        })?;
        // The address is stored without the password that the URI may have.
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

    /// Returns the description of the failure after which the cache is not used; `None` while it is used.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Returns the connection to the cache; `None` if it could not be opened, or after a failure.
    fn living(&self) -> Option<MultiplexedConnection> {
        self.connection.clone().filter(|_| self.failure().is_none())
    }

    /// Handles a failure of the cache. Returns it as an error if the cache is required; else stores it if it is the
    /// first, logs it once, and returns `Ok`.
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

    /// Returns the Redis name of the entry of the key with this identity.
    fn name(&self, identity: &[u8]) -> Vec<u8> {
        [&self.prefix, identity].concat()
    }

    /// Looks up the documents of the keys with these identities ([`Key::identity`]) by one MGET, and returns a result
    /// for each, in their order. After a failure, all results are [`Found::Nothing`].
    ///
    /// # Errors
    /// The cache failed, and is required.
    #[crate::boxed]
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

    /// Stores documents by one pipeline of SETs, and returns the number that the cache accepted. Each entry is a pair
    /// of a key's identity ([`Key::identity`]) and its document as BSON. A document that the cache rejects (its
    /// memory is full, and its policy evicts nothing) is not a failure.
    ///
    /// # Errors
    /// The cache failed, and is required.
    #[crate::boxed]
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

    /// Returns the statistics of the cache; `None` after a failure.
    ///
    /// # Errors
    /// The cache failed, and is required.
    #[crate::boxed]
    pub async fn usage(&self) -> Result<Option<CacheUsage>> {
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
                Ok(Some(CacheUsage {
                    entries,
                    used_bytes: of("used_memory").unwrap_or(0),
                    limit_bytes: of("maxmemory").unwrap_or(0),
                    evicted: of("evicted_keys").unwrap_or(0),
                }))
            }
            (Err(cause), _) | (_, Err(cause)) => self.fail(&cause).map(|()| None),
        }
    }

    /// Returns the Redis name of the entry for `key` in the collection `namespace`.
    #[must_use]
    pub fn entry(namespace: &Namespace, key: &Key) -> Vec<u8> {
        [namespace.to_string().as_bytes(), &[0], key.identity()].concat()
    }
}

/// Converts the value of an entry into the result of a lookup. A value that is not exactly one document with the
/// `_id` of this identity is refused; `None` is a missing entry.
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

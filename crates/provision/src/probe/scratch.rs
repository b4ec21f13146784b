//! The probe's own entries in the cache: real documents under names that no job uses; the probe deletes them at the
//! end.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::Error;
use crate::chain::cache::{self, Cache};
use crate::chain::{Key, Namespace};

/// Number of entries that one command deletes.
const AT_ONCE: usize = 1_000;

/// The probe's own part of a cache: entries under names that no job uses.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Connection by which the entries are read and written as a job does.
    pub(super) cache: Cache,
    /// Namespace in the names of the entries: the collection's name, in a database name that only this probe uses.
    pub(super) namespace: Namespace,
    /// Options of `cache`, with which a proxy connects to the same cache.
    pub(super) options: cache::Options,
    /// Connection for commands about the cache server itself, such as `INFO`.
    connection: MultiplexedConnection,
}

/// Memory of the cache's server, from its reply to `INFO memory`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// Memory in use by the server's data, in bytes (`used_memory`).
    pub(super) used_bytes: u64,
    /// Memory that was in use after the server's start, in bytes (`used_memory_startup`).
    pub(super) startup_bytes: u64,
    /// Resident memory of the server's process, in bytes (`used_memory_rss`).
    pub(super) resident_bytes: u64,
    /// Memory limit of the server, in bytes (`maxmemory`); 0: no limit.
    pub(super) limit_bytes: u64,
}

impl Scratch {
    /// Connects to the cache at `uri` (`redis://…`), for documents of the collection named `coll`. The names of the
    /// entries contain the id of this process.
    pub(super) async fn connect(uri: &str, coll: &str) -> Result<Self, Error> {
        let namespace =
            Namespace { db: format!("imago-probe-{}", std::process::id()), coll: coll.to_owned() };
        let options = cache::Options { uri: uri.to_owned(), is_required: true, ttl_s: None };
        let cache = Cache::connect(&options, &namespace).await?;
        let client = redis::Client::open(uri).map_err(Error::Cache)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(Error::Cache)?;
        Ok(Self { cache, namespace, options, connection })
    }

    /// Runs a command on the cache server, and returns its reply.
    async fn run<T: redis::FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        command.query_async(&mut self.connection.clone()).await.map_err(Error::Cache)
    }

    /// Returns the server's reply to `INFO` for one section, as text.
    async fn info(&self, section: &str) -> Result<String, Error> {
        self.run(redis::cmd("INFO").arg(section)).await
    }

    /// Returns the processor time that the cache server has used since its start, in seconds.
    pub(super) async fn processor_s(&self) -> Result<f64, Error> {
        let told = self.info("cpu").await?;
        Ok(field(&told, "used_cpu_user")? + field(&told, "used_cpu_sys")?)
    }

    /// Returns the memory use and the memory limit of the cache server.
    pub(super) async fn memory(&self) -> Result<Memory, Error> {
        let told = self.info("memory").await?;
        let bytes = |name: &str| field(&told, name).map(|bytes| bytes as u64);
        Ok(Memory {
            used_bytes: bytes("used_memory")?,
            startup_bytes: bytes("used_memory_startup")?,
            resident_bytes: bytes("used_memory_rss")?,
            limit_bytes: bytes("maxmemory")?,
        })
    }

    /// Returns the mean memory of the entries of these keys in the cache, in bytes (`MEMORY USAGE`); a missing entry
    /// is an error.
    pub(super) async fn entry_bytes(&self, keys: &[Key]) -> Result<f64, Error> {
        let mut pipeline = redis::Pipeline::new();
        for key in keys {
            let name = Cache::entry(&self.namespace, key);
            pipeline.cmd("MEMORY").arg("USAGE").arg(name).arg("SAMPLES").arg(0);
        }
        let sizes: Vec<Option<u64>> =
            pipeline.query_async(&mut self.connection.clone()).await.map_err(Error::Cache)?;
        let known: Vec<u64> = sizes.into_iter().flatten().collect();
        if known.len() < keys.len() {
            let lost = keys.len() - known.len();
            let what = format!("the cache lost {lost} of {} entries within the probe", keys.len());
            return Err(Error::Unfit(what));
        }
        Ok(known.iter().sum::<u64>() as f64 / known.len().max(1) as f64)
    }

    /// Sends a PING to the cache server and waits for the reply.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.run::<Value>(&redis::cmd("PING")).await.map(drop)
    }

    /// Deletes the probe's entries of these keys from the cache.
    pub(super) async fn delete(&self, keys: &[Key]) -> Result<(), Error> {
        for some in keys.chunks(AT_ONCE) {
            let names: Vec<Vec<u8>> =
                some.iter().map(|key| Cache::entry(&self.namespace, key)).collect();
            self.run::<Value>(redis::cmd("UNLINK").arg(names)).await?;
        }
        Ok(())
    }
}

/// Returns the number in the field `name` of a reply to `INFO`, whose text is `told`.
fn field(told: &str, name: &str) -> Result<f64, Error> {
    let mut lines = told.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim());
    let unsaid = || Error::MissingValue { server: "the cache".into(), what: name.to_owned() };
    value.and_then(|value| value.parse().ok()).ok_or_else(unsaid)
}

//! The probe's own entries in the cache: real documents under a name that no job uses, deleted in the end.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::Error;
use crate::chain::cache::{self, Cache};
use crate::chain::{Key, Namespace};

/// Names of one command.
const AT_ONCE: usize = 1_000;

/// The probe's part of a cache.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) cache: Cache,
    /// The collection's name, in a database that is the probe's.
    pub(super) namespace: Namespace,
    pub(super) options: cache::Options,
    connection: MultiplexedConnection,
}

/// What the cache's server says of its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// Bytes in use.
    pub(super) used_bytes: u64,
    /// Bytes in use when it had started.
    pub(super) startup_bytes: u64,
    /// Resident bytes.
    pub(super) resident_bytes: u64,
    /// The limit; 0 for none.
    pub(super) limit_bytes: u64,
}

impl Scratch {
    /// Connects to `redis://…`; entries are named for this process.
    pub(super) async fn connect(uri: &str, coll: &str) -> Result<Self, Error> {
        let namespace =
            Namespace { db: format!("imago-probe-{}", std::process::id()), coll: coll.to_owned() };
        let options = cache::Options { uri: uri.to_owned(), is_required: true, ttl_s: None };
        let cache = Cache::connect(&options, &namespace).await?;
        let client = redis::Client::open(uri).map_err(Error::Cache)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(Error::Cache)?;
        Ok(Self { cache, namespace, options, connection })
    }

    async fn run<T: redis::FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        command.query_async(&mut self.connection.clone()).await.map_err(Error::Cache)
    }

    async fn told(&self, section: &str) -> Result<String, Error> {
        self.run(redis::cmd("INFO").arg(section)).await
    }

    /// The processor time of its server, in seconds.
    pub(super) async fn processor_s(&self) -> Result<f64, Error> {
        let told = self.told("cpu").await?;
        Ok(field(&told, "used_cpu_user")? + field(&told, "used_cpu_sys")?)
    }

    /// The memory of its server.
    pub(super) async fn memory(&self) -> Result<Memory, Error> {
        let told = self.told("memory").await?;
        let bytes = |name: &str| field(&told, name).map(|bytes| bytes as u64);
        Ok(Memory {
            used_bytes: bytes("used_memory")?,
            startup_bytes: bytes("used_memory_startup")?,
            resident_bytes: bytes("used_memory_rss")?,
            limit_bytes: bytes("maxmemory")?,
        })
    }

    /// The bytes of the entries of these keys (`MEMORY USAGE`), in the mean.
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

    /// Asks for a sign of life.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.run::<Value>(&redis::cmd("PING")).await.map(drop)
    }

    /// Deletes the entries of these keys.
    pub(super) async fn delete(&self, keys: &[Key]) -> Result<(), Error> {
        for some in keys.chunks(AT_ONCE) {
            let names: Vec<Vec<u8>> =
                some.iter().map(|key| Cache::entry(&self.namespace, key)).collect();
            self.run::<Value>(redis::cmd("UNLINK").arg(names)).await?;
        }
        Ok(())
    }
}

fn field(told: &str, name: &str) -> Result<f64, Error> {
    let mut lines = told.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim());
    let unsaid = || Error::Unsaid { server: "the cache".into(), what: name.to_owned() };
    value.and_then(|value| value.parse().ok()).ok_or_else(unsaid)
}

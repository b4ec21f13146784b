//! A sample of a server's keys, and the facts beside it. Nothing is written.
//!
//! `SCAN` goes through the keys in the order of their hashes, which has nothing to do with what they hold, so that the first
//! keys are a fair sample. A key is asked for its size before it is read (`DUMP`), as a large one would hold the server up.

use std::collections::BTreeMap;

use redis::{FromRedisValue as _, Pipeline, Value};

use super::super::connection::{Node, line};
use super::FITTED;
use crate::cluster::{Error, Result};

/// Keys that are larger are not read.
const KEY_BYTES_MAX: u64 = 4 << 20;
/// The sample ends when it holds so much.
const SAMPLE_BYTES_MAX: usize = 16 << 20;
/// Names asked for at once, keys looked at at once, and read at once.
const SCAN_COUNT: &str = "200";
const LOOK_AT_ONCE: usize = 50;
const READ_AT_ONCE: usize = 10;
/// Elements of a key by which its size is told.
const SIZED_BY: u32 = 100;

/// A server, as it is.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its version.
    pub version: String,
    /// Its keys.
    pub keys: u64,
    /// What counts towards `maxmemory`, in bytes.
    pub used_bytes: u64,
    /// What of it is not for keys: the program itself, clients, what replicas may miss, and without keys all the rest; in
    /// bytes.
    pub base_bytes: u64,
    /// `maxmemory`, in bytes; zero is no limit.
    pub limit_bytes: u64,
    /// What happens there (`maxmemory-policy`).
    pub policy: String,
    /// The values of [`FITTED`].
    pub settings: BTreeMap<String, String>,
}

impl Server {
    /// Asks it.
    ///
    /// # Errors
    /// It does not answer, forbids what is asked, is no Redis server, or holds keys in another database than 0.
    pub async fn look(node: &Node) -> Result<Self> {
        let info: String = node.ask(&["INFO"]).await?;
        let address = &node.address;
        if line(&info, "imago_version").is_some() {
            return Err(Error::precondition(
                format!("at {address} is a store of Imago's, which has no such settings"),
                "name a Redis server",
            ));
        }
        let other = info.lines().find(|line| {
            let database = line.strip_prefix("db").and_then(|rest| rest.split_once(':'));
            database.is_some_and(|(number, _)| number.parse::<u16>().is_ok_and(|of| of > 0))
        });
        if let Some(other) = other {
            return Err(Error::precondition(
                format!("{address} holds keys in another database than 0 ({})", other.trim()),
                "only database 0 is looked at, and the others count towards maxmemory, too",
            ));
        }
        let number = |key: &str| line(&info, key).and_then(|told| told.parse::<u64>().ok());
        let needed = |key: &str| {
            number(key).ok_or_else(|| {
                Error::failed(format!("{address} does not tell {key} (INFO)"), "is it Redis 7?")
            })
        };
        // It fills up sooner or later.
        let is_replicated = line(&info, "repl_backlog_active") == Some("1");
        let backlog = number("repl_backlog_size").filter(|_| is_replicated).unwrap_or(0);
        let backlog_now = number("mem_replication_backlog").unwrap_or(0);
        let backlog = backlog.max(backlog_now);
        let clients = number("mem_clients_normal").unwrap_or(0);
        let (used_bytes, keys) = (needed("used_memory")?, node.ask(&["DBSIZE"]).await?);
        // What else it needs, such as for the latencies of each command, is told by a server without keys alone.
        let base_bytes = match keys {
            0 => used_bytes.saturating_sub(backlog_now) + backlog,
            _ => needed("used_memory_startup")? + clients + backlog,
        };
        let mut settings = BTreeMap::new();
        for name in FITTED {
            let told: BTreeMap<String, String> = node.ask(&["CONFIG", "GET", name]).await?;
            if told.is_empty() {
                return Err(Error::failed(
                    format!("{address} has no setting {name}"),
                    "Redis 7 is needed: earlier versions keep data another way",
                ));
            }
            settings.extend(told);
        }
        Ok(Self {
            version: line(&info, "redis_version").unwrap_or_default().to_owned(),
            keys,
            used_bytes,
            base_bytes,
            limit_bytes: needed("maxmemory")?,
            policy: line(&info, "maxmemory_policy").unwrap_or_default().to_owned(),
            settings,
        })
    }
}

/// A key of a sample.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: Vec<u8>,
    /// `hash`, `zset`, and so on.
    pub(super) kind: String,
    pub(super) encoding: String,
    /// As the server tells it (`MEMORY USAGE`).
    pub(super) bytes: u64,
    /// As `RESTORE` takes it.
    pub(super) payload: Vec<u8>,
}

/// Some keys of a server.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub(super) keys: Vec<Key>,
    /// Keys that were too large to be read, and their bytes in all.
    pub(super) too_large: (u64, u64),
}

pub(super) const LOOKING: &str = "TYPE, OBJECT ENCODING and MEMORY USAGE";

/// Asks for a key's kind, encoding and size.
pub(super) fn look_at(commands: &mut Pipeline, name: &[u8]) {
    commands.cmd("TYPE").arg(name);
    commands.cmd("OBJECT").arg("ENCODING").arg(name);
    commands.cmd("MEMORY").arg("USAGE").arg(name).arg("SAMPLES").arg(SIZED_BY);
}

/// The answers for each key; nothing for one that is not there.
pub(super) fn looked_at(
    answers: &[Value],
) -> impl Iterator<Item = Option<(String, String, u64)>> + '_ {
    answers.chunks(3).map(|told| {
        let [kind, encoding, bytes] = told else { return None };
        let kind = String::from_redis_value_ref(kind).ok()?;
        let encoding = Option::<String>::from_redis_value_ref(encoding).ok()??;
        let bytes = Option::<u64>::from_redis_value_ref(bytes).ok()??;
        Some((kind, encoding, bytes))
    })
}

impl Sample {
    /// Reads so many keys at most.
    ///
    /// # Errors
    /// The server does not answer, or forbids what is asked.
    pub async fn take(node: &Node, keys_max: usize) -> Result<Self> {
        let (mut sample, mut cursor) = (Self::default(), String::from("0"));
        loop {
            let words = ["SCAN", &cursor, "COUNT", SCAN_COUNT];
            let (next, names): (String, Vec<Vec<u8>>) = node.ask(&words).await?;
            for names in names.chunks(LOOK_AT_ONCE) {
                if sample.add(node, names, keys_max).await? {
                    return Ok(sample);
                }
            }
            if next == "0" {
                return Ok(sample);
            }
            cursor = next;
        }
    }

    /// Reads these keys. Returns true when the sample is full.
    async fn add(&mut self, node: &Node, names: &[Vec<u8>], keys_max: usize) -> Result<bool> {
        let room = keys_max.saturating_sub(self.keys.len());
        let mut looked = self.look(node, &names[..names.len().min(room)]).await?;
        while !looked.is_empty() {
            let mut some: Vec<Key> = looked.drain(..looked.len().min(READ_AT_ONCE)).collect();
            let mut commands = redis::pipe();
            for key in &some {
                commands.cmd("DUMP").arg(&key.name);
            }
            let payloads: Vec<Option<Vec<u8>>> = node.ask_all("DUMP", &commands).await?;
            for (key, payload) in some.iter_mut().zip(payloads) {
                key.payload = payload.unwrap_or_default();
            }
            // One that is gone meanwhile has none.
            self.keys.extend(some.into_iter().filter(|key| !key.payload.is_empty()));
            let bytes: usize = self.keys.iter().map(|key| key.payload.len()).sum();
            if bytes >= SAMPLE_BYTES_MAX {
                return Ok(true);
            }
        }
        Ok(self.keys.len() >= keys_max)
    }

    /// The keys that may be read, without their content.
    async fn look(&mut self, node: &Node, names: &[Vec<u8>]) -> Result<Vec<Key>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut commands = redis::pipe();
        names.iter().for_each(|name| look_at(&mut commands, name));
        let answers: Vec<Value> = node.ask_all(LOOKING, &commands).await?;
        let mut keys = Vec::new();
        for (name, told) in names.iter().zip(looked_at(&answers)) {
            // One that is gone meanwhile has no encoding.
            let Some((kind, encoding, bytes)) = told else { continue };
            if bytes > KEY_BYTES_MAX {
                self.too_large = (self.too_large.0 + 1, self.too_large.1 + bytes);
                continue;
            }
            keys.push(Key { name: name.clone(), kind, encoding, bytes, payload: Vec::new() });
        }
        Ok(keys)
    }

    /// The keys that were read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// What a key takes on the server, as it tells, in the mean of those that were read, in bytes.
    #[must_use]
    pub fn key_bytes(&self) -> f64 {
        let all: u64 = self.keys.iter().map(|key| key.bytes).sum();
        all as f64 / self.keys.len().max(1) as f64
    }

    /// The same of all keys that were seen, those that were not read included.
    pub(super) fn key_bytes_of_all(&self) -> f64 {
        let (number, bytes) = self.too_large;
        let all = self.keys.iter().map(|key| key.bytes).sum::<u64>() + bytes;
        all as f64 / (self.keys.len() as u64 + number).max(1) as f64
    }

    /// The keys of each kind and encoding, as `hash listpack`.
    #[must_use]
    pub fn encodings(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for key in &self.keys {
            *counts.entry(format!("{} {}", key.kind, key.encoding)).or_default() += 1;
        }
        counts
    }
}

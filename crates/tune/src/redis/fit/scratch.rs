//! Measures a sample of keys with candidate settings on a scratch server without other load: memory, and CPU time of
//! operations.
//!
//! Hashes, sorted sets and sets are written element by element, as clients do: their encoding and free space are then
//! those of new data. Keys of other types are restored unchanged; no candidate setting affects them.
//!
//! Time is the CPU time of the server process (`INFO cpu`), without the network and this process. Operations are
//! pipelined; a single one takes longer, by the same amount with each setting.

use std::collections::BTreeMap;
use std::time::Duration;

use imago_plan::statistics::median;
use imago_plan::tune::sampling::order;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{FromRedisValue as _, Pipeline, Value};
use serde::Serialize;

use super::super::Uri;
use super::super::connection::{Node, line};
use super::sample::{INSPECTION_COMMANDS, Key, Sample, add_inspection, parse_inspections};
use crate::cluster::{Error, Result};

/// Timeout of the scratch server's reply to a batch, whose size is bounded.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Maximum size of a batch sent to the scratch server, in bytes, and maximum number of its commands.
const BYTES_AT_ONCE: usize = 256 << 10;
const OPERATIONS_AT_ONCE: usize = 100;
/// Maximum number of words in a command that writes elements of a key; even, as elements may have two words.
const WORDS_AT_ONCE: usize = 2_000;
/// Number of operations by which the CPU time of one kind of operations is measured.
const OPERATIONS: usize = 10_000;
/// Number of rounds in which each set of settings is measured, in alternating order.
const ROUNDS: usize = 3;
const SEED: u64 = 27;

/// Memory and CPU times of a sample of keys with one set of settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Number of keys by their type and encoding, such as `hash listpack`.
    pub encodings: BTreeMap<String, u64>,
    /// Mean memory that a key takes on the scratch server, in bytes.
    pub key_bytes: f64,
    /// Mean size of a key by `MEMORY USAGE`, in bytes: less than [`Self::key_bytes`], as it excludes the allocator's
    /// overhead.
    pub told_bytes: f64,
    /// CPU times of operations; None if no key is a hash, a sorted set or a set.
    pub times: Option<Times>,
}

/// CPU time that the scratch server takes for operations, in µs: medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Mean CPU time to write a complete key, in µs.
    pub load_us: f64,
    /// Mean CPU time to read one element of a key (HGET, ZSCORE, SISMEMBER), in µs.
    pub read_us: f64,
    /// Mean CPU time to overwrite one element of a key (HSET, ZINCRBY, SADD), in µs.
    pub write_us: f64,
}

/// Content of a sampled key, in the form in which it is written to the scratch server.
enum Content {
    /// Type of the key, and the words of all its elements in the order in which a command writes them.
    Elements(Kind, Vec<Vec<u8>>),
    /// Serialized content of the key, as RESTORE takes it.
    Payload(Vec<u8>),
}

/// A type of keys whose encoding depends on the key's size.
#[derive(Clone, Copy)]
enum Kind {
    Hash,
    SortedSet,
    Set,
}

impl Kind {
    /// Returns the type with this name in Redis; None if its encoding is not compared.
    fn of(name: &str) -> Option<Self> {
        match name {
            "hash" => Some(Self::Hash),
            "zset" => Some(Self::SortedSet),
            "set" => Some(Self::Set),
            _ => None,
        }
    }

    /// Returns the number of words in a command for each element of a key of this type.
    fn words(self) -> usize {
        match self {
            Self::Hash | Self::SortedSet => 2,
            Self::Set => 1,
        }
    }

    /// Adds the command that reads all elements of the key `name` to a pipeline.
    fn read_all(self, commands: &mut Pipeline, name: &[u8]) {
        match self {
            Self::Hash => commands.cmd("HGETALL").arg(name),
            Self::SortedSet => {
                commands.cmd("ZRANGE").arg(name).arg("0").arg("-1").arg("WITHSCORES")
            }
            Self::Set => commands.cmd("SMEMBERS").arg(name),
        };
    }

    /// Adds the command that writes elements of the key `name` to a pipeline; `words` has the words of the elements.
    fn write(self, commands: &mut Pipeline, name: &[u8], words: &[Vec<u8>]) {
        let command = match self {
            Self::Hash => "HSET",
            Self::SortedSet => "ZADD",
            Self::Set => "SADD",
        };
        commands.cmd(command).arg(name).arg(words);
    }

    /// Adds the command that reads one element of the key `name` to a pipeline; `element` has the words with which
    /// the element was written.
    fn read_one(self, commands: &mut Pipeline, name: &[u8], element: &[Vec<u8>]) {
        match self {
            Self::Hash => commands.cmd("HGET").arg(name).arg(&element[0]),
            Self::SortedSet => commands.cmd("ZSCORE").arg(name).arg(&element[1]),
            Self::Set => commands.cmd("SISMEMBER").arg(name).arg(&element[0]),
        };
    }

    /// Adds the command that overwrites one element of the key `name` to a pipeline; `element` has the words with
    /// which the element was written.
    fn write_one(self, commands: &mut Pipeline, name: &[u8], element: &[Vec<u8>]) {
        match self {
            Self::Hash => commands.cmd("HSET").arg(name).arg(element),
            Self::SortedSet => commands.cmd("ZINCRBY").arg(name).arg("1").arg(&element[1]),
            Self::Set => commands.cmd("SADD").arg(name).arg(&element[0]),
        };
    }
}

/// A scratch server without other load, and the sample of keys that is measured on it.
pub struct Scratch {
    node: Node,
    /// Version of Redis that the scratch server runs.
    pub version: String,
    /// Names and contents of the sampled keys.
    keys: Vec<(Vec<u8>, Content)>,
}

impl Scratch {
    /// Connects to an empty server, and disables its persistence and its memory limit.
    ///
    /// # Errors
    /// Fails if the server does not answer, or if it has keys, which the measurements would delete.
    #[crate::boxed]
    pub async fn open(uri: &Uri) -> Result<Self> {
        let node = Node::connect_to_any(uri, ANSWER_WAIT).await?;
        if node.ask::<u64>(&["DBSIZE"]).await? > 0 {
            return Err(Error::precondition(
                format!("{} holds keys, which measuring would delete", node.address),
                "name an empty server",
            ));
        }
        for (name, value) in [("appendonly", "no"), ("save", ""), ("maxmemory", "0")] {
            node.ask::<()>(&["CONFIG", "SET", name, value]).await?;
        }
        let info: String = node.ask(&["INFO", "server"]).await?;
        let version = line(&info, "redis_version").unwrap_or_default().to_owned();
        Ok(Self { node, version, keys: Vec::new() })
    }

    /// Loads all keys of another server's sample as the keys to measure.
    ///
    /// # Errors
    /// Fails if this server cannot read the other server's format.
    #[crate::boxed]
    pub async fn take(&mut self, sample: &Sample) -> Result<()> {
        let keys: Vec<Key> = sample.keys.iter().chain(&sample.large).cloned().collect();
        self.load_keys(&keys).await
    }

    /// Loads these keys of another server's sample as the keys to measure.
    pub(super) async fn load_keys(&mut self, keys: &[Key]) -> Result<()> {
        self.keys.clear();
        for keys in batches(keys, |key| key.payload.len()) {
            self.flush().await?;
            self.restore(keys.iter().map(|key| (&*key.name, &*key.payload))).await?;
            let contents = self.contents(keys).await?;
            self.keys.extend(keys.iter().map(|key| key.name.clone()).zip(contents));
        }
        Ok(())
    }

    /// Restores keys, each given by its name and serialized content, on the scratch server.
    async fn restore<'k>(&self, keys: impl Iterator<Item = (&'k [u8], &'k [u8])>) -> Result<()> {
        let mut commands = redis::pipe();
        for (name, payload) in keys {
            commands.cmd("RESTORE").arg(name).arg(0).arg(payload).arg("REPLACE");
        }
        let restored: Result<Value> = self.node.ask_all("RESTORE", &commands).await;
        match restored {
            Err(Error::Statement { source, .. }) if source.to_string().contains("DUMP payload") => {
                Err(Error::precondition(
                    format!(
                        "redis-server {} cannot read the keys of that server: {source}",
                        self.version
                    ),
                    "install a version that is as new as the server's",
                ))
            }
            other => other.map(drop),
        }
    }

    /// Returns the contents of these keys, which were restored on the scratch server before.
    async fn contents(&self, keys: &[Key]) -> Result<Vec<Content>> {
        let mut commands = redis::pipe();
        let kinds: Vec<Option<Kind>> = keys.iter().map(|key| Kind::of(&key.kind)).collect();
        for (key, kind) in keys.iter().zip(&kinds) {
            match kind {
                Some(kind) => kind.read_all(&mut commands, &key.name),
                None => drop(commands.cmd("EXISTS").arg(&key.name)),
            }
        }
        let answers: Vec<Value> = self.node.ask_all("reading a sample", &commands).await?;
        let content = |((key, kind), answer): ((&Key, &Option<Kind>), Value)| {
            let Some(kind) = *kind else { return Ok(Content::Payload(key.payload.clone())) };
            let mut words = Vec::<Vec<u8>>::from_redis_value(answer).map_err(|error| {
                Error::failed(format!("a sample cannot be read: {error}"), "is it Redis 7?")
            })?;
            if matches!(kind, Kind::SortedSet) {
                words.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
            }
            Ok(Content::Elements(kind, words))
        };
        keys.iter().zip(&kinds).zip(answers).map(content).collect()
    }

    /// Removes all keys of the scratch server.
    async fn flush(&self) -> Result<()> {
        self.node.ask(&["FLUSHALL", "SYNC"]).await
    }

    /// Measures the loaded keys with each of these sets of settings, in rounds of alternating order, and returns the
    /// medians for each set.
    ///
    /// # Errors
    /// Fails if the server refuses a setting, or runs out of memory.
    #[crate::boxed]
    pub async fn measure(&self, all: &[BTreeMap<String, String>]) -> Result<Vec<Measured>> {
        let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); all.len()];
        for (_, number) in order(all.len(), ROUNDS) {
            rounds[number].push(self.measure_once(&all[number]).await?);
        }
        self.flush().await?;
        Ok(rounds.iter().map(|rounds| medians(rounds)).collect())
    }

    /// Writes the loaded keys to the empty scratch server with these settings, and measures memory and CPU times.
    async fn measure_once(&self, settings: &BTreeMap<String, String>) -> Result<Measured> {
        self.flush().await?;
        for (name, value) in settings {
            self.node.ask::<()>(&["CONFIG", "SET", name, value]).await?;
        }
        let empty = self.used_bytes().await?;
        let (elements, payloads): (Vec<_>, Vec<_>) =
            self.keys.iter().partition(|(_, content)| matches!(content, Content::Elements(..)));
        for keys in batches(&payloads, |(_, content)| content.bytes()) {
            let restored = keys.iter().filter_map(|(name, content)| match content {
                Content::Payload(payload) => Some((&**name, &**payload)),
                Content::Elements(..) => None,
            });
            self.restore(restored).await?;
        }
        let before = self.cpu_us().await?;
        for keys in batches(&elements, |(_, content)| content.bytes()) {
            let mut commands = redis::pipe();
            for (name, content) in keys {
                let Content::Elements(kind, words) = content else { continue };
                words
                    .chunks(WORDS_AT_ONCE)
                    .for_each(|words| kind.write(&mut commands, name, words));
            }
            self.node.ask_all::<Value>("writing a sample", &commands).await?;
        }
        let load_us = (self.cpu_us().await? - before) / elements.len().max(1) as f64;
        let taken = self.used_bytes().await?.saturating_sub(empty);
        let (encodings, told_bytes) = self.encodings().await?;
        let times = if elements.is_empty() {
            None
        } else {
            let read_us = self.operations(&elements, Kind::read_one).await?;
            let write_us = self.operations(&elements, Kind::write_one).await?;
            Some(Times { load_us, read_us, write_us })
        };
        let key_bytes = taken as f64 / self.keys.len().max(1) as f64;
        Ok(Measured { encodings, key_bytes, told_bytes, times })
    }

    /// Returns the mean CPU time, in µs, of an operation, executed on random elements of these keys in turn.
    async fn operations(
        &self,
        keys: &[&(Vec<u8>, Content)],
        operation: fn(Kind, &mut Pipeline, &[u8], &[Vec<u8>]),
    ) -> Result<f64> {
        let mut rng = StdRng::seed_from_u64(SEED);
        let before = self.cpu_us().await?;
        for first in (0..OPERATIONS).step_by(OPERATIONS_AT_ONCE) {
            let mut commands = redis::pipe();
            for number in first..first + OPERATIONS_AT_ONCE {
                let (name, content) = keys[number % keys.len()];
                let Content::Elements(kind, words) = content else { continue };
                let elements = words.len() / kind.words();
                let at = kind.words() * rng.random_range(0..elements.max(1));
                operation(*kind, &mut commands, name, &words[at..at + kind.words()]);
            }
            self.node.ask_all::<Value>("measuring operations", &commands).await?;
        }
        Ok((self.cpu_us().await? - before) / OPERATIONS as f64)
    }

    /// Returns the number of keys on the scratch server by type and encoding, and the mean size of a key by
    /// `MEMORY USAGE`, in bytes.
    async fn encodings(&self) -> Result<(BTreeMap<String, u64>, f64)> {
        let (mut counts, mut bytes) = (BTreeMap::new(), 0);
        for keys in self.keys.chunks(OPERATIONS_AT_ONCE) {
            let mut commands = redis::pipe();
            for (name, _) in keys {
                add_inspection(&mut commands, name);
            }
            let told: Vec<(String, String, u64)> = parse_inspections(
                &self.node.ask_all::<Vec<Value>>(INSPECTION_COMMANDS, &commands).await?,
            )
            .flatten()
            .collect();
            for (kind, encoding, size) in told {
                *counts.entry(format!("{kind} {encoding}")).or_default() += 1;
                bytes += size;
            }
        }
        Ok((counts, bytes as f64 / self.keys.len().max(1) as f64))
    }

    /// Returns the memory in use on the scratch server, in bytes, without that of normal client connections.
    async fn used_bytes(&self) -> Result<u64> {
        let info: String = self.node.ask(&["INFO", "memory"]).await?;
        let number = |key| line(&info, key).and_then(|told| told.parse::<u64>().ok());
        let used = number("used_memory").zip(number("mem_clients_normal"));
        let used = used.map(|(used, clients)| used.saturating_sub(clients));
        used.ok_or_else(|| self.untold("its memory"))
    }

    /// Returns the CPU time that the scratch server has taken since its start, in µs.
    async fn cpu_us(&self) -> Result<f64> {
        let info: String = self.node.ask(&["INFO", "cpu"]).await?;
        let seconds = |key| line(&info, key).and_then(|told| told.parse::<f64>().ok());
        let of = seconds("used_cpu_user").zip(seconds("used_cpu_sys"));
        of.map(|(user, system)| 1e6 * (user + system)).ok_or_else(|| self.untold("its time"))
    }

    fn untold(&self, what: &str) -> Error {
        Error::failed(
            format!("{} does not tell {what} (INFO)", self.node.address),
            "is it Redis 7?",
        )
    }
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Self::Elements(_, words) => words.iter().map(|word| word.len() + 16).sum(),
            Self::Payload(payload) => payload.len(),
        }
    }
}

/// Splits a list into parts of at most [`BYTES_AT_ONCE`] by the function `bytes`, unless a single item is larger.
fn batches<T>(mut items: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut parts = Vec::new();
    while !items.is_empty() {
        let mut sum = 0;
        let fitting = items.iter().take_while(|item| {
            sum += bytes(item);
            sum <= BYTES_AT_ONCE
        });
        let (part, rest) = items.split_at(fitting.count().max(1));
        parts.push(part);
        items = rest;
    }
    parts
}

/// Returns the medians of the measurements of all rounds (at least one).
fn medians(rounds: &[Measured]) -> Measured {
    let median = |of: fn(&Measured) -> Option<f64>| median(rounds.iter().filter_map(of));
    let load = median(|one| Some(one.times?.load_us));
    let read = median(|one| Some(one.times?.read_us));
    let write = median(|one| Some(one.times?.write_us));
    let times = load.zip(read).zip(write);
    Measured {
        encodings: rounds[0].encodings.clone(),
        key_bytes: median(|one| Some(one.key_bytes)).unwrap_or(0.0),
        told_bytes: median(|one| Some(one.told_bytes)).unwrap_or(0.0),
        times: times.map(|((load_us, read_us), write_us)| Times { load_us, read_us, write_us }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_all_items_once_and_are_small() {
        let sizes = [1, BYTES_AT_ONCE, 2, 3, BYTES_AT_ONCE + 9, 5, BYTES_AT_ONCE - 5, 1];
        let parts = batches(&sizes, |size| *size);
        assert_eq!(parts.concat(), sizes);
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [1, 1, 2, 1, 2, 1]);
        assert!(batches(&[0_usize; 0], |size| *size).is_empty());
    }

    #[test]
    fn figures_are_medians_of_rounds() {
        let round = |read_us: f64| Measured {
            encodings: BTreeMap::from([("hash listpack".into(), 3)]),
            key_bytes: 100.0,
            told_bytes: 90.0,
            times: Some(Times { load_us: 9.0, read_us, write_us: 2.0 }),
        };
        let told = medians(&[round(4.0), round(1.0), round(2.0)]);
        assert_eq!(told, round(2.0));
    }
}

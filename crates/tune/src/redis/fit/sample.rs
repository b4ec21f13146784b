//! A sample of a Redis server's keys, and statistics of the server. Nothing is written.
//!
//! `SCAN` returns the keys in the order of their hashes, which is independent of their contents, so that the first keys
//! are a representative sample. The size of a key is checked before it is read (`DUMP`), as a large one would block the
//! server.
//!
//! A few large keys may hold most of the memory, and none of them may be among the first. So the sizes of more keys are
//! inspected than are read, up to a bound of keys and of time, and the largest outliers are read, too. These form a
//! group of their own, in which each key represents itself, while the other keys represent all keys outside of this
//! group.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::{FromRedisValue as _, Pipeline, Value};

use super::super::connection::{Node, line};
use super::FITTED;
use crate::cluster::{Error, Result};

/// Maximum size of a key whose content is read, in bytes.
const KEY_BYTES_MAX: u64 = 4 << 20;
/// Total size of the contents read at which a group of the sample is complete, in bytes.
const SAMPLE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of keys whose sizes are inspected, and the time limit for that.
const INSPECTED_MAX: u64 = 500_000;
const INSPECTION_BOUND: Duration = Duration::from_secs(60);
/// Maximum number of outliers (large keys) in a sample, and the minimum ratio of their size to the mean size of a
/// key.
const LARGE_MAX: usize = 100;
const LARGE: f64 = 8.0;
/// Batch sizes: names per SCAN, keys inspected together, and keys read together.
const SCAN_COUNT: &str = "200";
const INSPECTED_AT_ONCE: usize = 50;
const READ_AT_ONCE: usize = 10;
/// Number of elements of a key from which the server estimates the key's size (`MEMORY USAGE`).
const SIZED_BY: u32 = 100;

/// Statistics and settings of a Redis server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Version of Redis that the server runs.
    pub version: String,
    /// Number of keys in the server's database 0, the only one that has keys.
    pub keys: u64,
    /// Memory in use on the server that counts towards `maxmemory`, in bytes.
    pub used_bytes: u64,
    /// Part of the memory in use that is not for keys, in bytes: the server itself, clients, the replication backlog;
    /// without keys, all of it.
    pub base_bytes: u64,
    /// The server's limit of memory in use (`maxmemory`), in bytes; zero is no limit.
    pub limit_bytes: u64,
    /// Policy by which the server evicts keys at its limit (`maxmemory-policy`).
    pub policy: String,
    /// Values of the settings in [`FITTED`] (the thresholds of compact encodings) on the server, by name.
    pub settings: BTreeMap<String, String>,
}

impl Server {
    /// Reads the statistics and settings of the server to which `node` is a connection.
    ///
    /// # Errors
    /// Fails if the server does not answer, refuses a command, is not a Redis server, or has keys in a database other
    /// than 0.
    #[crate::boxed]
    pub async fn inspect(node: &Node) -> Result<Self> {
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
        // The backlog fills up sooner or later.
        let is_replicated = line(&info, "repl_backlog_active") == Some("1");
        let backlog = number("repl_backlog_size").filter(|_| is_replicated).unwrap_or(0);
        let backlog_now = number("mem_replication_backlog").unwrap_or(0);
        let backlog = backlog.max(backlog_now);
        let clients = number("mem_clients_normal").unwrap_or(0);
        let (used_bytes, keys) = (needed("used_memory")?, node.ask(&["DBSIZE"]).await?);
        // Other base memory, such as for latency statistics of each command, is visible only on a server without keys.
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

/// A sampled key with its content.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: Vec<u8>,
    /// Type of the key: `hash`, `zset`, and so on.
    pub(super) kind: String,
    pub(super) encoding: String,
    /// Size of the key by `MEMORY USAGE`, in bytes.
    pub(super) bytes: u64,
    /// Serialized content of the key (`DUMP`), as `RESTORE` takes it.
    pub(super) payload: Vec<u8>,
}

/// A sample of a Redis server's keys: common ones and large outliers.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Common keys that were read; they represent all keys except the outliers.
    pub(super) keys: Vec<Key>,
    /// Outliers (keys many times as large as the mean) that were read; each represents itself.
    pub(super) large: Vec<Key>,
    /// Number of outliers that were not read, being too large alone or in total, and their total size by
    /// `MEMORY USAGE`, in bytes.
    pub(super) too_large: (u64, u64),
    /// Number of keys whose sizes were inspected, and their total size by `MEMORY USAGE`, in bytes.
    pub(super) inspected: (u64, u64),
}

pub(super) const INSPECTION_COMMANDS: &str = "TYPE, OBJECT ENCODING and MEMORY USAGE";

/// Adds the commands that return the type, the encoding and the size of the key `name` to a pipeline.
pub(super) fn add_inspection(commands: &mut Pipeline, name: &[u8]) {
    commands.cmd("TYPE").arg(name);
    commands.cmd("OBJECT").arg("ENCODING").arg(name);
    commands.cmd("MEMORY").arg("USAGE").arg(name).arg("SAMPLES").arg(SIZED_BY);
}

/// Decodes the replies to the commands of [`add_inspection`] for several keys: each key's type, encoding and size in
/// bytes; None for a key that does not exist.
pub(super) fn parse_inspections(
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

/// A key whose type, encoding and size were inspected, without its content.
#[derive(Clone, Debug)]
struct InspectedKey {
    /// Size of the key by `MEMORY USAGE`, in bytes.
    bytes: u64,
    name: Vec<u8>,
    kind: String,
    encoding: String,
}

impl Sample {
    /// Reads at most `keys_max` keys of the server, and the outliers among those whose sizes are inspected.
    ///
    /// # Errors
    /// Fails if the server does not answer, or refuses a command.
    #[crate::boxed]
    pub async fn take(node: &Node, keys_max: usize) -> Result<Self> {
        let (mut sample, mut cursor) = (Self::default(), String::from("0"));
        let began = Instant::now();
        let (mut first, mut largest) = (Vec::<InspectedKey>::new(), Vec::<InspectedKey>::new());
        loop {
            let words = ["SCAN", &cursor, "COUNT", SCAN_COUNT];
            let (next, names): (String, Vec<Vec<u8>>) = node.ask(&words).await?;
            for names in names.chunks(INSPECTED_AT_ONCE) {
                for one in inspect(node, names).await? {
                    sample.inspected = (sample.inspected.0 + 1, sample.inspected.1 + one.bytes);
                    largest.push(one.clone());
                    if first.len() < keys_max {
                        first.push(one);
                    }
                }
                if largest.len() > 4 * LARGE_MAX {
                    truncate_to_largest(&mut largest);
                }
            }
            let is_enough =
                sample.inspected.0 >= INSPECTED_MAX || began.elapsed() >= INSPECTION_BOUND;
            if next == "0" || (is_enough && first.len() >= keys_max) {
                break;
            }
            cursor = next;
        }
        truncate_to_largest(&mut largest);
        let (keys, bytes) = sample.inspected;
        let stands_out = LARGE * bytes as f64 / keys.max(1) as f64;
        largest.retain(|one| one.bytes as f64 >= stands_out || one.bytes > KEY_BYTES_MAX);
        // SCAN may return a key twice if the server's hash table grows meanwhile.
        largest.sort_by(|one, two| one.name.cmp(&two.name));
        largest.dedup_by(|one, two| one.name == two.name);
        let is_large = |one: &InspectedKey| {
            largest.binary_search_by(|other| other.name.cmp(&one.name)).is_ok()
        };
        let common: Vec<InspectedKey> = first.into_iter().filter(|one| !is_large(one)).collect();
        sample.keys =
            read(node, common.into_iter().filter(|one| one.bytes <= KEY_BYTES_MAX)).await?;
        for one in largest.iter().filter(|one| one.bytes > KEY_BYTES_MAX) {
            sample.too_large = (sample.too_large.0 + 1, sample.too_large.1 + one.bytes);
        }
        let readable = largest.into_iter().filter(|one| one.bytes <= KEY_BYTES_MAX);
        let expected: Vec<InspectedKey> = readable.collect();
        sample.large = read(node, expected.iter().cloned()).await?;
        // Outliers beyond the maximum size of the sample count by their sizes only.
        let is_read = |one: &&InspectedKey| sample.large.iter().any(|key| key.name == one.name);
        let left: Vec<&InspectedKey> = expected.iter().filter(|one| !is_read(one)).collect();
        sample.too_large.0 += left.len() as u64;
        sample.too_large.1 += left.iter().map(|one| one.bytes).sum::<u64>();
        Ok(sample)
    }

    /// Returns two values for each group (the common keys, the outliers that were read) on a server with `keys` keys:
    /// the number of keys that the group represents, and the ratio of their mean size to that of the keys that were
    /// read.
    pub(super) fn groups(&self, keys: f64) -> [(f64, f64); 2] {
        let (looked, bytes) = (self.inspected.0 as f64, self.inspected.1 as f64);
        let all = |keys: &[Key]| keys.iter().map(|key| key.bytes).sum::<u64>() as f64;
        let (out, out_bytes) = (
            self.large.len() as u64 + self.too_large.0,
            all(&self.large) + self.too_large.1 as f64,
        );
        let scale = keys / looked.max(1.0);
        let common = looked - out as f64;
        let mean = (bytes - out_bytes).max(0.0) / common.max(1.0);
        let read = all(&self.keys) / (self.keys.len() as f64).max(1.0);
        let larger = if read > 0.0 { mean / read } else { 1.0 };
        [(common * scale, larger), (self.large.len() as f64 * scale, 1.0)]
    }

    /// Returns the total size of the keys that are too large to be read on a server with `keys` keys, in bytes,
    /// extrapolated from the inspected keys.
    pub(super) fn unread_bytes(&self, keys: f64) -> f64 {
        self.too_large.1 as f64 * keys / (self.inspected.0 as f64).max(1.0)
    }

    /// Returns the number of keys whose content was read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len() + self.large.len()
    }

    /// Returns the number of keys whose sizes were inspected, including those that were not read.
    #[must_use]
    pub fn inspected(&self) -> u64 {
        self.inspected.0
    }

    /// Returns true if the content of no key was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the mean size of the inspected keys by `MEMORY USAGE`, in bytes.
    #[must_use]
    pub fn key_bytes(&self) -> f64 {
        self.inspected.1 as f64 / (self.inspected.0 as f64).max(1.0)
    }

    /// Returns the number of keys that were read by their type and encoding, such as `hash listpack`.
    #[must_use]
    pub fn encodings(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for key in self.keys.iter().chain(&self.large) {
            *counts.entry(format!("{} {}", key.kind, key.encoding)).or_default() += 1;
        }
        counts
    }
}

/// Removes duplicates, and all but the [`LARGE_MAX`] largest keys, from a list.
fn truncate_to_largest(all: &mut Vec<InspectedKey>) {
    all.sort_by(|one, two| two.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&two.name)));
    all.dedup_by(|one, two| one.name == two.name);
    all.truncate(LARGE_MAX);
}

/// Returns the type, encoding and size of the keys with these names, as far as they exist.
async fn inspect(node: &Node, names: &[Vec<u8>]) -> Result<Vec<InspectedKey>> {
    let mut commands = redis::pipe();
    names.iter().for_each(|name| add_inspection(&mut commands, name));
    let answers: Vec<Value> = node.ask_all(INSPECTION_COMMANDS, &commands).await?;
    let told = names.iter().zip(parse_inspections(&answers)).filter_map(|(name, told)| {
        // A key that was deleted meanwhile has no encoding.
        let (kind, encoding, bytes) = told?;
        Some(InspectedKey { bytes, name: name.clone(), kind, encoding })
    });
    Ok(told.collect())
}

/// Reads the contents of inspected keys, up to a total of [`SAMPLE_BYTES_MAX`].
async fn read(node: &Node, looked: impl Iterator<Item = InspectedKey>) -> Result<Vec<Key>> {
    let (mut keys, mut bytes) = (Vec::new(), 0);
    let mut looked = looked.peekable();
    while looked.peek().is_some() && bytes < SAMPLE_BYTES_MAX {
        let some: Vec<InspectedKey> = looked.by_ref().take(READ_AT_ONCE).collect();
        let mut commands = redis::pipe();
        for one in &some {
            commands.cmd("DUMP").arg(&one.name);
        }
        let payloads: Vec<Option<Vec<u8>>> = node.ask_all("DUMP", &commands).await?;
        for (InspectedKey { bytes: told, name, kind, encoding }, payload) in
            some.into_iter().zip(payloads)
        {
            // A key that was deleted meanwhile has no content.
            let Some(payload) = payload else { continue };
            bytes += payload.len();
            keys.push(Key { name, kind, encoding, bytes: told, payload });
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: u64) -> Key {
        Key {
            name: Vec::new(),
            kind: "hash".into(),
            encoding: "listpack".into(),
            bytes,
            payload: Vec::new(),
        }
    }

    #[test]
    fn keys_that_stand_out_count_as_themselves_and_the_others_for_the_rest() {
        // A thousand of 100 bytes in the mean, of which ten of 90 were read; ten of 100,000; and one that was too large.
        let sample = Sample {
            keys: vec![key(90); 10],
            large: vec![key(100_000); 10],
            too_large: (1, 5_000_000),
            inspected: (1_011, 100 * 1_000 + 1_000_000 + 5_000_000),
        };
        let [(common, larger), (large, as_large)] = sample.groups(1_011.0);
        assert!((common - 1_000.0).abs() < 1e-9 && (large - 10.0).abs() < 1e-9);
        assert!((larger - 100.0 / 90.0).abs() < 1e-9 && (as_large - 1.0).abs() < 1e-9);
        assert!((sample.unread_bytes(1_011.0) - 5e6).abs() < 1e-6);
        // Twice the keys, if they are of the same kinds.
        let [(common, _), (large, _)] = sample.groups(2_022.0);
        assert!((common - 2_000.0).abs() < 1e-9 && (large - 20.0).abs() < 1e-9);
    }

    #[test]
    fn the_largest_are_kept_once() {
        let one = |bytes: u64| InspectedKey {
            bytes,
            name: bytes.to_be_bytes().to_vec(),
            kind: "string".into(),
            encoding: "raw".into(),
        };
        let mut all: Vec<InspectedKey> = (0..300).chain(250..300).map(one).collect();
        truncate_to_largest(&mut all);
        assert_eq!((all.len(), all[0].bytes, all[99].bytes), (LARGE_MAX, 299, 200));
    }
}

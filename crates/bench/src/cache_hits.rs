//! Benchmark of predicted cache hits: a real Redis beside the simulation of its policy, and of policies that it does not have.
//!
//! Seven loads are drawn: Zipf's law with three exponents, a loop over all keys, a skewed load with scans between, popular keys
//! that move, and entries of 10 bytes to 100 KB. Each is replayed on Redis with each of its policies and five sizes of the cache:
//! a script for each reference reads its key, and writes the entry if it is not there, as a job with a cache beside its database
//! does. The references are pipelined. Redis starts each of these runs empty.
//!
//! An entry's bytes are what Redis says that it takes (`MEMORY USAGE`), and the share of its table that all entries of the load
//! take together.

use std::time::Instant;

use imago_plan::provision::reuse::{Policy, Reference, Start, simulated};
use imago_testbed::{Single, SingleSpec};
use imago_workload::keys::{Chooser, Distribution};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::statistics::Figure;

/// Sizes of the cache, as shares of the bytes of all keys.
const SHARES: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];
/// Number of references that are sent at once.
const PIPELINED: usize = 64;
/// Memory of Redis, in MB: more than all entries of any load.
const MEMORY_MB: u32 = 600;
/// `maxmemory-samples` of Redis.
const SAMPLES: u32 = 5;
/// Reads a key, and writes an entry of as many bytes if it is not there. Returns 1 for a hit.
const SCRIPT: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('GET', KEYS[1]) return 1 end \
                      redis.call('SET', KEYS[1], string.rep('x', tonumber(ARGV[1]))) return 0";

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of references of a load.
    pub references: u64,
    /// Number of keys of a load; those with entries of mixed sizes have a tenth.
    pub keys: u64,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Differences of predicted and measured hits, in points (hundredths of the references), without their sign: the median over
    /// all cells, and the extremes.
    pub error_points: Figure,
    /// The greatest difference of each load, in points.
    pub worst: Vec<Worst>,
    /// Each load with each policy and size.
    pub cells: Vec<Cell>,
}

/// The greatest difference of the cells of one load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// The load.
    pub load: &'static str,
    /// The difference, in points.
    pub error_points: f64,
}

/// One load with one policy and size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The load.
    pub load: &'static str,
    /// `maxmemory-policy` of Redis.
    pub policy: &'static str,
    /// Size of the cache, as a share (0..1) of the bytes of all keys.
    pub share: f64,
    /// Share (0..1) of the references that hit in Redis.
    pub measured: f64,
    /// Share (0..1) that was predicted.
    pub predicted: f64,
    /// The same, predicted for exact LRU.
    pub predicted_lru: f64,
    /// References per second on Redis.
    pub references_s: f64,
}

/// A drawn load.
struct Load {
    name: &'static str,
    /// The keys, by number, in the order of their references.
    numbers: Vec<u64>,
    /// Number of bytes of the value of each key.
    bytes: fn(u64) -> u32,
}

/// Runs the benchmark and returns its report. Calls `say` with each load.
///
/// # Errors
/// Fails if Redis cannot be started or refuses a command.
#[crate::boxed]
pub async fn run(size: Size, say: &(dyn Fn(&str) + Send + Sync)) -> Result<Report> {
    let redis = SingleSpec { memory_mb: MEMORY_MB, ..SingleSpec::redis("cache-hits") };
    let redis = Single::start(redis).await?;
    let client = redis::Client::open(redis.uri()).map_err(refused)?;
    let mut connection = client.get_multiplexed_async_connection().await.map_err(refused)?;
    let mut cells = Vec::new();
    for load in loads(size) {
        say(load.name);
        let replay = Replay::new(load, &mut connection).await?;
        for policy in ["allkeys-lru", "allkeys-lfu", "noeviction"] {
            for share in SHARES {
                cells.push(replay.cell(policy, share, &mut connection).await?);
            }
        }
    }
    let points = |cell: &Cell| 100.0 * (cell.predicted - cell.measured).abs();
    let mut worst: Vec<Worst> = Vec::new();
    for cell in &cells {
        match worst.iter_mut().find(|one| one.load == cell.load) {
            Some(one) => one.error_points = one.error_points.max(points(cell)),
            None => worst.push(Worst { load: cell.load, error_points: points(cell) }),
        }
    }
    Ok(Report {
        header: Header::of("cache-hits", size),
        error_points: Figure::of(cells.iter().map(points)),
        worst,
        cells,
    })
}

fn refused(cause: redis::RedisError) -> Error {
    Error::Wrong(format!("Redis refused: {cause}"))
}

async fn configure(connection: &mut MultiplexedConnection, name: &str, value: &str) -> Result<()> {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg(name).arg(value);
    command.exec_async(connection).await.map_err(refused)
}

async fn used_bytes(connection: &mut MultiplexedConnection) -> Result<u64> {
    let said: String =
        redis::cmd("INFO").arg("memory").query_async(connection).await.map_err(refused)?;
    let used = said.lines().find_map(|line| line.strip_prefix("used_memory:"));
    let used = used.and_then(|bytes| bytes.trim().parse().ok());
    used.ok_or_else(|| Error::Wrong("Redis does not say its used_memory".to_owned()))
}

/// A load, with the bytes that its entries take in Redis.
struct Replay {
    load: Load,
    references: Vec<Vec<Reference>>,
    distinct_bytes: u64,
}

fn name(number: u64) -> String {
    format!("shop:order:{number:010}")
}

impl Replay {
    /// Measures the entries of a load: fills Redis with all of its keys.
    async fn new(load: Load, connection: &mut MultiplexedConnection) -> Result<Self> {
        for (name, value) in [("appendonly", "no"), ("maxmemory", "0")] {
            configure(connection, name, value).await?;
        }
        redis::cmd("FLUSHALL").exec_async(connection).await.map_err(refused)?;
        let before = used_bytes(connection).await?;
        let mut numbers = load.numbers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let mut usage = Vec::with_capacity(numbers.len());
        for some in numbers.chunks(PIPELINED) {
            let (mut sets, mut asks) = (redis::pipe(), redis::pipe());
            for number in some {
                let value = vec![b'x'; (load.bytes)(*number) as usize];
                sets.cmd("SET").arg(name(*number)).arg(value).ignore();
                asks.cmd("MEMORY").arg("USAGE").arg(name(*number));
            }
            sets.exec_async(connection).await.map_err(refused)?;
            let told: Vec<u32> = asks.query_async(connection).await.map_err(refused)?;
            usage.extend(told);
        }
        let grown = used_bytes(connection).await?.saturating_sub(before);
        let told: u64 = usage.iter().map(|bytes| u64::from(*bytes)).sum();
        let table = (grown.saturating_sub(told) / numbers.len().max(1) as u64) as u32;
        let reference = |number: &u64| {
            let at = numbers.binary_search(number).expect("a key of the load");
            Reference { key: spread(*number), bytes: usage[at] + table }
        };
        let references = vec![load.numbers.iter().map(reference).collect()];
        let distinct_bytes = told + u64::from(table) * numbers.len() as u64;
        Ok(Self { load, references, distinct_bytes })
    }

    /// Replays the load with a policy and a size of the cache, and predicts its hits.
    async fn cell(
        &self,
        policy: &'static str,
        share: f64,
        connection: &mut MultiplexedConnection,
    ) -> Result<Cell> {
        let capacity = (share * self.distinct_bytes as f64) as u64;
        configure(connection, "maxmemory", "0").await?;
        redis::cmd("FLUSHALL").exec_async(connection).await.map_err(refused)?;
        let maxmemory = (used_bytes(connection).await? + capacity).to_string();
        configure(connection, "maxmemory-policy", policy).await?;
        configure(connection, "maxmemory", &maxmemory).await?;
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(SCRIPT)
            .query_async(connection)
            .await
            .map_err(refused)?;
        let (began, mut hits) = (Instant::now(), 0_u64);
        for some in self.load.numbers.chunks(PIPELINED) {
            let mut pipe = redis::pipe();
            pipe.ignore_errors();
            for number in some {
                let bytes = (self.load.bytes)(*number);
                pipe.cmd("EVALSHA").arg(&hash).arg(1).arg(name(*number)).arg(bytes);
            }
            // Without eviction a full Redis refuses to write: a miss.
            let told: Vec<redis::RedisResult<u64>> =
                pipe.query_async(connection).await.map_err(refused)?;
            hits += told.iter().filter(|one| matches!(one, Ok(1))).count() as u64;
        }
        let all = self.load.numbers.len().max(1) as f64;
        let references_s = all / began.elapsed().as_secs_f64();
        let simulate = |policy: Policy| {
            let mut dice = StdRng::seed_from_u64(1);
            let curve =
                simulated(&self.references, Start::Cold, policy, &[capacity], 1.0, &mut dice);
            1.0 - curve.miss_ratio(capacity)
        };
        let lru = imago_plan::provision::reuse::exact(&self.references, Start::Cold);
        let predicted = simulate(match policy {
            "allkeys-lru" => {
                Policy::SampledLru { samples: SAMPLES, references_per_s: Some(references_s) }
            }
            "allkeys-lfu" => Policy::SampledLfu {
                samples: SAMPLES,
                log_factor: 10,
                decay_minutes: 1,
                references_per_s: references_s,
            },
            _ => Policy::NoEviction,
        });
        Ok(Cell {
            load: self.load.name,
            policy,
            share,
            measured: hits as f64 / all,
            predicted,
            predicted_lru: 1.0 - lru.miss_ratio(capacity),
            references_s,
        })
    }
}

/// Spreads a key's number over all 64 bits, each to another number.
fn spread(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Draws the loads.
fn loads(size: Size) -> Vec<Load> {
    let Size { references, keys, .. } = size;
    let mut dice = StdRng::seed_from_u64(7);
    let mut zipf = |shape: f64, keys: u64, references: u64| -> Vec<u64> {
        let mut chooser = Chooser::new(Distribution::Zipf { shape }, keys, 3);
        (0..references).map(|_| chooser.choose(keys, &mut dice).expect("there are keys")).collect()
    };
    let some: fn(u64) -> u32 = |number| 80 + (spread(number) % 400) as u32;
    let mixed: fn(u64) -> u32 = |number| {
        let share = spread(number) as f64 / u64::MAX as f64;
        (10.0 * 10_000_f64.powf(share)) as u32
    };
    let load = |name, numbers, bytes| Load { name, numbers, bytes };
    let mut all = vec![
        load("zipf 0.7", zipf(0.7, keys, references), some),
        load("zipf 1.0", zipf(1.0, keys, references), some),
        load("zipf 1.2", zipf(1.2, keys, references), some),
        load("mixed sizes", zipf(0.9, (keys / 10).max(1), references), mixed),
        load("loop", (0..references).map(|n| n % keys).collect(), some),
    ];
    // Between parts of a skewed load a scan reads as many other keys once.
    let part = (references / 40).max(1);
    let popular = zipf(1.0, keys / 2, references / 2);
    let scanned = popular.chunks(part as usize).enumerate().flat_map(|(round, some)| {
        let scan = (0..part).map(move |n| keys + round as u64 * part + n);
        some.iter().copied().chain(scan).collect::<Vec<u64>>()
    });
    all.push(load("scans between", scanned.collect(), some));
    // Eight phases, each with popular keys of its own among all.
    let moved = zipf(1.0, keys, references);
    let moved = moved.into_iter().enumerate().map(|(at, number)| {
        let phase = at as u64 * 8 / references.max(1);
        (number + phase * keys / 8) % keys
    });
    all.push(load("phases", moved.collect(), some));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_have_the_references_and_entries_that_they_are_named_after() {
        let size = Size { references: 40_000, keys: 2_000 };
        for load in loads(size) {
            let many = load.numbers.len() as u64;
            assert!((39_000..=41_000).contains(&many), "{}: {many}", load.name);
            let sizes: Vec<u32> = load.numbers.iter().map(|number| (load.bytes)(*number)).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            match load.name {
                "mixed sizes" => assert!(*least < 40 && *most > 50_000, "{least} to {most}"),
                _ => assert!(*least >= 80 && *most < 480, "{}: {least} to {most}", load.name),
            }
        }
        // Half of the references are those of scans.
        let all = loads(size);
        let scans = all.iter().find(|load| load.name == "scans between").unwrap();
        let once = scans.numbers.iter().filter(|number| **number >= size.keys).count();
        assert!((19_000..=21_000).contains(&once), "{once}");
    }
}

//! Runs a chain in a cell, as a separate `imago chain run` process like that of a user.

use std::path::Path;
use std::process::Command;

use std::time::{Duration, Instant};

use imago_testbed::Single;
use imago_testbed::port::Port;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::cell::{CacheAt, Cell, Phase, Reads, Run};
use super::file::Common;
use super::stand::Stand;
use super::usage;
use crate::error::{Error, Result};
use crate::process::Measured;

/// Maximum time until the proxy accepts connections.
const PROXY_BOUND: Duration = Duration::from_secs(20);

/// The fields of the output of `imago chain run --json` that are needed.
#[derive(Deserialize)]
struct ChainOutput {
    phases: Vec<ChainOutputPhase>,
    cache_failure: Option<String>,
    result_sha256: String,
}

#[derive(Deserialize)]
struct ChainOutputPhase {
    keys: u64,
    hits: u64,
    map_s: f64,
    sort_s: f64,
    reduce_s: f64,
}

/// Endpoints of a chain.
pub(super) struct Place<'a> {
    pub(super) uri: &'a str,
    pub(super) ns: &'a str,
    /// Connection string of the cache that the job uses; None if it uses none.
    pub(super) cache: Option<&'a str>,
}

/// Runs a chain once on a stand, and observes its members. The caller has just started or restarted the servers.
pub(super) async fn once(
    program: &Path,
    stand: &Stand,
    common: &Common,
    cell: &Cell,
    number: u32,
    trace: Option<&Path>,
) -> Result<Run> {
    let empty_bytes = limit(&stand.cache, cell.cache_bytes).await?;
    let is_at_router = cell.cache_bytes > 0 && cell.cache_at == CacheAt::Router;
    let proxy = if is_at_router { Some(Proxy::start(program, stand).await?) } else { None };
    let uri = proxy.as_ref().map_or_else(|| stand.cluster.uri(), |proxy| proxy.uri.clone());
    let (ns, cache) = (Stand::ns().to_string(), stand.cache.uri());
    let cache = (cell.cache_bytes > 0 && !is_at_router).then_some(&*cache);
    let place = Place { uri: &uri, ns: &ns, cache };
    let stop = CancellationToken::new();
    let watching = tokio::spawn(usage::watch(stand.members(), stop.clone()));
    let ran = on(program, &place, common, cell, number, trace).await;
    stop.cancel();
    let members = watching.await.map_err(|_| Error::Wrong("watching the servers failed".into()))?;
    let mut run = ran?;
    run.members = members;
    run.unshared = stand.unshared().map(str::to_owned);
    if cell.cache_bytes > 0 {
        run.cache_bytes = used(&stand.cache.uri()).await?.saturating_sub(empty_bytes);
    }
    if let (Some(proxy), Some(last)) = (proxy, run.phases.last_mut()) {
        // The job does not see the hits of the proxy, and the proxy does not see phases: the last phase gets the hits
        // of the whole chain.
        last.hits = proxy.end().await?;
    }
    Ok(run)
}

/// Runs a chain once, without observing the processors and the memory of the servers.
pub(super) async fn on(
    program: &Path,
    place: &Place<'_>,
    common: &Common,
    cell: &Cell,
    number: u32,
    trace: Option<&Path>,
) -> Result<Run> {
    let mut command = chain(program, place, common, cell);
    if let Some(cache) = place.cache {
        command.args(["--cache", cache]);
    }
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    let ended = Measured::start(format!("a chain on {cell}"), command)?.end(0).await?;
    let said: ChainOutput = serde_json::from_slice(&ended.output)
        .map_err(|error| Error::Wrong(format!("the chain's report cannot be read: {error}")))?;
    if let Some(why) = said.cache_failure {
        return Err(Error::Wrong(format!("the cache failed on {cell}: {why}")));
    }
    let phase = |one: &ChainOutputPhase| Phase {
        seconds: one.map_s + one.sort_s + one.reduce_s,
        keys: one.keys,
        hits: one.hits,
    };
    Ok(Run {
        cell: cell.clone(),
        run: number,
        phases: said.phases.iter().map(phase).collect(),
        cache_bytes: 0,
        members: Vec::new(),
        result_sha256: said.result_sha256,
        unshared: None,
    })
}

/// A proxy between the job and the router that looks up keys in the cache.
struct Proxy {
    process: Measured,
    uri: String,
}

impl Proxy {
    async fn start(program: &Path, stand: &Stand) -> Result<Self> {
        let port = Port::reserve()?;
        let listen = format!("127.0.0.1:{}", port.number());
        let mut command = Command::new(program);
        command.args(["chain", "proxy", "--json", "--uri", &stand.cluster.uri()]);
        command.args(["--ns", &Stand::ns().to_string(), "--cache", &stand.cache.uri()]);
        // Reads fail if the cache fails: a run that continued without a cache would not measure this cell.
        command.args(["--cache-required", "--listen", &listen]);
        let process = Measured::start("a proxy with the cache", command)?;
        let began = Instant::now();
        while TcpStream::connect(&listen).await.is_err() {
            if began.elapsed() > PROXY_BOUND {
                let (what, bound_s) = ("the proxy listening".into(), PROXY_BOUND.as_secs());
                return Err(Error::TimedOut { what, bound_s });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { process, uri: format!("mongodb://{listen}/") })
    }

    /// Stops the proxy, and returns the number of keys that it answered from the cache.
    async fn end(self) -> Result<u64> {
        #[derive(Deserialize)]
        struct Totals {
            hits: u64,
        }
        self.process.interrupt()?;
        let output = self.process.end(0).await?.output;
        let text = String::from_utf8_lossy(&output);
        // The output has two JSON values, in one line each or pretty-printed: the address of the proxy, then the
        // totals.
        let totals = serde_json::Deserializer::from_str(&text)
            .into_iter::<serde_json::Value>()
            .filter_map(|value| serde_json::from_value::<Totals>(value.ok()?).ok())
            .last();
        let unsaid = || Error::Wrong(format!("the proxy does not say what it did: {text}"));
        Ok(totals.ok_or_else(unsaid)?.hits)
    }
}

fn chain(program: &Path, place: &Place<'_>, common: &Common, cell: &Cell) -> Command {
    let mut command = Command::new(program);
    let reads = match cell.reads {
        Reads::Primary => "primary",
        Reads::Nearest => "nearest",
    };
    command.args(["chain", "run", "--json", "--uri", place.uri, "--ns", place.ns]);
    for (flag, value) in [
        ("--job", common.job.clone()),
        ("--modulo", common.documents.to_string()),
        ("--length", common.length.to_string()),
        ("--keys", common.keys.to_string()),
        ("--seed", common.seed.to_string()),
        ("--batch", common.batch.to_string()),
        ("--workers", common.workers.to_string()),
        ("--reads", reads.to_owned()),
    ] {
        command.args([flag, &value]);
    }
    command
}

/// Empties the cache, and limits its memory to `cache_bytes` in addition to the memory of an empty cache. Returns the
/// latter, in bytes.
pub(super) async fn limit(cache: &Single, cache_bytes: u64) -> Result<u64> {
    let mut connection = connect(&cache.uri()).await?;
    let set = |name: &'static str, value: String| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg(name).arg(value);
        command
    };
    // No data of the cache has to survive the server: persistence is off.
    for command in [
        set("appendonly", "no".into()),
        set("save", String::new()),
        set("maxmemory-policy", "allkeys-lru".into()),
        redis::cmd("FLUSHALL"),
    ] {
        command.exec_async(&mut connection).await.map_err(refused)?;
    }
    let empty_bytes = used(&cache.uri()).await?;
    let limit = set("maxmemory", (empty_bytes + cache_bytes).to_string());
    limit.exec_async(&mut connection).await.map_err(refused)?;
    Ok(empty_bytes)
}

/// Returns the memory that the cache uses, in bytes.
async fn used(cache: &str) -> Result<u64> {
    field(cache, "used_memory").await
}

/// Returns the memory that a cache has for entries, in bytes: its limit minus its memory at startup, or the memory of
/// its machine if it has no limit.
pub(super) async fn room(cache: &str) -> Result<u64> {
    match field(cache, "maxmemory").await? {
        0 => field(cache, "total_system_memory").await,
        limit => Ok(limit.saturating_sub(field(cache, "used_memory_startup").await?)),
    }
}

async fn field(cache: &str, name: &str) -> Result<u64> {
    let mut connection = connect(cache).await?;
    let mut command = redis::cmd("INFO");
    let said: String = command.arg("memory").query_async(&mut connection).await.map_err(refused)?;
    let found =
        said.lines().filter_map(|line| line.split_once(':')).find(|(field, _)| *field == name);
    let value = found.and_then(|(_, value)| value.trim().parse().ok());
    value.ok_or_else(|| Error::Wrong(format!("Redis does not say its {name}")))
}

async fn connect(cache: &str) -> Result<redis::aio::MultiplexedConnection> {
    let client = redis::Client::open(cache).map_err(refused)?;
    client.get_multiplexed_async_connection().await.map_err(refused)
}

fn refused(cause: redis::RedisError) -> Error {
    Error::Wrong(format!("the cache refused: {cause}"))
}

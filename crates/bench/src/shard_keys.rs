//! Benchmark of advice on shard keys: what `imago reshard advise` says of ten keys, beside what the shards of a real cluster
//! received and how long their processors worked after the collection was changed to each of these keys.
//!
//! Five loads are recorded by `imago reshard record` while the collection has its first key. Then the collection is changed to one
//! key after another by `imago reshard run`: before each change its key is judged by each of the recordings, and after it each load
//! runs again. Documents that a load inserted are deleted behind it, so that all find the same ones. What the shards received, and how
//! long they worked, is counted as [`crate::shard_work`] does, without the work of idle servers and of the router, which is probed before.

mod loads;
mod probe;
mod profiler;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::advise::{Advice, KeyEffect, Shares};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Client;
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::process::Measured;
use crate::shard_work::ShardWork;
use crate::statistics::Figure;
use crate::subject::{Commands, Ends, Subject};
use loads::{LOADS, Load, fill};
pub use probe::ProbedCosts;
pub use profiler::ProfilerCost;

/// Number of shards, of one member each.
const SHARDS: u32 = 3;
/// Key of the collection at the beginning.
const FIRST: &str = r#"{"_id": 1}"#;
/// The keys that are judged.
const KEYS: [&str; 10] = [
    r#"{"user": 1}"#,
    r#"{"product": 1, "_id": 1}"#,
    r#"{"_id": "hashed"}"#,
    r#"{"user": 1, "_id": 1}"#,
    r#"{"user": "hashed"}"#,
    r#"{"product": 1, "stars": 1, "_id": 1}"#,
    r#"{"time": 1}"#,
    r#"{"region": 1, "user": 1}"#,
    r#"{"region": 1, "_id": "hashed"}"#,
    r#"{"stars": 1, "user": 1}"#,
];
/// Longest wait for the recorder to listen.
const LISTEN_MAX: Duration = Duration::from_secs(20);

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of documents at the beginning.
    pub documents: u64,
    /// Number of operations of a load.
    pub operations: u64,
    /// Number of keys, of ten.
    pub keys: usize,
    /// True if the cost of profilers is measured.
    pub has_profiler: bool,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Difference of the predicted and the measured share of the shards that an operation reaches beyond the first, in points:
    /// the median over all cells, and the extremes.
    pub reach_error_points: Figure,
    /// Predicted ratio of the throughputs of two keys that the busiest shard allows, divided by the measured one, over all pairs
    /// of keys of a load: the median of how far it is from 1, in percent, and the extremes.
    pub ratio_error_percent: Figure,
    /// For each load, the rank of the best key by measurement among those that were judged; 1 is the first.
    pub rank_of_best: BTreeMap<&'static str, usize>,
    /// What operations cost the shards, as it was probed: keys are judged by it, and the router's work is left out of measured times.
    pub costs: ProbedCosts,
    /// The cost of a recording by profilers to clients; `None` if it was not measured.
    pub profiler: Option<ProfilerCost>,
    /// Each load with each key.
    pub cells: Vec<Cell>,
}

/// One load with one key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The load.
    pub load: &'static str,
    /// The key.
    pub key: String,
    /// Predicted number of shards that an operation reaches, in the mean.
    pub predicted_shards: f64,
    /// Measured number of operations at shards for each operation of clients.
    pub measured_shards: f64,
    /// Predicted processor time of the busiest shard for an operation, in µs.
    pub predicted_busiest_us: f64,
    /// Measured processor time of the busiest shard for an operation, in µs, without the router's work.
    pub measured_busiest_us: f64,
}

/// The cluster of the benchmark.
struct Bench<'a> {
    cluster: Cluster,
    work: ShardWork,
    /// What operations cost the shards; `None` before it was probed.
    costs: Option<ProbedCosts>,
    ns: Namespace,
    commands: &'a Commands,
    size: Size,
}

/// Runs the benchmark and returns its report. Calls `say` with each step.
///
/// # Errors
/// Fails if the cluster cannot be started, or a command of Imago fails.
#[crate::boxed]
pub async fn run(
    size: Size,
    commands: &Commands,
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Report> {
    let mut bench = Bench::start(size, commands).await?;
    say("probing what operations cost");
    let costs = Box::pin(bench.probe()).await?;
    bench.costs = Some(costs);
    let keys = &KEYS[..size.keys];
    let profiler = if size.has_profiler {
        say("the cost of profilers, in turns");
        Some(Box::pin(bench.profiler_cost()).await?)
    } else {
        None
    };
    let mut recordings = Vec::new();
    for load in &LOADS {
        say(&format!("recording {}", load.name));
        recordings.push(bench.record(load).await?);
    }
    let mut cells = Vec::new();
    for key in keys {
        say(&format!("changing the key to {key}"));
        // Judged by the chunks from which the change begins: it moves what is least.
        let mut advice = Vec::new();
        for recording in &recordings {
            advice.push(bench.judge(recording, key).await?);
        }
        bench.reshard(key).await?;
        for (load, advice) in LOADS.iter().zip(&advice) {
            let effect = effect_of(advice, key)?;
            cells.push(bench.cell(load, key, advice, effect).await?);
        }
    }
    let points = |cell: &Cell| {
        let off = (cell.predicted_shards - cell.measured_shards).abs();
        100.0 * off / f64::from(SHARDS - 1)
    };
    Ok(Report {
        header: Header::of("shard-keys", size),
        reach_error_points: Figure::of(cells.iter().map(points)),
        ratio_error_percent: Figure::of(ratio_errors(&cells).into_iter()),
        rank_of_best: ranks(&cells),
        costs,
        profiler,
        cells,
    })
}

/// Returns the errors of the predicted ratios of all pairs of keys of each load, in percent.
fn ratio_errors(cells: &[Cell]) -> Vec<f64> {
    let mut errors = Vec::new();
    for (at, one) in cells.iter().enumerate() {
        for other in cells[..at].iter().filter(|other| other.load == one.load) {
            let predicted = one.predicted_busiest_us / other.predicted_busiest_us;
            let measured = one.measured_busiest_us / other.measured_busiest_us;
            errors.push(100.0 * (predicted / measured).ln().abs().exp_m1());
        }
    }
    errors
}

/// Returns for each load the rank by prediction of the key that is best by measurement.
fn ranks(cells: &[Cell]) -> BTreeMap<&'static str, usize> {
    let rank = |load: &'static str| {
        let of: Vec<&Cell> = cells.iter().filter(|cell| cell.load == load).collect();
        let best = of.iter().min_by(|a, b| a.measured_busiest_us.total_cmp(&b.measured_busiest_us));
        let better = best.map_or(0, |best| {
            let is_before = |cell: &&&Cell| cell.predicted_busiest_us < best.predicted_busiest_us;
            of.iter().filter(is_before).count()
        });
        (load, better + 1)
    };
    LOADS.iter().map(|load| rank(load.name)).collect()
}

fn effect_of<'a>(advice: &'a Advice, key: &str) -> Result<&'a KeyEffect> {
    let found = advice.keys.iter().find(|of| of.key.as_deref() == Some(key));
    found.ok_or_else(|| Error::Wrong(format!("{key} was not judged")))
}

impl<'a> Bench<'a> {
    async fn start(size: Size, commands: &'a Commands) -> Result<Self> {
        let cluster =
            Cluster::start(ClusterSpec::sharded("bench-keys", SHARDS).with_auth()).await?;
        let router = Endpoint::connect(&cluster.admin_uri(), "cluster").await?;
        router.run("admin", doc! {"balancerStop": 1}).await?;
        let ns = Namespace::new("bench", "reviews");
        fill(&router, &ns, size.documents, FIRST).await?;
        let mut work = ShardWork::connect(&cluster).await?;
        work.rest().await?;
        Ok(Self { cluster, work, costs: None, ns, commands, size })
    }

    fn ends(&self) -> Ends {
        let to = self.cluster.admin_uri();
        Ends { from: String::new(), to, ns: self.ns.to_string() }
    }

    async fn measured(&self, subject: &Subject, what: &str) -> Result<Vec<u8>> {
        let command = (self.commands)(subject, &self.ends());
        Ok(Box::pin(Measured::start(what, command)?.end(0)).await?.output)
    }

    /// Records `load`, and returns the file.
    async fn record(&self, load: &Load) -> Result<PathBuf> {
        let out = self.cluster.folder().join(format!("{}.bson", load.name));
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr());
        let listen = port.map_err(crate::error::process("find a free port"))?.to_string();
        let record = Subject::RecordOperations { out: out.clone(), listen: listen.clone() };
        let recorder = Measured::start("a recording", (self.commands)(&record, &self.ends()))?;
        let uri = self.cluster.admin_uri();
        let (start, rest) = uri.split_at(uri.rfind('@').map_or(0, |at| at + 1));
        let uri = format!("{start}{listen}{}", &rest[rest.find('/').unwrap_or(rest.len())..]);
        let client = reached(&uri).await?;
        load.run(&client, &self.ns, self.size, 0).await?;
        recorder.interrupt()?;
        Box::pin(recorder.end(0)).await?;
        load.clean(&self.client().await?, &self.ns, self.size).await?;
        Ok(out)
    }

    /// Judges `key` by a recording.
    async fn judge(&self, recording: &Path, key: &str) -> Result<Advice> {
        let (recording, keys) = (recording.to_owned(), vec![key.to_owned()]);
        let costs_ns = self.costs.map(|costs| costs.in_ns());
        let advise = Subject::AdviseKeys { recording, keys, costs_ns };
        let said = self.measured(&advise, "advice on shard keys").await?;
        serde_json::from_slice(&said)
            .map_err(|error| Error::Wrong(format!("the advice cannot be read: {error}")))
    }

    async fn reshard(&self, key: &str) -> Result<()> {
        let subject = Subject::ReshardTo { key: key.to_owned() };
        self.measured(&subject, "a change of the key").await.map(|_| ())
    }

    async fn client(&self) -> Result<Client> {
        let client = Client::with_uri_str(self.cluster.admin_uri()).await;
        client.map_err(|cause| Error::Wrong(cause.to_string()))
    }

    /// Runs `load` with the present key, and compares.
    async fn cell(
        &self,
        load: &Load,
        key: &str,
        advice: &Advice,
        effect: &KeyEffect,
    ) -> Result<Cell> {
        let client = self.client().await?;
        // The router learns where chunks are.
        let documents = client.database(&self.ns.db).collection::<Document>(&self.ns.coll);
        documents.find_one(doc! {}).await.map_err(|cause| Error::Wrong(cause.to_string()))?;
        let before = self.work.snapshot(&self.ns).await?;
        load.run(&client, &self.ns, self.size, 1).await?;
        let after = self.work.snapshot(&self.ns).await?;
        load.clean(&client, &self.ns, self.size).await?;
        let operations = self.size.operations as f64;
        // Of the recorded operations, which are as many.
        let share = |shares: &Shares| shares.operations as f64 / advice.operations.max(1) as f64;
        let router_us = self.costs.map_or(0.0, |costs| {
            let (reads, writes) = after.requests_since(&before);
            let reads = (share(&effect.reads), reads as f64 / operations);
            costs.router_us(reads, (share(&effect.writes), writes as f64 / operations))
        });
        let busiest_us = self.work.busiest_us(&before, &after, self.size.operations);
        let requests: u64 = effect.requests.iter().sum();
        Ok(Cell {
            load: load.name,
            key: key.to_owned(),
            predicted_shards: requests as f64 / advice.operations.max(1) as f64,
            measured_shards: after.received_since(&before) as f64 / operations,
            predicted_busiest_us: 1e6 / effect.throughput.max(f64::MIN_POSITIVE),
            measured_busiest_us: (busiest_us - router_us / f64::from(SHARDS)).max(1.0),
        })
    }
}

/// Connects to the recorder once it listens.
async fn reached(uri: &str) -> Result<Client> {
    let began = Instant::now();
    loop {
        let client = Client::with_uri_str(uri).await;
        let client = client.map_err(|cause| Error::Wrong(cause.to_string()))?;
        let admin = client.database("admin");
        let ping = admin.run_command(doc! {"ping": 1});
        if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(1), ping).await {
            return Ok(client);
        }
        if began.elapsed() > LISTEN_MAX {
            let what = "the recorder to listen".to_owned();
            return Err(Error::TimedOut { what, bound_s: LISTEN_MAX.as_secs() });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

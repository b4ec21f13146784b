//! The work of the shards of a testbed: the operations on a collection that they received, and the processor time that they took.
//!
//! Operations are those that the servers count for the collection (`$collStats`, `latencyStats`); processor time is that of the shards'
//! processes. Where the program `mongos` is missing, shards carry the work of the testbed's router in turns, which is in their
//! processor time.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt as _;
use imago_mongo::namespace::Namespace;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::Cluster;

use crate::error::{Error, Result};
use crate::process::cpu_s;

/// Time for which servers without clients are measured.
const IDLE: Duration = Duration::from_secs(4);

/// The shards of a testbed of one member for each shard.
pub struct ShardWork {
    shards: Vec<Shard>,
}

struct Shard {
    primary: Endpoint,
    pid: u32,
    /// Processor time without clients, in seconds for each second.
    idle: f64,
}

/// The counts of all shards at one time.
#[derive(Clone, Debug)]
pub struct WorkSnapshot {
    at: Instant,
    /// Reads and writes that the shards received.
    received: (u64, u64),
    cpu_s: Vec<f64>,
}

impl ShardWork {
    /// Connects to the shards of a cluster with users.
    ///
    /// # Errors
    /// Fails if a shard does not reply.
    pub async fn connect(cluster: &Cluster) -> Result<Self> {
        let credentials = cluster.credentials().ok_or_else(|| Error::Wrong("no users".into()))?;
        let login = format!("{}:{}", credentials.admin.name, credentials.admin.password);
        let mut shards = Vec::new();
        for node in cluster.nodes() {
            let number = node.set.strip_prefix(&format!("{}-s", cluster.name()));
            if number.is_none_or(|number| number.parse::<u32>().is_err()) {
                continue;
            }
            let (host, set) = (node.host, &node.set);
            let uri = format!(
                "mongodb://{login}@{host}:{}/?replicaSet={set}&authSource=admin",
                node.port
            );
            let primary = Endpoint::connect(&uri, "shard").await?;
            let process = node.process.ok_or_else(|| Error::Wrong(format!("{set} is down")))?;
            shards.push(Shard { primary, pid: process.pid, idle: 0.0 });
        }
        Ok(Self { shards })
    }

    /// Returns the shards' primaries.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = &Endpoint> {
        self.shards.iter().map(|shard| &shard.primary)
    }

    /// Measures the servers without clients; that part of their processor time is left out from then on.
    ///
    /// # Errors
    /// Fails if a server has ended.
    pub async fn rest(&mut self) -> Result<()> {
        let before = self.cpu_s()?;
        tokio::time::sleep(IDLE).await;
        let used = self.cpu_s()?;
        for (shard, (after, before)) in self.shards.iter_mut().zip(used.iter().zip(&before)) {
            shard.idle = (after - before) / IDLE.as_secs_f64();
        }
        Ok(())
    }

    /// Returns the counts for the collection `ns` now.
    ///
    /// # Errors
    /// Fails if a server has ended.
    pub async fn snapshot(&self, ns: &Namespace) -> Result<WorkSnapshot> {
        let mut received = (0, 0);
        for shard in &self.shards {
            let (reads, writes) = shard.received(ns).await;
            received = (received.0 + reads, received.1 + writes);
        }
        Ok(WorkSnapshot { at: Instant::now(), received, cpu_s: self.cpu_s()? })
    }

    /// Returns the processor time of each shard between two snapshots, in seconds.
    #[must_use]
    pub fn used_s(&self, before: &WorkSnapshot, after: &WorkSnapshot) -> Vec<f64> {
        let passed_s = (after.at - before.at).as_secs_f64();
        let used = after.cpu_s.iter().zip(&before.cpu_s).zip(&self.shards);
        used.map(|((after, before), shard)| after - before - shard.idle * passed_s).collect()
    }

    /// Returns the processor time of the busiest shard for each of so many operations between two snapshots, in µs.
    #[must_use]
    pub fn busiest_us(&self, before: &WorkSnapshot, after: &WorkSnapshot, operations: u64) -> f64 {
        1e6 * self.used_s(before, after).into_iter().fold(0.0, f64::max) / operations.max(1) as f64
    }

    fn cpu_s(&self) -> Result<Vec<f64>> {
        let used = self.shards.iter().map(|shard| {
            cpu_s(shard.pid).ok_or_else(|| Error::Wrong(format!("process {} is gone", shard.pid)))
        });
        used.collect()
    }
}

impl WorkSnapshot {
    /// Returns the number of operations on the collection that the shards received since `before`.
    #[must_use]
    pub fn received_since(&self, before: &Self) -> u64 {
        let (reads, writes) = self.requests_since(before);
        reads + writes
    }

    /// Returns the numbers of reads and of writes of the collection that the shards received since `before`.
    #[must_use]
    pub fn requests_since(&self, before: &Self) -> (u64, u64) {
        let since = |now: u64, then: u64| now.saturating_sub(then);
        (since(self.received.0, before.received.0), since(self.received.1, before.received.1))
    }
}

impl Shard {
    /// Returns the numbers of reads and of writes of the collection that the shard has counted.
    async fn received(&self, ns: &Namespace) -> (u64, u64) {
        let documents = self.primary.client().database(&ns.db);
        let documents = documents.collection::<Document>(&ns.coll);
        let stats = documents.aggregate(vec![doc! {"$collStats": {"latencyStats": {}}}]);
        let stats: mongodb::error::Result<Vec<Document>> =
            async { stats.await?.try_collect().await }.await;
        // A shard without chunks has no collection.
        let stats = stats.unwrap_or_default();
        let counted = stats.iter().filter_map(|stats| stats.get_document("latencyStats").ok());
        let of = |stats: &Document, kind: &str| {
            let ops = stats.get_document(kind).and_then(|kind| kind.get_i64("ops"));
            ops.unwrap_or(0).unsigned_abs()
        };
        let both = counted.map(|stats| (of(stats, "reads"), of(stats, "writes")));
        both.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

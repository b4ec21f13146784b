//! A trial of advice on shard keys: the present key and the best ones on a testbed, with a sample of the documents and of the
//! operations.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::future::join_all;
use imago_job::control::Control;
use imago_job::record::Limits;
use imago_job::reporter::Events;
use imago_mongo::copy;
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::advise::{KeyEffect, Trial};
use imago_mongo::reshard::plan::{Engine, Request};
use imago_mongo::reshard::{self, Block};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::{Cluster, ClusterSpec};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::shard_work::{ShardWork, WorkSnapshot};

/// Number of keys that are tried beside the present one.
const TRIED: usize = 2;
/// Largest number of shards of a testbed.
const SHARDS_MAX: usize = 8;
/// Largest number of chunks of a trial: each takes time to be made.
const CHUNKS_MAX: usize = 1_000;
/// Cache of each server, in MB: the sample fits.
const CACHE_MB: u32 = 512;
/// Number of commands under way at once.
const AT_ONCE: usize = 4;
/// Largest number of documents of one insert, and their size in bytes from which on no further one is added.
const BATCH: (usize, usize) = (500, 8 << 20);

/// What a trial of keys measured.
#[derive(Debug, Serialize)]
pub struct Confirmed {
    /// Number of documents in the testbed.
    pub documents: usize,
    /// Number of operations that were replayed for each key.
    pub operations: usize,
    /// Number of operations that were not: writes of many documents without a condition that chooses shards.
    pub left_out: usize,
    /// The keys: the present one first.
    pub keys: Vec<ConfirmedKey>,
}

/// A key that was tried out.
#[derive(Debug, Serialize)]
pub struct ConfirmedKey {
    /// The key; `None` for a collection that is not sharded.
    pub key: Option<String>,
    /// Number of shards that an operation reaches in the mean, as predicted.
    pub predicted_shards: f64,
    /// The same as the shards counted.
    pub measured_shards: f64,
    /// Predicted throughput that the busiest shard allows, divided by that with the present key on as many chunks.
    pub predicted_ratio: f64,
    /// The same by the processor time of the testbed's shards; `None` if there were too few operations to measure it.
    pub measured_ratio: Option<f64>,
    /// Processor time of the busiest shard for an operation, in µs.
    pub busiest_us: f64,
    /// Number of operations that the router refused, or did not answer.
    pub refused: usize,
}

/// Tries the present key and the best two possible ones of `keys` on a testbed. `process` is the name of this process, and `cancel` ends
/// the work.
///
/// # Errors
/// A size error for more shards than a testbed has; fails if the testbed cannot be started or used.
pub async fn confirm(
    ns: &Namespace,
    keys: &[Option<String>],
    trial: &Trial,
    process: &str,
    cancel: &CancellationToken,
) -> Result<Confirmed> {
    let shards = trial.shards;
    if shards > SHARDS_MAX {
        let what = format!("a testbed has at most {SHARDS_MAX} shards, not {shards}: see --shards");
        return Err(Error::Size(what));
    }
    let spec = ClusterSpec {
        cache_mb: CACHE_MB,
        ..ClusterSpec::sharded("confirm", u32::try_from(shards).unwrap_or(1))
    };
    let testbed = Cluster::start(spec.with_auth()).await?;
    let cluster = Endpoint::connect(&testbed.admin_uri(), "testbed").await?;
    cluster.run("admin", doc! {"balancerStop": 1}).await?;
    let mut work = ShardWork::connect(&testbed).await?;
    work.rest().await?;
    let trials = Trials { cluster, work, ns, trial, process, cancel };
    let mut confirmed = Vec::new();
    let present = &trial.advice.present;
    confirmed.push(trials.key(present).await?);
    for key in keys.iter().take(TRIED) {
        if let Some(effect) = trial.advice.keys.iter().find(|effect| effect.key == *key) {
            confirmed.push(trials.key(effect).await?);
        }
    }
    let first_us = confirmed[0].busiest_us;
    for key in &mut confirmed {
        key.measured_ratio = Some(first_us / key.busiest_us).filter(|ratio| ratio.is_normal());
    }
    let replay = &trial.replay;
    Ok(Confirmed {
        documents: replay.documents.len(),
        operations: replay.commands.len(),
        left_out: replay.left_out,
        keys: confirmed,
    })
}

struct Trials<'a> {
    cluster: Endpoint,
    work: ShardWork,
    ns: &'a Namespace,
    trial: &'a Trial,
    process: &'a str,
    cancel: &'a CancellationToken,
}

impl Trials<'_> {
    /// Replays the operations with the key of `effect`, without the ratio that was measured.
    async fn key(&self, effect: &KeyEffect) -> Result<ConfirmedKey> {
        self.fill(effect.key.as_deref()).await?;
        // The router learns where chunks are before anything counts.
        self.cluster.run(&self.ns.db, doc! {"find": &self.ns.coll, "limit": 1}).await?;
        let before = self.snapshot().await?;
        let refused = self.replay().await;
        let after = self.snapshot().await?;
        let operations = self.trial.replay.commands.len();
        let requests: u64 = effect.requests.iter().sum();
        Ok(ConfirmedKey {
            key: effect.key.clone(),
            predicted_shards: requests as f64 / self.trial.advice.operations.max(1) as f64,
            measured_shards: after.received_since(&before) as f64 / operations.max(1) as f64,
            predicted_ratio: effect.ratio,
            measured_ratio: None,
            busiest_us: self.work.busiest_us(&before, &after, operations as u64),
            refused,
        })
    }

    async fn snapshot(&self) -> Result<WorkSnapshot> {
        self.work.snapshot(self.ns).await
    }

    /// Fills the collection anew, sharded by `key`.
    async fn fill(&self, key: Option<&str>) -> Result<()> {
        let (cluster, ns) = (&self.cluster, self.ns);
        cluster.run_at_length(&ns.db, doc! {"dropDatabase": 1}).await?;
        if let Some(key) = key {
            cluster.run("admin", doc! {"enableSharding": &ns.db}).await?;
            let first = if is_by_id(key) { "hashed".into() } else { Bson::from(1) };
            let command = doc! {"shardCollection": ns.to_string(), "key": {"_id": first}};
            cluster.run_at_length("admin", command).await?;
        }
        for documents in batches(&self.trial.replay.documents) {
            let command = doc! {"insert": &ns.coll, "documents": documents, "ordered": false};
            let reply = cluster.run_at_length(&ns.db, command).await?;
            if let Ok(errors) = reply.get_array("writeErrors") {
                let what = format!("the testbed does not take a sampled document: {errors:?}");
                return Err(Error::Wrong(what));
            }
        }
        if !self.trial.replay.indexes.is_empty() {
            let indexes = self.trial.replay.indexes.clone();
            let command = doc! {"createIndexes": &ns.coll, "indexes": indexes};
            cluster.run_at_length(&ns.db, command).await?;
        }
        let Some(key) = key else { return Ok(()) };
        let control = Control::default();
        let chunks = self.trial.chunks.min(CHUNKS_MAX);
        let request =
            Request { chunks: Some(chunks), ..Request::of_key(ns.clone(), key.to_owned()) };
        let plan = reshard::plan(cluster, &request, &control).await?;
        let id = reshard::create(cluster, &plan, Engine::Shadow, Limits::default()).await?;
        let options = reshard::Options {
            workers: 1,
            process: self.process.to_owned(),
            verify: None,
            block: Block::UserWrites,
            block_max: Duration::from_secs(5),
        };
        let clusters = reshard::both_roles(cluster);
        // The events of a testbed's jobs are not shown.
        let events = Events::default();
        let claim = copy::claim(&clusters, &id, &options.process, &events, self.cancel).await?;
        reshard::run(cluster, claim, &options).await?;
        Ok(())
    }

    /// Sends all commands, and returns how many were refused.
    async fn replay(&self) -> usize {
        let commands: VecDeque<&Document> = self.trial.replay.commands.iter().collect();
        let left = Arc::new(Mutex::new(commands));
        let clients = (0..AT_ONCE).map(|_| async {
            let mut refused = 0;
            loop {
                let next = left.lock().expect("no holder panics").pop_front();
                let Some(command) = next else { return refused };
                let ran = self.cluster.run(&self.ns.db, command.clone()).await;
                let is_refused = ran.map_or(true, |reply| reply.contains_key("writeErrors"));
                refused += usize::from(is_refused);
            }
        });
        join_all(clients).await.into_iter().sum()
    }
}

/// Returns the documents as lists of one insert each.
fn batches(documents: &[Document]) -> Vec<Vec<Document>> {
    let (count_max, bytes_max) = BATCH;
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for document in documents {
        bytes += RawDocumentBuf::try_from(document).map_or(0, |raw| raw.as_bytes().len());
        batch.push(document.clone());
        if batch.len() == count_max || bytes >= bytes_max {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
    }
    batches.push(batch);
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// True for a key that is `_id` alone, ascending.
fn is_by_id(key: &str) -> bool {
    let key: Option<serde_json::Value> = serde_json::from_str(key).ok();
    key.is_some_and(|key| {
        key.as_object()
            .is_some_and(|key| key.len() == 1 && key.get("_id").is_some_and(|way| way == 1))
    })
}

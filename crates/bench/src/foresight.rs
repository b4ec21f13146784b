//! Benchmark of predictions: copies of several sizes from one replica set to another, changes of the shard key of such
//! collections, and the plans of a store that adapts, and what each predicted beside what came of it.
//!
//! Each copy and each change keeps its predictions in its job's record ([`imago_job::prediction`]), from which the quality of each kind
//! follows. Besides, each report of progress has the interval of the time that is left: of those from a tenth of the bulk on,
//! the share is counted that contains the time at which the copy had caught up.

use bson::doc;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::prediction::{Prediction, Quality};
use imago_mongo::copy::COPY_S;
use imago_mongo::reshard::plan::Placing;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use imago_store::adapt::LATENCY_RATIO;
use imago_workload::review::Reviews;
use serde::Serialize;

use crate::cluster_pair::{COLL, ClusterPair, DB, require};
use crate::error::{Error, Result};
use crate::fill;
use crate::morphosys;
use crate::process::{Ended, Measured};
use crate::replay::job_of;
use crate::sharded_cluster::{Cut, Shape, ShardedCluster};
use crate::subject::{self, Subject};
use crate::{Header, Size, cluster_pair};

/// Sizes of the copied collections, as parts of the largest one.
const PARTS: [u64; 3] = [4, 2, 1];
/// Number of shards of the cluster in which keys are changed.
const SHARDS: u32 = 3;
/// Share of the bulk from which on the interval of the time that is left should hold: one tenth.
const FROM: u64 = 10;

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The quality of the predictions of each kind, of copies and changes of the shard key and of the store's plans.
    pub predictions: Vec<Quality>,
    /// Number of plans that the store executed.
    pub plans: usize,
    /// Number of reports of progress from a tenth of the bulk on that had an interval of the time that is left.
    pub reports: usize,
    /// Share (0..1) of these whose interval contained the time at which the copy had caught up.
    pub reports_inside: f64,
    /// Share (0..1) of reports of progress from a tenth of the bulk on that had an interval.
    pub reports_told: f64,
    /// What each copy predicted, and what came of it, in the order of the copies.
    pub copies: Vec<Copied>,
    /// The same of each change of a shard key.
    pub reshards: Vec<Copied>,
}

/// One copy, or one change of a shard key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Copied {
    /// Number of documents of the collection.
    pub documents: u64,
    /// What it predicted, and what came of it.
    pub predictions: Vec<Prediction>,
}

/// What is predicted besides copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// Number of changes of the shard key at each size.
    pub reshards: u32,
    /// Time of each load on a store, in s.
    pub load_s: u64,
}

/// Reports of progress from a tenth of the bulk on: of all, with an interval of the time that is left, and those of whose
/// interval contained what came.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    all: usize,
    told: usize,
    inside: usize,
}

/// Runs the benchmark, and returns its report.
///
/// # Errors
/// Returns an error if a cluster cannot be started, a copy fails or is wrong, or a store refuses an operation.
#[crate::boxed]
pub async fn run(size: Size, others: Others, commands: &subject::Commands) -> Result<Report> {
    let least = PARTS[0] * 2;
    if size.documents < least || size.runs == 0 {
        return Err(Error::Size(format!("predictions need at least {least} documents and 1 run")));
    }
    let clusters = ClusterPair::start().await?;
    let mut copies = Vec::new();
    let mut reported = Reported::default();
    for part in PARTS {
        let documents = size.documents / part;
        clusters.source.run(DB, doc! {"dropDatabase": 1}).await?;
        fill::send(&clusters.source, DB, &fill::inserts(Size { documents, ..size })?).await?;
        let index = doc! {"key": {"productID": 1}, "name": "productID_1"};
        clusters.source.run(DB, doc! {"createIndexes": COLL, "indexes": [index]}).await?;
        for _ in 0..size.runs {
            let (copied, ended) = one(&clusters, documents, commands).await?;
            reported.count(&copied, &ended);
            copies.push(copied);
        }
    }
    drop(clusters);
    let reshards = Box::pin(reshards(size, others.reshards, commands, &mut reported)).await?;
    let loads = tokio::task::spawn_blocking(move || morphosys::predictions(others.load_s)).await;
    let plans =
        loads.map_err(|stopped| Error::Wrong(format!("the loads on stores: {stopped}")))??;
    let jobs = copies.iter().chain(&reshards);
    let predictions = jobs.flat_map(|one| &one.predictions).chain(&plans);
    let Reported { all, told, inside } = reported;
    Ok(Report {
        header: Header::with_servers("foresight", size, cluster_pair::CACHE_MB),
        predictions: Quality::by_name(predictions),
        plans: plans.iter().filter(|one| one.name == LATENCY_RATIO).count(),
        reports: told,
        reports_inside: inside as f64 / told.max(1) as f64,
        reports_told: told as f64 / all.max(1) as f64,
        copies,
        reshards,
    })
}

async fn one(
    clusters: &ClusterPair,
    documents: u64,
    commands: &subject::Commands,
) -> Result<(Copied, Ended)> {
    clusters.rest().await?;
    let command = commands(&Subject::Copy, &clusters.ends());
    let ended = Measured::start("a copy", command)?.end(0).await?;
    require(&clusters.destination, DB, documents).await?;
    let (job, predictions) = predicted(&clusters.destination, &ended).await?;
    // Unless this job is cancelled, the next copy into the collection is refused.
    let given_up = commands(&Subject::Cancel { job }, &clusters.ends());
    Measured::start("giving the copy up", given_up)?.end(0).await?;
    clusters.clear(DB).await?;
    Ok((Copied { documents, predictions }, ended))
}

/// Changes the shard key of collections of each size so many times.
async fn reshards(
    size: Size,
    times: u32,
    commands: &subject::Commands,
    reported: &mut Reported,
) -> Result<Vec<Copied>> {
    let reviews = Reviews { size_bytes: size.size_bytes, ..Reviews::default() };
    let shape = Shape { shards: SHARDS, members: 1, cache_mb: cluster_pair::CACHE_MB };
    let cluster = ShardedCluster::start(shape, reviews).await?;
    let mut all = Vec::new();
    for part in PARTS {
        let documents = size.documents / part;
        for _ in 0..times {
            cluster.fill(documents).await?;
            let cut = Cut { placing: Placing::Balanced, chunk_mb: None };
            let (plan, _) = cluster.plan(cut, commands).await?;
            let ended = cluster.change(&plan, commands).await?;
            let (_, predictions) = predicted(&cluster.router, &ended).await?;
            let changed = Copied { documents, predictions };
            reported.count(&changed, &ended);
            all.push(changed);
        }
    }
    Ok(all)
}

/// Returns the job of a process that has ended, and what it predicted, from its record in a cluster.
async fn predicted(kept: &Endpoint, ended: &Ended) -> Result<(String, Vec<Prediction>)> {
    let job = job_of(ended)?;
    let id: JobId = job.parse().map_err(|_| Error::Wrong(format!("`{job}` is no job")))?;
    let journal = MongoJournal::new(kept.clone());
    let record = journal.load(&id).await.map_err(imago_mongo::error::Error::from)?;
    Ok((job, record.predictions))
}

impl Reported {
    /// Counts the reports of a job whose end was predicted, and came.
    fn count(&mut self, job: &Copied, ended: &Ended) {
        let end = job.predictions.iter().find(|one| one.name == COPY_S);
        let Some((at_ms, took_s)) = end.and_then(|one| Some((one.at_ms, one.realized?))) else {
            return;
        };
        let end_ms = at_ms + (took_s * 1_000.0) as u64;
        let is_asked = |at_ms: u64, done: u64, total: Option<u64>| {
            at_ms < end_ms && total.is_some_and(|total| done >= total / FROM)
        };
        let asked = ended.progress.iter().filter(|(at_ms, progress)| {
            is_asked(*at_ms, progress.bytes_done, progress.bytes_total)
        });
        for (at_ms, progress) in asked {
            self.all += 1;
            if let Some((low, high)) = progress.eta_interval_ms {
                self.told += 1;
                self.inside += usize::from((low..=high).contains(&(end_ms - at_ms)));
            }
        }
    }
}

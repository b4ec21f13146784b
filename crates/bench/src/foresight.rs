//! Benchmark of predictions: copies of several sizes from one replica set to another, changes of the shard key of such
//! collections, and the plans of a store that adapts, and what each predicted beside what came of it.
//!
//! Each copy and each change keeps its predictions in its job's record ([`imago_job::prediction`]), from which the quality of each kind
//! follows. Besides, each report of progress has the interval of the time that is left: of those from a tenth of the bulk on,
//! the share is counted that contains the time at which the copy had caught up.
//!
//! Some copies run beside clients that come and go: bursts of reads and updates at the source, each as long as the pause before it.

mod picture;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bson::doc;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::prediction::{Prediction, Quality};
use imago_load::Schema;
use imago_load::mongo::MongoTarget;
use imago_mongo::copy::COPY_S;
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::plan::Placing;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use imago_store::adapt::LATENCY_RATIO;
use imago_workload::driver::{self, Arrival, Options};
use imago_workload::history::Recorder;
use imago_workload::review::Reviews;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

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
/// The same of those that are copied beside clients, whom copies spare: they take several times as long.
const PARTS_BESIDE_CLIENTS: [u64; 3] = [16, 8, 4];
/// Number of shards of the cluster in which keys are changed.
const SHARDS: u32 = 3;
/// Share of the bulk from which on the interval of the time that is left should hold: one tenth.
const FROM: u64 = 10;
/// Least and greatest length of a burst of clients' operations, in ms; the pause behind it is as long.
const BURST_MS: std::ops::Range<u64> = 500..5_000;
/// Number of operations at once in a burst.
const CLIENTS: u32 = 4;

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
    /// The same of the copies beside clients alone, whose reports and predictions the figures above have, too.
    pub beside_clients: BesideClients,
    /// What each copy predicted, and what came of it, in the order of the copies.
    pub copies: Vec<Copied>,
    /// The same of each change of a shard key.
    pub reshards: Vec<Copied>,
    /// The file of the picture, if it was requested.
    pub pictures: Vec<PathBuf>,
}

/// What copies beside clients predicted, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BesideClients {
    /// The quality of the predictions of each kind.
    pub predictions: Vec<Quality>,
    /// Number of reports of progress from a tenth of the bulk on that had an interval of the time that is left.
    pub reports: usize,
    /// Share (0..1) of these whose interval contained the time at which the copy had caught up.
    pub reports_inside: f64,
}

/// One copy, or one change of a shard key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Copied {
    /// Number of documents of the collection.
    pub documents: u64,
    /// True if clients came and went meanwhile.
    pub beside_clients: bool,
    /// What it predicted, and what came of it.
    pub predictions: Vec<Prediction>,
}

/// What is predicted besides copies without clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// Number of copies beside clients at each size.
    pub beside_clients: u32,
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

/// Runs the benchmark, and returns its report; writes a picture of the predictions into `folder`, and calls `say` with each
/// step.
///
/// # Errors
/// Returns an error if a cluster cannot be started, a copy fails or is wrong, or a store refuses an operation.
#[crate::boxed]
pub async fn run(
    size: Size,
    others: Others,
    folder: Option<&Path>,
    commands: &subject::Commands,
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Report> {
    let least = PARTS_BESIDE_CLIENTS[0] * 2;
    if size.documents < least || size.runs == 0 {
        return Err(Error::Size(format!("predictions need at least {least} documents and 1 run")));
    }
    let clusters = ClusterPair::start().await?;
    let mut copies = Vec::new();
    let (mut reported, mut beside_clients) = (Reported::default(), Reported::default());
    let quiet = PARTS.map(|part| (part, size.runs, false));
    let beside = PARTS_BESIDE_CLIENTS.map(|part| (part, others.beside_clients, true));
    for (part, runs, has_clients) in quiet.into_iter().chain(beside) {
        let documents = (size.documents / part).max(1);
        clusters.source.run(DB, doc! {"dropDatabase": 1}).await?;
        fill::send(&clusters.source, DB, &fill::inserts(Size { documents, ..size })?).await?;
        let index = doc! {"key": {"productID": 1}, "name": "productID_1"};
        clusters.source.run(DB, doc! {"createIndexes": COLL, "indexes": [index]}).await?;
        for run in 1..=runs {
            let beside = if has_clients { ", beside clients" } else { "" };
            say(&format!("copy {run} of {runs} of {documents} documents{beside}"));
            let bursts = has_clients.then(|| {
                Bursts::start(clusters.ends().from, fill::schema(size.size_bytes)?, documents)
            });
            let bursts = bursts.transpose()?;
            let copied = one(&clusters, documents, commands).await;
            if let Some(bursts) = bursts {
                bursts.end().await?;
            }
            let (copied, ended) = copied?;
            let copied = Copied { beside_clients: has_clients, ..copied };
            reported.count(&copied, &ended);
            if has_clients {
                beside_clients.count(&copied, &ended);
            }
            copies.push(copied);
        }
    }
    drop(clusters);
    say("changes of the shard key");
    let reshards = Box::pin(reshards(size, others.reshards, commands, &mut reported)).await?;
    say("loads on a store");
    let loads = tokio::task::spawn_blocking(move || morphosys::predictions(others.load_s)).await;
    let plans =
        loads.map_err(|stopped| Error::Wrong(format!("the loads on stores: {stopped}")))??;
    let jobs = copies.iter().chain(&reshards);
    let predictions = jobs.flat_map(|one| &one.predictions).chain(&plans);
    let predictions: Vec<&Prediction> = predictions.collect();
    let pictures = imago_chart::save(&[picture::picture(predictions.iter().copied())], folder)?;
    let with_clients = copies.iter().filter(|one| one.beside_clients);
    let beside_clients = BesideClients {
        predictions: Quality::by_name(with_clients.flat_map(|one| &one.predictions)),
        reports: beside_clients.told,
        reports_inside: beside_clients.inside as f64 / beside_clients.told.max(1) as f64,
    };
    let Reported { all, told, inside } = reported;
    Ok(Report {
        header: Header::with_servers("foresight", size, cluster_pair::CACHE_MB),
        predictions: Quality::by_name(predictions.into_iter()),
        plans: plans.iter().filter(|one| one.name == LATENCY_RATIO).count(),
        reports: told,
        reports_inside: inside as f64 / told.max(1) as f64,
        reports_told: told as f64 / all.max(1) as f64,
        beside_clients,
        copies,
        reshards,
        pictures,
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
    Ok((Copied { documents, beside_clients: false, predictions }, ended))
}

/// Clients that come and go: bursts of reads and updates of the source's documents, until they are ended.
struct Bursts {
    ended: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Bursts {
    fn start(uri: String, schema: Schema, documents: u64) -> Result<Self> {
        let mix = "read=80,update=20".parse();
        let mix = mix.map_err(|_| Error::Wrong("the mix of the clients".into()))?;
        let ended = CancellationToken::new();
        let (stop, mut rng) = (ended.clone(), StdRng::seed_from_u64(documents));
        let task = tokio::spawn(async move {
            let ns = Namespace::new(DB, COLL);
            let target = Arc::new(MongoTarget::connect(&uri, &ns, schema).await?);
            while !stop.is_cancelled() {
                let length = Duration::from_millis(rng.random_range(BURST_MS));
                let options = Options {
                    mix,
                    arrival: Arrival::Closed,
                    in_flight_max: CLIENTS,
                    duration: Some(length),
                    preloaded: documents,
                    reviews: schema.reviews,
                    seed: rng.random(),
                    ..Options::default()
                };
                let failed = |error| Error::Wrong(format!("the clients: {error}"));
                let burst = driver::start(options, Arc::clone(&target), Recorder::nothing());
                let (report, _) = burst.map_err(failed)?.finish().await.map_err(failed)?;
                if let Some(failure) = report.failures.first() {
                    return Err(Error::Wrong(format!("the clients: {}", failure.message)));
                }
                tokio::select! {
                    () = tokio::time::sleep(length) => {}
                    () = stop.cancelled() => {}
                }
            }
            Ok(())
        });
        Ok(Self { ended, task })
    }

    async fn end(self) -> Result<()> {
        self.ended.cancel();
        self.task.await.map_err(|stopped| Error::Wrong(format!("the clients: {stopped}")))?
    }
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
            let changed = Copied { documents, beside_clients: false, predictions };
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

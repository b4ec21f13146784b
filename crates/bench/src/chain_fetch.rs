//! Benchmark of the fetching of a chained job: the documents of many keys, by batches and through a cache, compared
//! with the loop that users write first, one `find_one` after the other.
//!
//! All variants read the same keys of the same collection on a cluster of two shards, hash each document, and must
//! yield the same next keys. The job runs in this process; its input and its output are lines of keys.

use std::io::Cursor;
use std::time::Instant;

use bson::{RawDocumentBuf, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_provision::chain::cache::{self, Cache};
use imago_provision::chain::map::{Missing, Options, Work, map};
use imago_provision::chain::run::Start;
use imago_provision::chain::{Counts, Fetcher, Job, Keys, Namespace, Next, Reads, Source};
use imago_testbed::{Cluster, ClusterSpec, Single, SingleSpec, find_redis};
use imago_workload::scatter::mix64;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Header;
use crate::cluster_pair::CACHE_MB;
use crate::error::{Error, Result};
use crate::statistics::Figure;

const DB: &str = "bench";
const COLL: &str = "messages";
/// Number of documents of one insert command.
const INSERTED: u64 = 1_000;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of messages in the collection, of a hundred characters each; each shard has one half of them.
    pub documents: u64,
    /// Number of keys that are fetched.
    pub keys: u64,
    /// Number of keys in a batch.
    pub batch: u32,
    /// Number of batches in flight.
    pub workers: u32,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The measurements; seconds and ratios are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Time of the loop divided by the time of the job with all workers and without a cache.
    pub ratio_to_find_one: f64,
    /// Time of the loop divided by the time of the job with one worker and without a cache.
    pub ratio_of_one_worker: f64,
    /// Time of the loop divided by the time of the job with all workers and a cache that has all documents; absent
    /// without Redis.
    pub ratio_of_warm_cache: Option<f64>,
    /// Time of the loop, in seconds.
    pub find_one_seconds: f64,
    /// Time of the job with one worker and without a cache, in seconds.
    pub one_worker_seconds: f64,
    /// Time of the job with all workers and without a cache, in seconds.
    pub seconds: f64,
    /// Time of the job with all workers and a cache that has all documents, in seconds; absent without Redis.
    pub warm_cache_seconds: Option<f64>,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::ratio_to_find_one`].
    pub ratio_to_find_one: Figure,
    /// See [`Report::ratio_of_one_worker`].
    pub ratio_of_one_worker: Figure,
    /// See [`Report::ratio_of_warm_cache`].
    pub ratio_of_warm_cache: Option<Figure>,
    /// See [`Report::find_one_seconds`].
    pub find_one_seconds: Figure,
    /// See [`Report::seconds`].
    pub seconds: Figure,
}

struct OneRun {
    find_one_s: f64,
    one_worker_s: f64,
    all_workers_s: f64,
    warm_s: Option<f64>,
}

/// Runs the benchmark and returns its report.
///
/// # Errors
/// Returns an error if a server cannot be started, or the work that is measured fails or is wrong.
#[crate::boxed]
pub async fn run(size: Size) -> Result<Report> {
    let Size { documents, keys, batch, workers, runs } = size;
    if keys == 0 || keys > documents || batch == 0 || workers == 0 || runs == 0 {
        let what = "fetching needs at least 1 key, no more than documents, and 1 run";
        return Err(Error::Size(what.into()));
    }
    let spec = ClusterSpec { cache_mb: CACHE_MB, ..ClusterSpec::sharded("fetch", 2) };
    let cluster = Box::pin(Cluster::start(spec)).await?;
    let router = Endpoint::connect(&cluster.uri(), "cluster").await?;
    fill(&cluster, &router, documents).await?;
    let redis = match find_redis() {
        Ok(_) => Some(Single::start(SingleSpec::redis("fetch-cache")).await?),
        Err(cause) => {
            tracing::warn!(%cause, "no figure with a cache");
            None
        }
    };
    let all = Keys::Numbers(documents);
    let ranks = Start::drawn(&all, keys, 1)?;
    let next = Next::new(Job::Hash, all, 1.0)?;
    let scene = Scene { router, cluster, redis, ranks, next, size };
    // A first read fills the caches of the servers, so that all runs start alike.
    scene.mapped(workers, false).await?;
    let mut measured = Vec::new();
    for _ in 0..runs {
        measured.push(scene.one().await?);
    }
    Ok(report(size, &measured))
}

fn report(size: Size, runs: &[OneRun]) -> Report {
    let of = |figure: fn(&OneRun) -> f64| Figure::of(runs.iter().map(figure));
    let warm: Option<Vec<(f64, f64)>> =
        runs.iter().map(|run| Some((run.find_one_s, run.warm_s?))).collect();
    let warm_ratio =
        warm.as_ref().map(|warm| Figure::of(warm.iter().map(|(loop_s, s)| loop_s / s)));
    let spread = Spread {
        ratio_to_find_one: of(|run| run.find_one_s / run.all_workers_s),
        ratio_of_one_worker: of(|run| run.find_one_s / run.one_worker_s),
        ratio_of_warm_cache: warm_ratio,
        find_one_seconds: of(|run| run.find_one_s),
        seconds: of(|run| run.all_workers_s),
    };
    Report {
        header: Header::with_servers("chain-fetch", size, CACHE_MB),
        ratio_to_find_one: spread.ratio_to_find_one.median,
        ratio_of_one_worker: spread.ratio_of_one_worker.median,
        ratio_of_warm_cache: spread.ratio_of_warm_cache.map(|ratio| ratio.median),
        find_one_seconds: spread.find_one_seconds.median,
        one_worker_seconds: of(|run| run.one_worker_s).median,
        seconds: spread.seconds.median,
        warm_cache_seconds: warm.map(|warm| Figure::of(warm.iter().map(|(_, s)| *s)).median),
        spread,
    }
}

/// Creates the collection and inserts the messages, one half on each shard.
async fn fill(cluster: &Cluster, router: &Endpoint, documents: u64) -> Result<()> {
    let ns = format!("{DB}.{COLL}");
    let key = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let middle = doc! {"_id": key(documents / 2)};
    let admin = async |command| router.run("admin", command).await;
    admin(doc! {"enableSharding": DB}).await?;
    admin(doc! {"shardCollection": &ns, "key": {"_id": 1}}).await?;
    admin(doc! {"split": &ns, "middle": middle.clone()}).await?;
    let shards: Vec<&str> = cluster.set_names().take(2).collect();
    for (from, to) in [(doc! {"_id": key(0)}, shards[0]), (middle, shards[1])] {
        // This has no effect for the half that is already on its shard.
        let moving = doc! {"moveChunk": &ns, "find": from, "to": to, "_waitForDelete": true};
        admin(moving).await?;
    }
    for first in (0..documents).step_by(usize::try_from(INSERTED).unwrap_or(1)) {
        let messages = (first..documents.min(first + INSERTED)).map(|number| {
            let words: String =
                (0..7).map(|word| format!("{:016x}", mix64(number * 7 + word))).collect();
            doc! {"_id": key(number), "message": &words[..100]}
        });
        let messages: Vec<_> = messages.collect();
        let wanted = messages.len();
        let insert = doc! {"insert": COLL, "documents": messages, "ordered": false, "writeConcern": {"w": "majority"}};
        let told = router.run(DB, insert).await?;
        if told.get_i32("n").ok().and_then(|done| usize::try_from(done).ok()) != Some(wanted) {
            return Err(Error::Wrong(format!(
                "{wanted} messages were inserted, and the router says {told}"
            )));
        }
    }
    Ok(())
}

struct Scene {
    router: Endpoint,
    cluster: Cluster,
    redis: Option<Single>,
    ranks: Vec<u64>,
    next: Next,
    size: Size,
}

impl Scene {
    async fn one(&self) -> Result<OneRun> {
        let (looped, find_one_s) = self.find_one().await?;
        let (one_worker, one_worker_s, _) = self.mapped(1, false).await?;
        let (all_workers, all_workers_s, _) = self.mapped(self.size.workers, false).await?;
        let mut results = vec![one_worker, all_workers];
        let mut warm_s = None;
        if self.redis.is_some() {
            let (filled, ..) = self.mapped(self.size.workers, true).await?;
            let (warm, seconds, counts) = self.mapped(self.size.workers, true).await?;
            if counts.misses > 0 {
                return Err(Error::Wrong(format!("{} keys were not in the cache", counts.misses)));
            }
            results.extend([filled, warm]);
            warm_s = Some(seconds);
        }
        if results.iter().any(|result| *result != looped) {
            return Err(Error::Wrong("the next keys are not those of the loop".into()));
        }
        tracing::info!(find_one_s, one_worker_s, all_workers_s, warm_s, "one run of fetching");
        Ok(OneRun { find_one_s, one_worker_s, all_workers_s, warm_s })
    }

    /// Runs the loop. Returns its result and its time in seconds.
    async fn find_one(&self) -> Result<(Vec<u8>, f64)> {
        let collection = self.router.client().database(DB).collection::<RawDocumentBuf>(COLL);
        let began = Instant::now();
        let mut result = Vec::new();
        for rank in &self.ranks {
            let id = i64::try_from(*rank).unwrap_or(i64::MAX);
            let found = collection.find_one(doc! {"_id": id}).await;
            let found = found.map_err(|cause| Error::Wrong(format!("find_one failed: {cause}")))?;
            let found = found.ok_or_else(|| Error::Wrong(format!("there is no message {id}")))?;
            self.next.keys().write(self.next.rank(found.as_bytes()), &mut result);
            result.push(b'\n');
        }
        Ok((result, began.elapsed().as_secs_f64()))
    }

    /// Runs the job. Returns its result, its time in seconds, and its counts of reads.
    async fn mapped(&self, workers: u32, is_cached: bool) -> Result<(Vec<u8>, f64, Counts)> {
        let namespace = Namespace { db: DB.into(), coll: COLL.into() };
        let cache = match self.redis.as_ref().filter(|_| is_cached) {
            Some(redis) => {
                let options = cache::Options { uri: redis.uri(), is_required: true, ttl_s: None };
                Some(Cache::connect(&options, &namespace).await?)
            }
            None => None,
        };
        let source = Source::connect(&self.cluster.uri(), namespace, Reads::Primary).await?;
        let fetcher = Fetcher::new(source, cache);
        let mut keys = Vec::new();
        for rank in &self.ranks {
            self.next.keys().write(*rank, &mut keys);
            keys.push(b'\n');
        }
        let options = Options {
            batch: self.size.batch as usize,
            workers: workers as usize,
            missing: Missing::Fails,
        };
        let (work, mut result) = (Work::Draw(self.next.clone()), Vec::new());
        let began = Instant::now();
        let cancel = CancellationToken::new();
        let counts = map(Cursor::new(keys), &mut result, work, &fetcher, &options, &cancel).await?;
        Ok((result, began.elapsed().as_secs_f64(), counts))
    }
}

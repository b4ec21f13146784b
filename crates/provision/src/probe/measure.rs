//! The steps of a probe: choose keys, read all documents once, and measure idle rates, round trips, windows and sizes.
//!
//! Within each kind of request, the windows of the two batch sizes follow each other as A B B A, so that a drift of the
//! machine affects both sizes equally.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use super::fit::{self, Measured, Point};
use super::keys::{self, Sampled};
use super::load::Load;
use super::pages::{self, Storage};
use super::result::{
    Cores, KeysFrom, Kind, MeasuredCosts, MeasuredPage, RoundTrips, Share, Window,
};
use super::scratch::Scratch;
use super::sizes;
use super::stations::{Times, Used};
use super::{Error, Probe, VERSION, trips};
use crate::chain::proxy::{self, Proxy};
use crate::chain::{Key, Namespace, Reads, Source, source_options};

/// Number of keys in the small and in the large batch of the measurement windows.
pub const BATCHES: [u32; 2] = [32, 512];
/// Number of rounds of a probe; each round has windows of all kinds of requests.
const ROUNDS: usize = 2;
/// Share of the probe's time in which the processor use of the idle stations is measured, from 0 to 1.
const IDLE_SHARE: f64 = 0.08;
/// Maximum share of the free memory of a cache with a memory limit that the probe's entries take, from 0 to 1.
const CACHE_SHARE: f64 = 0.5;

/// The settings of a probe.
#[derive(Debug, Clone)]
pub struct Request {
    /// Connection string of the database.
    pub uri: String,
    /// The collection whose documents are read.
    pub namespace: Namespace,
    /// Address of the cache, as `redis://HOST:PORT`; `None` without a cache.
    pub cache: Option<String>,
    /// Total time for the idle measurement and all windows, in seconds.
    pub seconds: f64,
    /// Number of batches that are in flight at once.
    pub workers: u32,
    /// Path of a trace file whose keys are read; `None`: the keys are a sample of the collection.
    pub keys: Option<PathBuf>,
    /// Number of processors of each station, which the probe's result repeats.
    pub cores: Cores,
    /// The current time (RFC 3339, UTC), which the probe's result repeats.
    pub when: String,
}

/// Measures the costs of requests at each station and returns the result. `say` receives one line of progress for
/// each step.
///
/// # Errors
/// [`Error`]: a server that cannot be reached or does not report a needed value, a collection that is too small, or an
/// interruption. The probe's entries in the cache are deleted in every case.
#[crate::boxed(?Send)]
pub async fn run(
    request: &Request,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Probe, Error> {
    let options = source_options(&request.uri).await?;
    let cluster = Cluster::connect(&options).await?;
    let source = Source::connect_with(options, request.namespace.clone(), Reads::Primary).await?;
    let scratch = match &request.cache {
        Some(uri) => Some(Scratch::connect(uri, &request.namespace.coll).await?),
        None => None,
    };
    say("reading the keys' documents once, so that they are in the servers' memory".into());
    let mut sampled = keys::sample(&cluster, &source, request.keys.as_deref()).await?;
    if let Some(scratch) = &scratch {
        let memory = scratch.memory().await?;
        let free = memory.limit_bytes.saturating_sub(memory.used_bytes) as f64 * CACHE_SHARE;
        if memory.limit_bytes > 0 {
            // An entry is larger than its document; the factor covers short ones.
            sampled.limit((free / 3.0) as usize);
        }
    }
    let storage = Storage::now(&cluster).await?;
    let exceeds = storage.is_exceeded(&cluster, &request.namespace).await?;
    let large = BATCHES[1] as usize;
    if sampled.keys.len() < large {
        return Err(Error::Unfit(format!(
            "only {} documents can be read of {} (from {}), and batches of {large} keys are measured: use a larger \
             collection, a trace whose keys are there, or a cache with more free memory",
            sampled.keys.len(),
            request.namespace,
            sampled.from,
        )));
    }
    let shares = sizes::shares(&cluster, &source, &sampled.keys).await?;
    let page = if exceeds {
        say("reading keys twice, since the collection exceeds the storage caches".into());
        let keys = storage.keys(cluster.shards.len(), large);
        let at_once = sizes::shards_asked(&shares, f64::from(BATCHES[0]));
        let (batch, sets) = (BATCHES[0] as usize, sampled.keys.chunks(keys));
        let cores = request.cores.shard;
        let page = pages::measure(&cluster, &source, sets, (batch, at_once), cores).await?;
        // The windows are to read from memory.
        sampled.limit_keys(keys);
        page
    } else {
        None
    };
    let sampled = Arc::new(sampled);
    let stand =
        Stand { request, cluster: &cluster, source: &source, scratch: scratch.as_ref(), say };
    let measured = stand.measure(&sampled, (shares, page), cancel).await;
    if let Some(scratch) = &scratch {
        let deleted = scratch.delete(&sampled.keys).await;
        // An error of the measurement takes precedence over an error of the deletion.
        let probe = measured?;
        deleted?;
        return Ok(probe);
    }
    measured
}

/// The settings and connections of a probe that is running.
struct Stand<'a> {
    request: &'a Request,
    cluster: &'a Cluster,
    source: &'a Source,
    /// The probe's own entries in the cache; `None` without a cache.
    scratch: Option<&'a Scratch>,
    /// The callback that receives one line of progress for each step.
    say: &'a (dyn Fn(String) + Sync),
}

impl Stand<'_> {
    /// Runs all steps of the probe after the choice of its keys, and returns the result.
    async fn measure(
        &self,
        sampled: &Arc<Sampled>,
        (shares, page): (Vec<Share>, Option<MeasuredPage>),
        cancel: &CancellationToken,
    ) -> Result<Probe, Error> {
        if let Some(scratch) = self.scratch {
            self.fill(scratch, sampled).await?;
        }
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let load = Load {
            sampled: Arc::clone(sampled),
            source: self.source.clone(),
            cache: self.scratch.map(|scratch| scratch.cache.clone()),
            proxy: self.proxy(sampled, &stop).await?,
            workers: self.request.workers as usize,
            cancel: cancel.clone(),
        };
        let idle = self.idle(cancel).await?;
        let round_trips = self.round_trips().await?;
        let windows = self.windows(&load, idle).await?;
        let costs = costs(&windows, &shares)?;
        let sizes =
            sizes::sizes(self.cluster, &self.request.namespace, sampled, self.scratch).await?;
        let members: Vec<String> = self.cluster.members().map(|one| one.address.clone()).collect();
        Ok(Probe {
            version: VERSION,
            about: format!(
                "processor time of {} shards ({}){}{}, by the job's own requests",
                shares.len(),
                members.join(", "),
                if self.cluster.has_router { ", their router" } else { "" },
                if self.scratch.is_some() { ", and a cache" } else { "" },
            ),
            when: self.request.when.clone(),
            namespace: self.request.namespace.to_string(),
            seconds: windows.iter().map(|window| window.seconds).sum(),
            workers: self.request.workers,
            batches: BATCHES.to_vec(),
            shards: shares,
            keys: KeysFrom {
                count: sampled.keys.len() as u64,
                from: sampled.from.clone(),
                storage: "warm".into(),
            },
            costs: MeasuredCosts { page, ..costs },
            round_trips,
            sizes,
            cores: self.request.cores,
            windows,
        })
    }

    /// Writes the documents of all keys to the cache.
    async fn fill(&self, scratch: &Scratch, sampled: &Sampled) -> Result<(), Error> {
        let large = BATCHES[1] as usize;
        for (keys, documents) in sampled.keys.chunks(large).zip(sampled.documents.chunks(large)) {
            let entries = keys.iter().zip(documents);
            let entries: Vec<(&[u8], &[u8])> =
                entries.map(|(key, document)| (key.identity(), document.as_slice())).collect();
            if scratch.cache.set(&entries).await? < entries.len() as u64 {
                return Err(Error::Unfit("the cache did not take all entries: it is full".into()));
            }
        }
        Ok(())
    }

    /// Starts a proxy on the probe's own namespace (a collection that does not exist), so that the proxy answers
    /// every find from the cache; `stop` ends it. Returns a source that reads through the proxy. Returns `None`
    /// without a cache or a router, or if the proxy cannot be used; the reason is reported.
    async fn proxy(
        &self,
        sampled: &Sampled,
        stop: &CancellationToken,
    ) -> Result<Option<Source>, Error> {
        let Some(scratch) = self.scratch.filter(|_| self.cluster.has_router) else {
            return Ok(None);
        };
        let options = proxy::Options {
            uri: self.request.uri.clone(),
            namespace: scratch.namespace.clone(),
            cache: scratch.options.clone(),
            listen: ([127, 0, 0, 1], 0).into(),
        };
        let without = |why: String| {
            (self.say)(format!("the proxy at the router is not measured: {why}"));
            Ok(None)
        };
        let proxy = match Proxy::bind(&options).await {
            Ok(proxy) => proxy,
            Err(error) => return without(error.to_string()),
        };
        let mut behind = self.cluster.options.clone();
        behind.hosts = vec![mongodb::options::ServerAddress::Tcp {
            host: "127.0.0.1".into(),
            port: Some(proxy.address().port()),
        }];
        tokio::spawn(proxy.serve(stop.clone()));
        let source =
            Source::connect_with(behind, scratch.namespace.clone(), Reads::Primary).await?;
        // The user may lack the right to read the probe's namespace, which does not exist.
        let one: Vec<&Key> = sampled.keys.iter().take(1).collect();
        match source.fetch(&one).await {
            Ok(_) => Ok(Some(source)),
            Err(error) => without(error.to_string()),
        }
    }

    /// Measures the processor time that each station uses while no requests run. Returns it per second of time.
    async fn idle(&self, cancel: &CancellationToken) -> Result<Times, Error> {
        let time = Duration::from_secs_f64((self.request.seconds * IDLE_SHARE).max(1.0));
        (self.say)(format!("the servers at rest: {:.1} s", time.as_secs_f64()));
        let before = Used::now(self.cluster, self.scratch).await?;
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = cancel.cancelled() => return Err(Error::Interrupted),
        }
        let (seconds, used) = Used::now(self.cluster, self.scratch).await?.since(&before);
        Ok(used.scaled(1.0 / seconds))
    }

    /// Measures the round trips to one member of a shard and, if they exist, to the router and the cache.
    async fn round_trips(&self) -> Result<RoundTrips, Error> {
        let shard = self.cluster.members().next();
        let shard = shard.ok_or_else(|| Error::Unfit("the database has no members".into()))?;
        let mut found =
            RoundTrips { shard: trips::to_member(shard).await?, ..RoundTrips::default() };
        if self.cluster.has_router {
            found.router = Some(trips::to_router(self.cluster).await?);
        }
        if let Some(scratch) = self.scratch {
            found.cache = Some(trips::to_cache(scratch).await?);
        }
        Ok(found)
    }

    /// Runs the measurement windows of all rounds. `idle` is the processor time per second of each idle station,
    /// which is subtracted from the windows.
    async fn windows(&self, load: &Load, idle: Times) -> Result<Vec<Window>, Error> {
        let mut kinds = vec![Kind::Find, Kind::Map];
        if load.cache.is_some() {
            kinds.extend([Kind::Get, Kind::Set]);
        }
        if load.proxy.is_some() {
            kinds.push(Kind::Proxy);
        }
        let count = ROUNDS * kinds.len() * 4;
        let length = self.request.seconds * (1.0 - IDLE_SHARE) / count as f64;
        let length = Duration::from_secs_f64(length);
        let mut windows = Vec::with_capacity(count);
        for round in 0..ROUNDS {
            for kind in &kinds {
                (self.say)(format!("round {} of {ROUNDS}: {kind:?}", round + 1));
                for batch in [BATCHES[0], BATCHES[1], BATCHES[1], BATCHES[0]] {
                    let before = Used::now(self.cluster, self.scratch).await?;
                    let done = load.window(*kind, batch as usize, length).await?;
                    let (seconds, used) =
                        Used::now(self.cluster, self.scratch).await?.since(&before);
                    let used = used - idle.scaled(seconds);
                    windows.push(Window {
                        kind: *kind,
                        seconds,
                        requests: done.requests,
                        keys: done.keys,
                        client_s: used.client_s,
                        cache_s: used.cache_s,
                        router_s: used.router_s,
                        shards_s: used.shards_s,
                    });
                }
            }
        }
        Ok(windows)
    }
}

/// Fits the cost of a request and of a key at each station to the windows; `shares` are the shards' shares of the
/// keys.
fn costs(windows: &[Window], shares: &[Share]) -> Result<MeasuredCosts, Error> {
    // A find is one request to each shard that has some of its keys.
    let parts = |window: &Window| {
        let keys = window.keys as f64 / window.requests.max(1) as f64;
        window.requests as f64 * sizes::shards_asked(shares, keys)
    };
    let requests = |window: &Window| window.requests as f64;
    let fitted = |kinds: &[Kind],
                  used: &dyn Fn(&Window) -> Option<f64>,
                  requests: &dyn Fn(&Window) -> f64|
     -> Option<Measured> {
        let of = windows.iter().filter(|window| kinds.contains(&window.kind));
        let points = of.filter(|window| window.requests > 0).map(|window| {
            let requests = requests(window);
            Some(Point { keys: window.keys as f64 / requests, request_s: used(window)? / requests })
        });
        fit::line(&points.collect::<Option<Vec<_>>>()?)
    };
    let client = |kind| fitted(&[kind], &|window| Some(window.client_s), &requests);
    let finds = [Kind::Find, Kind::Map];
    let few =
        || Error::Unfit("too few requests were answered in the time: give more --seconds".into());
    let client_find = client(Kind::Find).ok_or_else(few)?;
    let client_get = client(Kind::Get);
    let proxy = client(Kind::Proxy);
    Ok(MeasuredCosts {
        client: client(Kind::Map).ok_or_else(few)?.without(client_find),
        client_get,
        client_set: client(Kind::Set),
        client_find,
        proxy: proxy.and_then(|proxy| Some(proxy.without(client_find).without(client_get?))),
        cache_get: fitted(&[Kind::Get], &|window| window.cache_s, &requests),
        cache_set: fitted(&[Kind::Set], &|window| window.cache_s, &requests),
        router: fitted(&finds, &|window| window.router_s, &requests),
        shard: fitted(&finds, &|window| Some(window.shards_s), &parts).ok_or_else(few)?,
        page: None,
    })
}

//! The requests of a measurement window: each worker sends one batch after the other until the window ends.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::keys::Sampled;
use super::result::Kind;
use crate::chain::cache::{Cache, Found};
use crate::chain::map::{self, Missing, Work};
use crate::chain::{Fetcher, Job, Key, Keys, Next, Source};

/// Number of batches in one run of the whole job; a window consists of several runs.
const MAP_BATCHES: usize = 32;

/// The keys, documents and connections with which the windows make their requests.
pub(super) struct Load {
    /// The keys to request, with their documents.
    pub(super) sampled: Arc<Sampled>,
    /// Connection to the database, through the router if there is one.
    pub(super) source: Source,
    /// Connection to the probe's own entries in the cache; `None` without a cache.
    pub(super) cache: Option<Cache>,
    /// Connection to the proxy at the router, for which all documents are in the cache; `None` if the proxy is not
    /// measured.
    pub(super) proxy: Option<Source>,
    /// Number of batches that are in flight at once.
    pub(super) workers: usize,
    /// Cancelling this token ends the windows with [`Error::Interrupted`].
    pub(super) cancel: CancellationToken,
}

/// The number of a window's requests that were answered, and of their keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Number of requests that were answered in the window.
    pub(super) requests: u64,
    /// Number of keys in the answered requests.
    pub(super) keys: u64,
}

impl Load {
    /// Sends requests of the kind `kind`, each of `batch` keys, for the time `length`. Returns the number of those
    /// that were answered; 0 for a kind whose cache or proxy is absent.
    pub(super) async fn window(
        &self,
        kind: Kind,
        batch: usize,
        length: Duration,
    ) -> Result<Done, Error> {
        let until = Instant::now() + length;
        let done = match (kind, &self.cache, &self.proxy) {
            (Kind::Map, _, _) => self.map(batch, until).await?,
            (Kind::Find, _, _) => {
                let source = self.source.clone();
                self.each(batch, until, move |keys, _| find(source.clone(), keys)).await?
            }
            (Kind::Proxy, _, Some(proxy)) => {
                let proxy = proxy.clone();
                self.each(batch, until, move |keys, _| from_proxy(proxy.clone(), keys)).await?
            }
            (Kind::Get, Some(cache), _) => {
                let cache = cache.clone();
                self.each(batch, until, move |keys, _| get(cache.clone(), keys)).await?
            }
            (Kind::Set, Some(cache), _) => {
                let (cache, sampled) = (cache.clone(), Arc::clone(&self.sampled));
                let set = move |keys, from| set(cache.clone(), Arc::clone(&sampled), keys, from);
                self.each(batch, until, set).await?
            }
            (Kind::Get | Kind::Set | Kind::Proxy, _, _) => Done::default(),
        };
        if self.cancel.is_cancelled() { Err(Error::Interrupted) } else { Ok(done) }
    }

    /// Runs the workers until the time `until`; each sends one request of `batch` keys after the other. `ask` sends
    /// one request: it takes the keys and the index of the first key in the sample, and returns whether the request
    /// counts. Returns the number of requests that count.
    async fn each<A, F>(&self, batch: usize, until: Instant, ask: A) -> Result<Done, Error>
    where
        A: Fn(Vec<Key>, usize) -> F + Clone + Send + 'static,
        F: Future<Output = Result<bool, Error>> + Send + 'static,
    {
        let next = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..self.workers {
            let (ask, next) = (ask.clone(), Arc::clone(&next));
            let (sampled, cancel) = (Arc::clone(&self.sampled), self.cancel.clone());
            workers.spawn(async move {
                let mut requests = 0_u64;
                while Instant::now() < until && !cancel.is_cancelled() {
                    // Full batches only: the keys at the end of the sample may not fill one.
                    let batches = (sampled.keys.len() / batch).max(1);
                    let from = next.fetch_add(1, Ordering::Relaxed) % batches * batch;
                    let counts = ask(sampled.keys[from..from + batch].to_vec(), from).await?;
                    requests += u64::from(counts);
                }
                Ok::<_, Error>(requests)
            });
        }
        let mut done = Done::default();
        while let Some(worker) = workers.join_next().await {
            let requests = worker.map_err(|error| Error::Task(error.to_string()))??;
            done.requests += requests;
            done.keys += requests * batch as u64;
        }
        Ok(done)
    }

    /// Runs the job's map, from lines of keys to lines of keys in batches of `batch`, again and again until `until`.
    async fn map(&self, batch: usize, until: Instant) -> Result<Done, Error> {
        let fetcher = Fetcher::new(self.source.clone(), None);
        let options = map::Options { batch, workers: self.workers, missing: Missing::Skipped };
        let next = Next::new(Job::Hash, Keys::Numbers(1 << 40), 1.0)?;
        let whole = self.sampled.keys.len() / batch * batch;
        let lines: Vec<String> = self.sampled.keys[..whole].iter().map(line).collect();
        let input: Vec<u8> =
            lines.iter().cycle().take(MAP_BATCHES * batch).flat_map(|line| line.bytes()).collect();
        let mut done = Done::default();
        let mut output = Vec::new();
        while Instant::now() < until && !self.cancel.is_cancelled() {
            output.clear();
            let input = Cursor::new(input.clone());
            let work = Work::Draw(next.clone());
            let counts =
                map::map(input, &mut output, work, &fetcher, &options, &self.cancel).await?;
            done.requests += counts.requests;
            done.keys += counts.keys;
        }
        Ok(done)
    }
}

/// Returns a key as a line of a map's input, with the line break.
fn line(key: &Key) -> String {
    match key.value() {
        bson::Bson::Int32(number) => format!("{number}\n"),
        bson::Bson::Int64(number) => format!("{number}\n"),
        other => {
            let json =
                serde_json::to_string(other).expect("a value in memory is written to memory");
            json + "\n"
        }
    }
}

/// Reads the documents of the keys from the collection, and returns true; a missing document is an error.
async fn find(source: Source, keys: Vec<Key>) -> Result<bool, Error> {
    let keys: Vec<&Key> = keys.iter().collect();
    let found = source.fetch(&keys).await?.len();
    if found < keys.len() {
        let lost = keys.len() - found;
        let what =
            format!("{lost} of {} documents were missing when they were read again", keys.len());
        return Err(Error::Unfit(what));
    }
    Ok(true)
}

/// Reads the documents of the keys through the proxy, and returns whether the proxy had all of them in the cache. The
/// first find of each connection goes to the router, to check the user's rights; the router has no such collection, so
/// this find returns nothing and does not count.
async fn from_proxy(proxy: Source, keys: Vec<Key>) -> Result<bool, Error> {
    let keys: Vec<&Key> = keys.iter().collect();
    Ok(proxy.fetch(&keys).await?.len() == keys.len())
}

/// Reads the documents of the keys from the cache, and returns true; a missing entry is an error.
async fn get(cache: Cache, keys: Vec<Key>) -> Result<bool, Error> {
    let identities: Vec<&[u8]> = keys.iter().map(Key::identity).collect();
    let found = cache.get(&identities).await?;
    if found.iter().any(|found| !matches!(found, Found::Document(_))) {
        let what = "the cache lost entries within the probe: it is too small for the sample";
        return Err(Error::Unfit(what.into()));
    }
    Ok(true)
}

/// Writes the documents of the keys to the cache, and returns true; `from` is the index of the first key in the
/// sample.
async fn set(
    cache: Cache,
    sampled: Arc<Sampled>,
    keys: Vec<Key>,
    from: usize,
) -> Result<bool, Error> {
    let documents = sampled.documents[from..].iter().map(Vec::as_slice);
    let entries: Vec<(&[u8], &[u8])> = keys.iter().map(Key::identity).zip(documents).collect();
    if cache.set(&entries).await? < entries.len() as u64 {
        return Err(Error::Unfit("the cache did not take all entries: it is full".into()));
    }
    Ok(true)
}

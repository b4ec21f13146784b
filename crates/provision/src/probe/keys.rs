//! The keys that a probe reads: a sample of the collection, or keys of a trace. Only keys with an existing document are
//! used.

use std::collections::HashSet;
use std::path::Path;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::Collection;

use super::Error;
use super::cluster::Cluster;
use crate::chain::{Key, Namespace, Source};
use crate::trace::{Torn, Trace};

/// Maximum number of keys that a probe reads.
const KEYS_MAX: usize = 40_000;
/// Maximum total size of the keys' documents, in bytes: the documents are held in memory and put into the cache.
const DOCUMENTS_BYTES_MAX: usize = 64 << 20;
/// Number of keys in one find while the documents are read for the first time.
const AT_ONCE: usize = 500;

/// The keys that a probe reads, with their documents.
#[derive(Debug)]
pub(super) struct Sampled {
    /// The keys, each once, each with an existing document.
    pub(super) keys: Vec<Key>,
    /// The documents as BSON, in the order of `keys`.
    pub(super) documents: Vec<Vec<u8>>,
    /// Origin of the keys in words: `a sample`, or the file of a trace.
    pub(super) from: String,
}

impl Sampled {
    /// Returns the total size of the keys' documents, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.documents.iter().map(Vec::len).sum()
    }

    /// Keeps the first `keys` keys, in the order in which they were read.
    pub(super) fn limit_keys(&mut self, keys: usize) {
        self.keys.truncate(keys);
        self.documents.truncate(keys);
    }

    /// Removes keys from the end until their documents have at most `bytes_max` bytes together.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        let mut bytes = 0;
        let fits = self.documents.iter().take_while(|document| {
            bytes += document.len();
            bytes <= bytes_max
        });
        let count = fits.count();
        self.keys.truncate(count);
        self.documents.truncate(count);
    }
}

/// Chooses keys, from the trace file `trace` or else by a sample of the collection, and reads their documents, which
/// also loads these documents into the servers' memory.
pub(super) async fn sample(
    cluster: &Cluster,
    source: &Source,
    trace: Option<&Path>,
) -> Result<Sampled, Error> {
    let (wanted, from) = match trace {
        Some(path) => (of_trace(path)?, format!("the trace {}", path.display())),
        None => (of_collection(cluster, source.namespace()).await?, "a sample".to_owned()),
    };
    let mut sampled = Sampled { keys: Vec::new(), documents: Vec::new(), from };
    let mut bytes = 0;
    for some in wanted.chunks(AT_ONCE) {
        let some: Vec<&Key> = some.iter().collect();
        for document in source.fetch(&some).await? {
            let id = document.get("_id").ok().flatten();
            let key = id.and_then(|id| Key::of(Bson::try_from(id).ok()?));
            let Some(key) = key else { continue };
            bytes += document.as_bytes().len();
            sampled.keys.push(key);
            sampled.documents.push(document.into_bytes());
        }
        if bytes > DOCUMENTS_BYTES_MAX {
            break;
        }
    }
    sampled.limit(DOCUMENTS_BYTES_MAX);
    Ok(sampled)
}

/// Returns the distinct keys of a random sample that the server draws from the collection (`$sample`).
async fn of_collection(cluster: &Cluster, namespace: &Namespace) -> Result<Vec<Key>, Error> {
    let collection: Collection<Document> =
        cluster.client.database(&namespace.db).collection(&namespace.coll);
    let draw = [doc! { "$sample": { "size": KEYS_MAX as i64 } }, doc! { "$project": { "_id": 1 } }];
    let failed = || Error::ask("the database", "a sample of the collection");
    let drawn = collection.aggregate(draw).await.map_err(failed())?;
    let drawn: Vec<Document> = drawn.try_collect().await.map_err(failed())?;
    let ids = drawn.into_iter().filter_map(|mut document| document.remove("_id"));
    Ok(distinct(ids.filter_map(Key::of)))
}

/// Returns up to [`KEYS_MAX`] distinct keys of the trace file `path`, spread evenly over its reads.
fn of_trace(path: &Path) -> Result<Vec<Key>, Error> {
    let options = crate::trace::Options { torn: Torn::Refuse, gap: None };
    let trace = Trace::read_with(path, options).map_err(|error| Error::Unfit(error.to_string()))?;
    let reads = usize::try_from(trace.reads()).unwrap_or(usize::MAX);
    let every = (reads / (4 * KEYS_MAX)).max(1);
    let keys = trace.phases.iter().flatten().step_by(every);
    let keys = distinct(keys.filter_map(|read| Key::of(read.key.to_bson())));
    // Thin out over all phases, instead of truncating after the first ones.
    let every = keys.len().div_ceil(KEYS_MAX).max(1);
    Ok(keys.into_iter().step_by(every).collect())
}

/// Collects keys, each once, in their first order.
fn distinct(keys: impl Iterator<Item = Key>) -> Vec<Key> {
    let mut seen = HashSet::new();
    keys.filter(|key| seen.insert(key.identity().to_vec())).collect()
}

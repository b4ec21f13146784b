//! The cost of a page that a shard reads from disk into its storage cache.
//!
//! The same finds are made twice, one after the other, for keys that were read longest ago. The first time some pages have to be
//! read from disk, the second time they are in the storage caches: so the difference of the two passes, in processor time and in
//! time, is that of the pages that the servers counted. A collection that is in memory as a whole reads no pages, and tells nothing
//! of their cost.
//!
//! The keys of one pass are so few that their pages fit into the storage caches.

use bson::doc;

use super::Error;
use super::cluster::{Cluster, number};
use super::result::MeasuredPage;
use super::stations::Used;
use crate::chain::{Key, Namespace, Source};

/// Share (0..1) of the storage caches that the pages of one pass may take.
const CACHE_SHARE: f64 = 0.25;
/// Assumed size of a page in a storage cache, in bytes: the most that WiredTiger's default of 32 KiB on disk becomes.
const PAGE_BYTES: f64 = 131_072.0;
/// Number of different sets of keys, each of which is read twice.
const SETS: usize = 3;
/// Least number of pages from which their cost is told.
const PAGES_MIN: f64 = 100.0;
/// Share (0..1) of the storage caches up to which a collection counts as in memory.
const IN_MEMORY: f64 = 0.7;

/// The storage caches of the shards' members.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Storage {
    /// Size of the smallest storage cache, in bytes; 0 if it is unknown.
    pub(super) cache_bytes: f64,
    /// Number of pages that all members have read from disk since their start, and their total size in memory, in bytes.
    pages: (f64, f64),
}

impl Storage {
    /// Asks all members.
    pub(super) async fn now(cluster: &Cluster) -> Result<Self, Error> {
        let mut found = Self { cache_bytes: f64::INFINITY, pages: (0.0, 0.0) };
        for member in cluster.members() {
            let status = member.ask(doc! { "serverStatus": 1 }, "its storage cache").await?;
            let of = |name: &str| number(&status, &["wiredTiger", "cache", name]).unwrap_or(0.0);
            found.cache_bytes = found.cache_bytes.min(of("maximum bytes configured"));
            found.pages.0 += of("pages read into cache");
            found.pages.1 += of("bytes read into cache");
        }
        if !found.cache_bytes.is_finite() {
            found.cache_bytes = 0.0;
        }
        Ok(found)
    }

    /// Returns true if the collection may exceed the storage caches of its shards.
    pub(super) async fn is_exceeded(
        self,
        cluster: &Cluster,
        namespace: &Namespace,
    ) -> Result<bool, Error> {
        let statistics = cluster.statistics(namespace).await?;
        let of = |name: &str| number(&statistics, &[name]).unwrap_or(0.0);
        let data = of("size") + of("totalIndexSize");
        Ok(self.cache_bytes > 0.0
            && data > IN_MEMORY * self.cache_bytes * cluster.shards.len() as f64)
    }

    /// Returns the number of keys of which the pages fit into the storage caches, at least `least`.
    pub(super) fn keys(self, shards: usize, least: usize) -> usize {
        let pages = CACHE_SHARE * self.cache_bytes * shards as f64 / PAGE_BYTES;
        (pages as usize).max(least)
    }
}

/// Measures the cost of a page with finds of `batch` keys, each of which asks `at_once` shards in the mean; a member of a shard
/// has `shard_cores` processors. `sets` are keys of which the pages fit into the storage caches, those that were read longest ago
/// first. `None` if too few pages were read from disk.
pub(super) async fn measure<'k>(
    cluster: &Cluster,
    source: &Source,
    sets: impl Iterator<Item = &'k [Key]>,
    (batch, at_once): (usize, f64),
    shard_cores: f64,
) -> Result<Option<MeasuredPage>, Error> {
    let (mut pages, mut bytes, mut processor_s, mut elapsed_s) = (0.0, 0.0, 0.0, 0.0);
    for set in sets.take(SETS) {
        for sign in [1.0, -1.0] {
            let (before, counted) = (Used::now(cluster, None).await?, Storage::now(cluster).await?);
            for keys in set.chunks(batch) {
                source.fetch(&keys.iter().collect::<Vec<_>>()).await?;
            }
            let (seconds, used) = Used::now(cluster, None).await?.since(&before);
            let now = Storage::now(cluster).await?;
            pages += sign * (now.pages.0 - counted.pages.0);
            bytes += sign * (now.pages.1 - counted.pages.1);
            processor_s += sign * used.shards_s;
            elapsed_s += sign * seconds;
        }
    }
    if pages < PAGES_MIN {
        return Ok(None);
    }
    let processor_s = (processor_s / pages).max(0.0);
    // The shards read their pages at the same time.
    let wait_s = at_once * elapsed_s / pages - processor_s / shard_cores.min(1.0);
    Ok(Some(MeasuredPage {
        processor_s,
        wait_s: wait_s.max(0.0),
        bytes: bytes / pages,
        pages: pages as u64,
    }))
}

//! Sizes of documents, indexes and servers, and the shards' shares, as the servers report them.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt as _;

use super::Error;
use super::cluster::{Cluster, Member, number};
use super::keys::Sampled;
use super::pages::Storage;
use super::result::{Share, Sizes};
use super::scratch::Scratch;
use crate::chain::{Key, Namespace, Source};

/// Maximum number of cache entries whose memory is measured.
const ENTRIES_MAX: usize = 1_000;
/// Number of keys in one find that counts the keys of a shard.
const AT_ONCE: usize = 500;

/// Measures the sizes of a collection's documents and indexes and of the servers. With a cache, it also measures the
/// entries of the sampled keys, which must be in the cache.
pub(super) async fn sizes(
    cluster: &Cluster,
    namespace: &Namespace,
    sampled: &Sampled,
    cache: Option<&Scratch>,
) -> Result<Sizes, Error> {
    let statistics = cluster.statistics(namespace).await?;
    let number = |name: &str| number(&statistics, &[name]).unwrap_or(0.0);
    let documents = number("count");
    let count = sampled.documents.len().max(1) as f64;
    let mut sizes = Sizes {
        documents: documents as u64,
        document_bytes: number("size") / documents.max(1.0),
        sampled_document_bytes: sampled.bytes() as f64 / count,
        storage_bytes: number("storageSize") as u64,
        index_bytes: number("totalIndexSize") as u64,
        server_bytes: f64::INFINITY,
        ..Sizes::default()
    };
    for member in cluster.members() {
        sizes.server_bytes = sizes.server_bytes.min(server_bytes(member).await?);
    }
    let storage = Storage::now(cluster).await?.cache_bytes;
    sizes.storage_cache_bytes = (storage > 0.0).then_some(storage as u64);
    if let Some(cache) = cache {
        let some = sampled.keys.len().min(ENTRIES_MAX);
        let entry = cache.entry_bytes(&sampled.keys[..some]).await?;
        let document: usize = sampled.documents[..some].iter().map(Vec::len).sum();
        sizes.entry_bytes = Some(entry - document as f64 / some as f64);
        let memory = cache.memory().await?;
        let entries = memory.used_bytes.saturating_sub(memory.startup_bytes);
        let without = memory.resident_bytes.saturating_sub(entries).max(memory.startup_bytes);
        sizes.cache_server_bytes = Some(without as f64);
    }
    Ok(sizes)
}

/// Returns the resident memory of a database server without its storage engine's cache, in bytes.
async fn server_bytes(member: &Member) -> Result<f64, Error> {
    let status = member.ask(doc! { "serverStatus": 1 }, "its memory").await?;
    let resident = number(&status, &["mem", "resident"]).ok_or_else(|| Error::MissingValue {
        server: member.address.clone(),
        what: "its resident memory (mem)".into(),
    })?;
    let cached = number(&status, &["wiredTiger", "cache", "bytes currently in the cache"]);
    Ok((resident * 1_048_576.0 - cached.unwrap_or(0.0)).max(0.0))
}

/// Returns each shard's share of the collection's documents, from the counts of `collStats`, and of `keys`, by
/// querying each shard for them.
pub(super) async fn shares(
    cluster: &Cluster,
    source: &Source,
    keys: &[Key],
) -> Result<Vec<Share>, Error> {
    let statistics = cluster.statistics(source.namespace()).await?;
    let keys = match keys_per_shard(cluster, source.namespace(), keys).await {
        Ok(held) => held,
        // From version 8 on, a shard may reject reads that bypass the router.
        Err(Error::Ask { .. }) => returned_of(cluster, source, keys).await?,
        Err(other) => return Err(other),
    };
    let documents: Vec<f64> = cluster
        .shards
        .iter()
        .map(|shard| documents_of(&statistics, &shard.name, cluster.has_router))
        .collect();
    let part = |of: &[f64], at: usize| {
        let all: f64 = of.iter().sum();
        if all > 0.0 { of[at] / all } else { 1.0 / of.len() as f64 }
    };
    let shares = cluster.shards.iter().enumerate().map(|(at, shard)| Share {
        shard: shard.name.clone(),
        members: u32::try_from(shard.members.len()).unwrap_or(u32::MAX),
        documents: part(&documents, at),
        keys: part(&keys, at),
    });
    Ok(shares.collect())
}

/// Counts how many of `keys` each shard has, by direct reads that bypass the router. Returns one count for each
/// shard.
async fn keys_per_shard(
    cluster: &Cluster,
    namespace: &Namespace,
    keys: &[Key],
) -> Result<Vec<f64>, Error> {
    let mut held = Vec::new();
    for shard in &cluster.shards {
        let Some(member) = shard.members.first() else { continue };
        let failed = || Error::ask(&member.address, "the keys that it has");
        let collection = member.client.database(&namespace.db);
        let collection = collection.collection::<Document>(&namespace.coll);
        let mut count = 0;
        for some in keys.chunks(AT_ONCE) {
            let ids: Vec<Bson> = some.iter().map(|key| key.value().clone()).collect();
            let find = collection.find(doc! { "_id": { "$in": ids } });
            let find = find.projection(doc! { "_id": 1 }).await.map_err(failed())?;
            count += find.try_fold(0, async |count, _| Ok(count + 1)).await.map_err(failed())?;
        }
        held.push(f64::from(count));
    }
    Ok(held)
}

/// Counts the documents that each shard returns when all of `keys` are read once through the router. Returns one
/// count for each shard.
async fn returned_of(cluster: &Cluster, source: &Source, keys: &[Key]) -> Result<Vec<f64>, Error> {
    let before = returned(cluster).await?;
    for some in keys.chunks(AT_ONCE) {
        source.fetch(&some.iter().collect::<Vec<_>>()).await?;
    }
    let after = returned(cluster).await?;
    Ok(after.iter().zip(&before).map(|(after, before)| after - before).collect())
}

/// Returns the number of documents on the shard named `shard`, from a reply of `collStats`.
fn documents_of(statistics: &Document, shard: &str, has_router: bool) -> f64 {
    if has_router {
        number(statistics, &["shards", shard, "count"]).unwrap_or(0.0)
    } else {
        number(statistics, &["count"]).unwrap_or(0.0)
    }
}

/// Returns, for each shard, the number of documents that its members have returned to clients since their start.
async fn returned(cluster: &Cluster) -> Result<Vec<f64>, Error> {
    let mut returned = Vec::new();
    for shard in &cluster.shards {
        let mut sum = 0.0;
        for member in &shard.members {
            let status = member.ask(doc! { "serverStatus": 1 }, "what it returned").await?;
            let count = number(&status, &["metrics", "document", "returned"]);
            sum += count.ok_or_else(|| Error::MissingValue {
                server: member.address.clone(),
                what: "the documents that it returned (metrics)".into(),
            })?;
        }
        returned.push(sum);
    }
    Ok(returned)
}

/// Returns the mean number of shards that take part in a request of `keys` keys, given the shards' shares of the
/// keys; at least 1.
pub(super) fn shards_asked(shares: &[Share], keys: f64) -> f64 {
    let asked = shares.iter().map(|share| 1.0 - (1.0 - share.keys.min(1.0)).powf(keys));
    asked.sum::<f64>().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_ask_all_shards_and_small_ones_some() {
        let share = |keys| Share { shard: "s".into(), members: 1, documents: keys, keys };
        let even = [share(0.5), share(0.5)];
        assert!((shards_asked(&even, 1.0) - 1.0).abs() < 1e-12);
        assert!((shards_asked(&even, 2.0) - 1.5).abs() < 1e-12);
        assert!((shards_asked(&even, 512.0) - 2.0).abs() < 1e-12);
        assert!((shards_asked(&[share(1.0)], 9.0) - 1.0).abs() < 1e-12);
    }
}

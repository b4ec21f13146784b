//! Survey of the present state: the shards, the chunks of the collection, and the documents on each shard.

use bson::raw::RawBsonRef;
use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::server::collection::{Definition, Handle, Kind, Size, number};
use crate::server::endpoint::{Endpoint, answer};

/// Default maximum size of a chunk in a cluster without a setting, in bytes.
const CHUNK_BYTES: u64 = 128 * 1024 * 1024;

/// A shard of the cluster, and its part of the surveyed collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reshard) struct Shard {
    /// Name of the shard.
    pub(in crate::reshard) name: String,
    /// Replica set and members of the shard, as `set/host:port,…`.
    pub(in crate::reshard) host: String,
    /// True while the cluster drains the shard (`removeShard`).
    pub(in crate::reshard) is_draining: bool,
    /// Size of the collection's documents on the shard by its own count, orphans included.
    pub(in crate::reshard) stored: Size,
    /// Number of the collection's documents that the shard has without owning them (orphans), by its own count.
    pub(in crate::reshard) orphans: u64,
    /// Size of the collection's indexes on the shard, in bytes.
    pub(in crate::reshard) index_bytes: u64,
}

/// Map from ranges of the old shard key to the shards that own them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::reshard) struct Owners {
    /// Lower bound of each chunk, in order, with the index of its shard.
    chunks: Vec<(Id, usize)>,
}

impl Owners {
    /// Returns the map for these chunks: the lower bound of each and the index of its shard, in any order.
    pub(in crate::reshard) fn new(mut chunks: Vec<(Id, usize)>) -> Self {
        chunks.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Self { chunks }
    }

    /// Returns the lower bounds of the chunks, in order, with the index of the shard of each.
    pub(in crate::reshard) fn chunks(&self) -> &[(Id, usize)] {
        &self.chunks
    }

    /// Returns the index of the shard that owns the value `key` of the old shard key, or `None` if no chunk contains
    /// it.
    pub(in crate::reshard) fn of(&self, key: &Id) -> Option<usize> {
        let before = self.chunks.partition_point(|(min, _)| min <= key);
        Some(self.chunks.get(before.checked_sub(1)?)?.1)
    }
}

/// A collection and its distribution over the shards of the cluster.
#[derive(Clone, Debug)]
pub(in crate::reshard) struct Survey {
    pub(in crate::reshard) definition: Definition,
    /// The shards of the cluster, in the order of their names.
    pub(in crate::reshard) shards: Vec<Shard>,
    /// The collection's document in `config.collections`; `None` if the collection is not sharded.
    pub(in crate::reshard) entry: Option<Document>,
    /// Owners of the collection's chunks. An unsharded collection counts as one chunk on the database's primary
    /// shard.
    pub(in crate::reshard) owners: Owners,
    /// Size of the collection's documents on all shards, according to the servers' statistics.
    pub(in crate::reshard) stored: Size,
    /// Maximum size of a chunk that is set for the cluster, in bytes.
    pub(in crate::reshard) chunk_bytes: u64,
    /// True if the balancer moves the collection's chunks.
    pub(in crate::reshard) is_balanced: bool,
}

/// Reads the definition of the collection `of`, its chunks, and its size on each shard.
///
/// # Errors
/// Returns a precondition error if `of` is not a collection of a sharded cluster.
pub(in crate::reshard) async fn survey(of: &Handle) -> Result<Survey> {
    let router = &of.endpoint;
    if !router.is_sharded() {
        return Err(Error::precondition(
            format!("{} is a replica set: nothing in it is sharded", router.redacted()),
            "name a router (mongos) of a sharded cluster with --uri",
        ));
    }
    let Some(definition) = of.definition().await? else {
        return Err(Error::precondition(
            format!("there is no collection {}", of.ns),
            "check --ns: it is database.collection, with capital letters as they are",
        ));
    };
    let kind = match definition.kind {
        Kind::Collection => None,
        Kind::View => Some("view: it has no documents of its own"),
        Kind::TimeSeries => Some("time series collection, whose documents are the server's own"),
    };
    if let Some(kind) = kind {
        return Err(Error::precondition(
            format!("{} is a {kind}, which cannot be resharded", of.ns),
            "name an ordinary collection, such as the one that a view reads",
        ));
    }
    let names = read(router, "shards", doc! {}).await?;
    let stats = router.run(&of.ns.db, doc! {"collStats": &of.ns.coll}).await?;
    let shards: Vec<Shard> = names.iter().map(|shard| shard_of(shard, &stats)).collect();
    let filter = doc! {"_id": of.ns.to_string(), "dropped": {"$ne": true}};
    let entry = read(router, "collections", filter).await?.pop();
    let owners = match &entry {
        Some(entry) => chunks(of, entry, &shards).await?,
        None => whole(of, &shards).await?,
    };
    let stored = Size { documents: number(&stats, "count"), bytes: number(&stats, "size") };
    let chunk_bytes = chunk_bytes(router).await?;
    let is_left_alone = entry.as_ref().is_some_and(|of| of.get_bool("noBalance").unwrap_or(false));
    let is_balanced = entry.is_some() && !is_left_alone && is_balancer_on(router).await?;
    Ok(Survey { definition, shards, entry, owners, stored, chunk_bytes, is_balanced })
}

/// Returns the documents of the collection `config.{coll}` that match `filter`, in the order of their `_id`s.
pub(in crate::reshard) async fn read(
    router: &Endpoint,
    coll: &str,
    filter: Document,
) -> Result<Vec<Document>> {
    let doing = format!("reading config.{coll}");
    let failed = |error| Error::server(doing.clone(), error);
    let found = router.client().database("config").collection::<Document>(coll);
    let found = async { found.find(filter).sort(doc! {"_id": 1}).await?.try_collect().await };
    answer(&doing, found).await?.map_err(failed)
}

fn shard_of(entry: &Document, stats: &Document) -> Shard {
    let text = |field| entry.get_str(field).unwrap_or_default().to_owned();
    let name = text("_id");
    let own = stats.get_document("shards").and_then(|shards| shards.get_document(&name));
    let own = own.cloned().unwrap_or_default();
    Shard {
        host: text("host"),
        is_draining: entry.get_bool("draining").unwrap_or(false),
        stored: Size { documents: number(&own, "count"), bytes: number(&own, "size") },
        orphans: number(&own, "numOrphanDocs"),
        index_bytes: number(&own, "totalIndexSize"),
        name,
    }
}

fn index_of(name: &str, shards: &[Shard]) -> Result<usize> {
    shards.iter().position(|shard| shard.name == name).ok_or_else(|| {
        Error::malformed("reading config.chunks", format!("a chunk is on {name}, no shard"))
    })
}

async fn chunks(of: &Handle, entry: &Document, shards: &[Shard]) -> Result<Owners> {
    let doing = "reading config.chunks";
    let failed = |error| Error::server(doing, error);
    // Since 5.0 chunks name their collection by its UUID.
    let uuid = entry.get("uuid").cloned().unwrap_or(Bson::Null);
    let filter = doc! {"$or": [{"uuid": uuid}, {"ns": of.ns.to_string()}]};
    let chunks = of.endpoint.client().database("config").collection::<RawDocumentBuf>("chunks");
    let found = async {
        let projection = doc! {"min": 1, "shard": 1};
        chunks.find(filter).projection(projection).await?.try_collect().await
    };
    let found: Vec<RawDocumentBuf> = answer(doing, found).await?.map_err(failed)?;
    let chunk = |chunk: &RawDocumentBuf| {
        let failed = |error| Error::malformed("a chunk", error);
        let min = chunk.get_document("min").map_err(failed)?;
        let shard = chunk.get_str("shard").map_err(failed)?;
        Ok((Id::from_raw(RawBsonRef::Document(min)), index_of(shard, shards)?))
    };
    Ok(Owners::new(found.iter().map(chunk).collect::<Result<Vec<_>>>()?))
}

/// Returns the owners of an unsharded collection, which is on the database's primary shard.
async fn whole(of: &Handle, shards: &[Shard]) -> Result<Owners> {
    let database = read(&of.endpoint, "databases", doc! {"_id": &of.ns.db}).await?.pop();
    let primary = database.as_ref().and_then(|database| database.get_str("primary").ok());
    let index = index_of(primary.unwrap_or_default(), shards)?;
    Ok(Owners::new(vec![(Id::from_raw(RawBsonRef::MinKey), index)]))
}

async fn chunk_bytes(router: &Endpoint) -> Result<u64> {
    let set = read(router, "settings", doc! {"_id": "chunksize"}).await?.pop();
    let mb = set.map_or(0, |set| number(&set, "value"));
    Ok(if mb == 0 { CHUNK_BYTES } else { mb * 1024 * 1024 })
}

async fn is_balancer_on(router: &Endpoint) -> Result<bool> {
    let set = read(router, "settings", doc! {"_id": "balancer"}).await?.pop().unwrap_or_default();
    // Either of them turns the balancer off; without a setting it is on.
    let is_off = set.get_str("mode").is_ok_and(|mode| mode == "off");
    Ok(!is_off && !set.get_bool("stopped").unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawBson, rawdoc};

    fn at(value: impl Into<RawBson>) -> Id {
        Id::from_raw(RawBsonRef::Document(&rawdoc! {"k": value}))
    }

    #[test]
    fn a_chunk_holds_its_least_key_and_not_the_next_ones() {
        let owners = Owners::new(vec![(at(50), 1), (at(RawBson::MinKey), 0), (at("x"), 2)]);
        let of = |value: RawBson| owners.of(&at(value));
        assert_eq!(of(RawBson::Null), Some(0));
        assert_eq!(of(RawBson::Double(49.5)), Some(0));
        assert_eq!(of(RawBson::Int64(50)), Some(1));
        assert_eq!(of(RawBson::String("y".into())), Some(2));
    }

    #[test]
    fn without_chunks_no_shard_owns_a_key() {
        assert_eq!(Owners::default().of(&at(1)), None);
    }
}

//! The route of the bulk past the router: read on the shards that have it, written on the shards that get it.
//!
//! With a router, each document would cross the network two more times. Both chunk maps are known while a collection
//! is resharded: the old one is read again for each slice, and the new one is the plan's, since the chunks of the
//! shadow collection do not move.
//!
//! Invariants:
//! - Documents that a shard holds without owning them (orphans) are not copied: a document counts on the shard to
//!   which the map assigns its key.
//! - A slice counts as copied only if the map was the same from the slice's first read until after its last, even if
//!   lost servers interrupted it. Each shard is read from a state at or after the map's, so that documents that a
//!   migration brought are included.
//! - A document whose key changes while a slice is read may be found on two shards, or on none: the stream delivers
//!   its change afterwards, like any change of a leased slice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::raw::RawBsonRef;
use bson::spec::ElementType;
use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::bson::order::{Element, Elements, Id};
use crate::error::{Error, Result};
use crate::replicate::apply::{has_array, key_of};
use crate::server::collection::Handle;
use crate::server::endpoint::{Endpoint, operation_time};

mod reader;

pub use reader::Reader;

const ARRAY: u8 = ElementType::Array as u8;
const DOCUMENT: u8 = ElementType::EmbeddedDocument as u8;
const NULL: u8 = ElementType::Null as u8;

/// A chunk map: the shard, by its index in [`Route::names`], that owns each range of the shard key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The fields of the shard key, in order.
    fields: Vec<String>,
    /// The lower bound and the shard's index of each chunk, in the order of the bounds.
    chunks: Vec<(Id, usize)>,
}

impl Map {
    /// Creates the map of a collection with the shard key `key` from the lower bounds of all chunks, in order, and
    /// the indexes of their shards. The first bound is the least key there is.
    ///
    /// # Errors
    /// Fails if a bound cannot be encoded.
    pub fn new(key: &Document, chunks: &[(Document, usize)]) -> Result<Self> {
        let bound = |(min, shard): &(Document, usize)| {
            let min = RawDocumentBuf::try_from(min).map_err(|e| Error::malformed("a chunk", e))?;
            Ok((Id::from_raw(RawBsonRef::Document(&min)), *shard))
        };
        let chunks = chunks.iter().map(bound).collect::<Result<Vec<_>>>()?;
        Ok(Self { fields: key.keys().cloned().collect(), chunks })
    }

    /// Returns the index of the shard that owns the document `raw`.
    fn shard_of(&self, raw: &RawDocument) -> usize {
        self.shard_at(&key_of(raw, &self.fields))
    }

    fn shard_at(&self, key: &RawDocument) -> usize {
        let key = Element { kind: DOCUMENT, name: b"", payload: key.as_bytes() };
        let at = self.chunks.partition_point(|(min, _)| min.as_element().cmp_value(&key).is_le());
        self.chunks[at.saturating_sub(1)].1
    }

    /// Returns the index of the shard that owns the document `raw`, or `None` for a document that no shard may have,
    /// because it has an array in its key.
    fn place_of(&self, raw: &RawDocument) -> Option<usize> {
        let key = key_of(raw, &self.fields);
        // Reading the key does not descend into arrays: a field inside one is read as null.
        let mut values = Elements::new(key.as_bytes()).map(|field| field.kind);
        let is_suspect = values.any(|kind| kind == ARRAY || kind == NULL);
        if is_suspect && has_array(raw, &self.fields) { None } else { Some(self.shard_at(&key)) }
    }
}

/// The chunk map of the original collection as of one time.
#[derive(Clone, Debug)]
pub struct ChunkMapSnapshot {
    map: Map,
    /// The chunk map's version, which differs between maps.
    version: Bson,
    /// A cluster time after all chunk moves and splits that led to the map.
    pub at: Timestamp,
}

impl ChunkMapSnapshot {
    /// Returns true if the shard with the index `shard` owns the document `raw`.
    #[must_use]
    pub fn is_owned(&self, shard: usize, raw: &RawDocument) -> bool {
        self.map.shard_of(raw) == shard
    }

    /// Returns true if no chunk was moved or split between the two snapshots.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

/// The shards that hold the bulk of one collection, and to which it is copied without the router.
#[derive(Debug)]
pub struct Route {
    /// The names of the shards. A shard's index is its position here.
    pub names: Vec<String>,
    /// The connection to each shard's replica set, by the shard's index.
    pub shards: Vec<Endpoint>,
    /// The member of each shard from which the bulk is read, by the shard's index.
    pub readers: Vec<Reader>,
    /// The original collection, through the router.
    router: Handle,
    /// The chunk map of the shadow collection, to which the bulk is copied.
    new: Map,
    /// For each pair of shards (at index from × number of shards + to): a semaphore that limits the sends in
    /// progress, and the number of bytes sent.
    flows: Vec<(Semaphore, AtomicU64)>,
}

impl Route {
    /// Creates the route of `router`'s collection to the shards by the new chunk map `new`; each shard has its name,
    /// its connection and its reader. `sockets(from, to)` is the most sends that may be in progress between two
    /// shards at a time.
    #[must_use]
    pub fn new(
        router: Handle,
        shards: Vec<(String, Endpoint, Reader)>,
        new: Map,
        sockets: impl Fn(usize, usize) -> usize,
    ) -> Arc<Self> {
        let count = shards.len();
        let flows = (0..count * count)
            .map(|pair| {
                (Semaphore::new(sockets(pair / count, pair % count).max(1)), AtomicU64::new(0))
            })
            .collect();
        let (names, shards, readers) = shards.into_iter().collect();
        Arc::new(Self { names, shards, readers, router, new, flows })
    }

    /// Reads the present chunk map of the original collection, and advances the shards' cluster time to one after it.
    ///
    /// # Errors
    /// Fails if the cluster does not reply, or the collection differs from the one that was planned.
    #[crate::boxed]
    pub async fn read_chunk_map(&self) -> Result<ChunkMapSnapshot> {
        let version = self.version().await?;
        // Without its key, every document would appear to be on the first chunk's shard.
        let key = self.router.shard_key().await?.ok_or_else(|| Error::Disrupted {
            ns: self.router.ns.to_string(),
            what: "dropped or renamed".into(),
        })?;
        let mut chunks = Vec::new();
        for (min, shard) in crate::server::shard::chunks(&self.router).await? {
            let index = self.names.iter().position(|name| *name == shard).ok_or_else(|| {
                Error::precondition(
                    format!("{} has chunks on {shard}, which is not in the plan", self.router.ns),
                    "make a new plan",
                )
            })?;
            chunks.push((min, index));
        }
        if chunks.is_empty() {
            let (doing, cause) = ("reading config.chunks", "there are none");
            return Err(Error::malformed(doing, cause));
        }
        // The time is read after the map, so the changes that led to the map are before it.
        let reply = self.router.endpoint.run("config", doc! {"ping": 1}).await?;
        let at = operation_time(&reply)
            .ok_or_else(|| Error::malformed("asking for the time", "no operationTime"))?;
        for shard in &self.shards {
            shard.advance_cluster_time(&reply).await?;
        }
        for reader in &self.readers {
            reader.advance_cluster_time(&reply).await;
        }
        Ok(ChunkMapSnapshot { map: Map::new(&key, &chunks)?, version, at })
    }

    /// Returns true if the present chunk map of the original collection is still the one in `seen`.
    ///
    /// # Errors
    /// Fails if the cluster does not reply.
    #[crate::boxed]
    pub async fn is_current(&self, seen: &ChunkMapSnapshot) -> Result<bool> {
        Ok(self.version().await? == seen.version)
    }

    /// Returns the version of the newest change of any chunk of the original collection, with the collection's UUID.
    async fn version(&self) -> Result<Bson> {
        let entry = self.first("collections", doc! {"_id": self.router.ns.to_string()}).await?;
        let uuid = entry.get("uuid").cloned().unwrap_or(Bson::Null);
        let chunk = self.first("chunks", doc! {"uuid": uuid.clone()}).await?;
        Ok(doc! {
            "uuid": uuid, "timestamp": entry.get("timestamp").cloned(),
            "lastmod": chunk.get("lastmod").cloned(),
        }
        .into())
    }

    async fn first(&self, coll: &str, filter: Document) -> Result<Document> {
        let find = doc! {
            "find": coll, "filter": filter, "sort": {"lastmod": -1}, "limit": 1,
            "singleBatch": true, "readConcern": {"level": "majority"},
        };
        let reply = self.router.endpoint.run("config", find).await?;
        let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let first = batch.ok().and_then(|batch| batch.first()?.as_document().cloned());
        first.ok_or_else(|| Error::Disrupted {
            ns: self.router.ns.to_string(),
            what: "dropped or renamed".into(),
        })
    }

    /// Returns those of `documents` that the shard `from` owns by the chunk map `seen`, grouped by the index of the
    /// shard that gets them; the last group has the documents that no shard may have, which only the router refuses
    /// to write.
    #[must_use]
    pub fn parts<'a>(
        &self,
        seen: &ChunkMapSnapshot,
        from: usize,
        documents: impl Iterator<Item = &'a RawDocument>,
    ) -> Vec<Vec<&'a RawDocument>> {
        let nowhere = self.shards.len();
        let mut parts = vec![Vec::new(); nowhere + 1];
        for raw in documents.filter(|raw| seen.is_owned(from, raw)) {
            parts[self.new.place_of(raw).unwrap_or(nowhere)].push(raw);
        }
        parts
    }

    /// Waits until a send from the shard `from` to the shard `to` may start, and counts its bytes. The send may last
    /// until the returned permit is dropped.
    pub async fn send(&self, from: usize, to: usize, bytes: u64) -> SemaphorePermit<'_> {
        let (sockets, sent) = &self.flows[from * self.shards.len() + to];
        sent.fetch_add(bytes, Ordering::Relaxed);
        sockets.acquire().await.expect("never closed")
    }

    /// Returns, for each pair of shards, the indexes of the sending and the receiving shard, and the number of bytes
    /// that this process sent.
    pub fn sent(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let count = self.shards.len();
        let flows = self.flows.iter().enumerate();
        flows.map(move |(pair, (_, sent))| {
            (pair / count, pair % count, sent.load(Ordering::Relaxed))
        })
    }
}

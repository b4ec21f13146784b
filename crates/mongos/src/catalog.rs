//! The routing table: the owners of chunks according to the config server, cached until a shard rejects it as stale.
//!
//! Every versioned command contains the version of the cached entry. A shard with a newer version rejects the command
//! without executing anything, and the entry is read again. A stale entry therefore costs a round trip and never
//! gives a wrong result (the servers' shard versioning protocol).

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bson::oid::ObjectId;
use bson::{Bson, Document, Timestamp, doc};

use super::shard_key::{self, ShardKey};

/// Shards that have the data of one collection.
#[derive(Debug, Clone)]
pub(super) enum Placement {
    /// The whole collection is on its database's primary shard, or does not exist.
    Unsharded {
        /// Id of the database's primary shard.
        shard: String,
        /// Field `version` of the database's entry in `config.databases`.
        database_version: Document,
    },
    /// The collection is divided into chunks.
    Sharded(Arc<Sharded>),
}

/// Routing table of one sharded collection.
#[derive(Debug)]
pub(super) struct Sharded {
    /// Shard key of the collection.
    pub(super) key: ShardKey,
    /// Entry of the collection in `config.collections`.
    pub(super) entry: Document,
    /// All chunks of the collection, in the order of their bounds.
    chunks: Vec<Chunk>,
}

/// A range of shard key values of a collection and the shard that owns it.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Lower bound of the chunk, inclusive: one value for each field of the shard key.
    pub(super) min: Vec<Bson>,
    /// Upper bound of the chunk, exclusive: one value for each field of the shard key.
    pub(super) max: Vec<Bson>,
    /// Id of the shard that owns the chunk.
    pub(super) shard: String,
    /// Entry of the chunk in `config.chunks`.
    pub(super) entry: Document,
}

impl Sharded {
    /// Creates the routing table from the collection's entry in `config.collections` and its entries in
    /// `config.chunks`, which must be ordered by `min`.
    pub(super) fn new(entry: Document, chunks: Vec<Document>) -> Self {
        let key = ShardKey::new(entry.get_document("key").unwrap_or(&Document::new()));
        let bound = |chunk: &Document, end: &str| {
            key.bound(chunk.get_document(end).unwrap_or(&Document::new()))
        };
        let chunks = chunks.into_iter().map(|chunk| Chunk {
            min: bound(&chunk, "min"),
            max: bound(&chunk, "max"),
            shard: chunk.get_str("shard").unwrap_or_default().to_owned(),
            entry: chunk,
        });
        let chunks = chunks.collect();
        Self { key, entry, chunks }
    }

    /// Returns the chunk that contains `place`, one value for each field of the shard key; `None` if only the servers
    /// can compare `place` with the bounds.
    pub(super) fn chunk_at(&self, place: &[Bson]) -> Option<&Chunk> {
        let mut undecided = false;
        let found = self.chunks.binary_search_by(|chunk| {
            let above = shard_key::compare(&chunk.min, place);
            let below = shard_key::compare(&chunk.max, place);
            match (above, below) {
                (Some(Ordering::Greater), _) => Ordering::Greater,
                (Some(_), Some(Ordering::Greater)) => Ordering::Equal,
                (Some(_), Some(_)) => Ordering::Less,
                _ => {
                    undecided = true;
                    Ordering::Equal
                }
            }
        });
        // The last chunk includes its upper bound, which is the highest possible one.
        let index = found.unwrap_or_else(|at| at.min(self.chunks.len().saturating_sub(1)));
        if undecided { None } else { self.chunks.get(index) }
    }

    /// Returns the chunk whose lower bound is `min`, a document of the shard key's fields, or `None` if no chunk
    /// begins there.
    pub(super) fn chunk_from(&self, min: &Document) -> Option<&Chunk> {
        let bound = self.key.bound(min);
        self.chunks.iter().find(|chunk| chunk.min == bound)
    }

    /// Returns the ids of the shards that own chunks, in the order of their first chunk.
    pub(super) fn owners(&self) -> Vec<String> {
        let mut owners: Vec<String> = Vec::new();
        for chunk in &self.chunks {
            if !owners.contains(&chunk.shard) {
                owners.push(chunk.shard.clone());
            }
        }
        owners
    }

    /// Returns the version by which `shard`, the id of a shard, checks that the sender knows its chunks: the highest
    /// version of these chunks, or zero for a shard that owns none.
    pub(super) fn version(&self, shard: &str) -> Document {
        let of_chunk = |chunk: &Chunk| chunk.entry.get_timestamp("lastmod").ok();
        let owned = self.chunks.iter().filter(|chunk| chunk.shard == shard);
        let highest = owned.filter_map(of_chunk).max();
        doc! {
            "t": self.entry.get("timestamp").cloned(),
            "e": self.entry.get("lastmodEpoch").cloned(),
            "v": highest.unwrap_or(Timestamp { time: 0, increment: 0 }),
        }
    }

    /// Returns the collection's default collation, or `None` if it is the simple one.
    pub(super) fn collation(&self) -> Option<&Document> {
        self.entry.get_document("defaultCollation").ok()
    }
}

/// Returns the shard version by which a sender states that it considers the collection unsharded.
pub(super) fn unsharded_version() -> Document {
    let zero = Timestamp { time: 0, increment: 0 };
    doc! { "t": zero, "e": ObjectId::from_bytes([0; 12]), "v": zero }
}

/// Returns the shard version for which a shard skips the version check, and writes only the documents that it owns. A
/// broadcast uses it, because a part of a broadcast cannot be undone.
pub(super) fn ignored_version() -> Document {
    let highest = Timestamp { time: u32::MAX, increment: u32::MAX };
    doc! {
        "t": highest, "e": ObjectId::from_bytes([0xff; 12]),
        "v": Timestamp { time: 0, increment: 0 },
    }
}

/// Cache of placements by `DATABASE.COLLECTION`. The whole cache is cleared when it has [`ENTRIES_MAX`] entries.
#[derive(Debug, Default)]
pub(super) struct Catalog(Mutex<HashMap<String, Placement>>);

const ENTRIES_MAX: usize = 4_096;

impl Catalog {
    /// Returns the cached placement of the collection `namespace` (`DATABASE.COLLECTION`); `None` if it is not
    /// cached.
    pub(super) fn get(&self, namespace: &str) -> Option<Placement> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned()
    }

    /// Caches the placement of the collection `namespace` (`DATABASE.COLLECTION`).
    pub(super) fn put(&self, namespace: &str, placement: &Placement) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        entries.insert(namespace.to_owned(), placement.clone());
    }

    /// Discards the placements of all collections.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Discards the placement of the collection `namespace` (`DATABASE.COLLECTION`).
    pub(super) fn forget(&self, namespace: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    /// Discards the placements of all collections of `database`.
    pub(super) fn forget_database(&self, database: &str) {
        let prefix = format!("{database}.");
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|namespace, _| !namespace.starts_with(&prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::bson;

    fn collection() -> Sharded {
        let version = |minor| Timestamp { time: 2, increment: minor };
        let chunks = vec![
            doc! { "min": { "k": Bson::MinKey }, "max": { "k": 50 }, "shard": "a", "lastmod": version(1) },
            doc! { "min": { "k": 50 }, "max": { "k": "m" }, "shard": "b", "lastmod": version(0) },
            doc! { "min": { "k": "m" }, "max": { "k": Bson::MaxKey }, "shard": "a", "lastmod": version(7) },
        ];
        Sharded::new(doc! { "key": { "k": 1 } }, chunks)
    }

    #[test]
    fn a_place_is_in_the_chunk_whose_lower_bound_it_reaches() {
        let collection = collection();
        let expected = [
            (Bson::MinKey, "a", 1),
            (bson!(49.9), "a", 1),
            (bson!(50), "b", 0),
            (bson!("l"), "b", 0),
            (bson!("m"), "a", 7),
            (Bson::MaxKey, "a", 7),
        ];
        for (value, shard, minor) in expected {
            let chunk = collection.chunk_at(std::slice::from_ref(&value)).unwrap();
            let version = chunk.entry.get_timestamp("lastmod").unwrap();
            assert_eq!((&*chunk.shard, version.increment), (shard, minor), "{value}");
        }
    }

    #[test]
    fn a_shards_version_is_its_highest_chunks() {
        let version = |shard| collection().version(shard).get_timestamp("v").unwrap();
        assert_eq!(version("a"), Timestamp { time: 2, increment: 7 });
        assert_eq!(version("b"), Timestamp { time: 2, increment: 0 });
        assert_eq!(version("c"), Timestamp { time: 0, increment: 0 });
    }
}

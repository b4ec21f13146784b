//! The collection of the benchmark of shard keys, and its five loads.
//!
//! A review has an object id that grows, a user (one of 2,000), a product (one of 500), a time, a region (one of eight) and stars.
//! No load changes a field of a key that is judged. None counts: the router of the testbed does so by several requests.

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt as _;
use imago_mongo::bson::input::parse_document;
use imago_mongo::namespace::Namespace;
use imago_mongo::server::endpoint::Endpoint;
use mongodb::{Client, Database};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Size;
use crate::error::{Error, Result};

const USERS: u64 = 2_000;
const PRODUCTS: u64 = 500;
const REGIONS: u64 = 8;
/// Number of operations that are under way at once.
const AT_ONCE: u64 = 4;
/// Number of documents of an insert at the beginning.
const BATCH: usize = 1_000;
/// Time of the first document, in seconds since the Unix epoch.
const BEGAN_S: u64 = 1_700_000_000;

/// A load.
pub(super) struct Load {
    pub(super) name: &'static str,
    /// Returns the next operation; the number is that of the document that it may insert.
    next: fn(&mut StdRng, u64, u64) -> Step,
}

enum Step {
    Find(Document),
    Insert(Document),
    UpdateOne(Document),
    UpdateMany(Document),
}

pub(super) const LOADS: [Load; 5] = [
    Load { name: "by-user", next: by_user },
    Load { name: "by-product", next: by_product },
    Load { name: "recent", next: recent },
    Load { name: "by-region", next: by_region },
    Load { name: "lists", next: lists },
];

fn id(n: u64) -> ObjectId {
    let mut bytes = [0xAB; 12];
    bytes[..4].copy_from_slice(&u32::try_from(BEGAN_S + n).unwrap_or(u32::MAX).to_be_bytes());
    ObjectId::from_bytes(bytes)
}

fn user(n: u64) -> String {
    format!("user{:05}@example.org", n % USERS)
}

fn product(n: u64) -> String {
    format!("B{:09}", n % PRODUCTS)
}

/// Mixes a number, so that the fields of a document do not follow each other.
fn mixed(n: u64, by: u64) -> u64 {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(by).wrapping_mul(0xD6E8_FEB8_6659_FD93)
        >> 24
}

fn time(n: u64) -> DateTime {
    DateTime::from_millis(i64::try_from((BEGAN_S + n) * 1_000).unwrap_or(i64::MAX))
}

fn region(n: u64) -> String {
    format!("region-{}", n % REGIONS)
}

fn review(n: u64) -> Document {
    doc! {
        "_id": id(n), "user": user(mixed(n, 1)), "product": product(mixed(n, 2)), "time": time(n),
        "region": region(mixed(n, 3)), "stars": i32::try_from(mixed(n, 4) % 5).unwrap_or(0) + 1,
        "text": "x".repeat(400),
    }
}

fn by_user(rng: &mut StdRng, known: u64, new: u64) -> Step {
    match rng.random_range(0..100) {
        0..85 => Step::Find(doc! {"user": user(rng.random_range(0..USERS))}),
        85..95 => Step::Insert(review(new)),
        _ => Step::UpdateOne(doc! {"_id": id(rng.random_range(0..known))}),
    }
}

fn by_product(rng: &mut StdRng, known: u64, _: u64) -> Step {
    let of = product(rng.random_range(0..PRODUCTS));
    match rng.random_range(0..100) {
        0..60 => Step::Find(doc! {"product": of, "stars": {"$gte": 4}}),
        60..90 => Step::Find(doc! {"product": of}),
        _ => Step::UpdateOne(doc! {"_id": id(rng.random_range(0..known))}),
    }
}

fn recent(rng: &mut StdRng, known: u64, new: u64) -> Step {
    match rng.random_range(0..100) {
        0..50 => {
            let from = known - rng.random_range(0..known / 50);
            Step::Find(doc! {"time": {"$gte": time(from)}})
        }
        _ => Step::Insert(review(new)),
    }
}

fn by_region(rng: &mut StdRng, _: u64, new: u64) -> Step {
    let of = region(rng.random_range(0..REGIONS));
    match rng.random_range(0..100) {
        0..70 => Step::Find(doc! {"region": of, "user": user(rng.random_range(0..USERS))}),
        70..75 => Step::Find(doc! {"region": of, "stars": 5}),
        _ => Step::Insert(review(new)),
    }
}

fn lists(rng: &mut StdRng, known: u64, _: u64) -> Step {
    match rng.random_range(0..100) {
        0..50 => {
            let users = (0..5).map(|_| Bson::from(user(rng.random_range(0..USERS))));
            Step::Find(doc! {"user": {"$in": users.collect::<Vec<_>>()}})
        }
        50..80 => {
            let ids = (0..3).map(|_| Bson::from(id(rng.random_range(0..known))));
            Step::Find(doc! {"_id": {"$in": ids.collect::<Vec<_>>()}})
        }
        _ => Step::UpdateMany(doc! {"user": user(rng.random_range(0..USERS))}),
    }
}

fn refused(cause: mongodb::error::Error) -> Error {
    Error::Wrong(format!("an operation of the benchmark failed: {cause}"))
}

impl Load {
    /// Runs the load's operations; `turn` tells which documents are new: each turn has others.
    pub(super) async fn run(
        &self,
        client: &Client,
        ns: &Namespace,
        size: Size,
        turn: u64,
    ) -> Result<()> {
        let clients = (0..AT_ONCE).map(|one| {
            let share = (size.operations + AT_ONCE - 1 - one) / AT_ONCE;
            self.work(client.database(&ns.db), &ns.coll, size.documents, share, one, turn)
        });
        futures_util::future::try_join_all(clients).await.map(|_| ())
    }

    /// Deletes the documents that the load has inserted.
    pub(super) async fn clean(&self, client: &Client, ns: &Namespace, size: Size) -> Result<()> {
        let documents = client.database(&ns.db).collection::<Document>(&ns.coll);
        let inserted = doc! {"time": {"$gte": time(size.documents)}};
        documents.delete_many(inserted).await.map_err(refused)?;
        Ok(())
    }

    async fn work(
        &self,
        database: Database,
        coll: &str,
        known: u64,
        operations: u64,
        client: u64,
        turn: u64,
    ) -> Result<()> {
        let documents = database.collection::<Document>(coll);
        let mut rng = StdRng::seed_from_u64(client + 100 * turn);
        // Documents of each turn and run have ids of their own.
        let started = rand::rng().random_range(0..1_u64 << 28);
        for n in 0..operations {
            let new = known + started + n * AT_ONCE + client;
            match (self.next)(&mut rng, known, new) {
                Step::Find(query) => {
                    let found = documents.find(query).limit(50).await.map_err(refused)?;
                    found.try_collect::<Vec<_>>().await.map_err(refused)?;
                }
                Step::Insert(document) => {
                    documents.insert_one(document).await.map_err(refused)?;
                }
                Step::UpdateOne(query) => {
                    let seen = doc! {"$set": {"seen": i64::try_from(n).unwrap_or(0)}};
                    documents.update_one(query, seen).await.map_err(refused)?;
                }
                Step::UpdateMany(query) => {
                    let seen = doc! {"$set": {"seen": i64::try_from(n).unwrap_or(0)}};
                    documents.update_many(query, seen).await.map_err(refused)?;
                }
            }
        }
        Ok(())
    }
}

/// Makes the collection with the key `key` and this many documents, evenly over the shards, with an index for each load.
pub(super) async fn fill(
    router: &Endpoint,
    ns: &Namespace,
    documents: u64,
    key: &str,
) -> Result<()> {
    let key = parse_document(key, "the first key")?;
    router.run("admin", doc! {"enableSharding": &ns.db}).await?;
    router.run("admin", doc! {"shardCollection": ns.to_string(), "key": key}).await?;
    let shards = router.client().database("config").collection::<Document>("shards");
    let shards: Vec<Document> =
        async { shards.find(doc! {}).await?.try_collect().await }.await.map_err(refused)?;
    for (number, shard) in shards.iter().enumerate().skip(1) {
        let at = doc! {"_id": id(documents * number as u64 / shards.len() as u64)};
        router.run("admin", doc! {"split": ns.to_string(), "middle": at.clone()}).await?;
        let to = shard.get_str("_id").unwrap_or_default();
        let command = doc! {"moveChunk": ns.to_string(), "find": at, "to": to};
        // The first chunks may be there already.
        let moved = router.run_at_length("admin", command).await;
        if let Err(cause) = moved {
            tracing::info!(%cause, "a chunk was not moved");
        }
    }
    let indexes = ["user", "product", "time", "region"].map(|field| {
        doc! {"key": {field: 1}, "name": field}
    });
    let command = doc! {"createIndexes": &ns.coll, "indexes": indexes.to_vec()};
    router.run_at_length(&ns.db, command).await?;
    let collection = router.client().database(&ns.db).collection::<Document>(&ns.coll);
    let all: Vec<u64> = (0..documents).collect();
    for batch in all.chunks(BATCH) {
        let batch = batch.iter().map(|n| review(*n));
        collection.insert_many(batch).await.map_err(refused)?;
    }
    Ok(())
}

//! Sharding a new, empty collection so that a copy fills all shards evenly from the start.

use std::time::{Duration, Instant};

use bson::raw::RawBsonRef;
use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_plan::cuts::cuts;

use crate::collection::Handle;
use crate::cutting::uniform;
use crate::endpoint::{Endpoint, answer, prefer_secondary};
use crate::error::{Error, Result, code};
use crate::order::Id;
use crate::verify::is_same_index;

/// Chunks for each shard of a hashed key.
const HASHED_CHUNKS_PER_SHARD: i32 = 2;
const SAMPLE_PER_SHARD: u64 = 200;
/// `ConflictingOperationInProgress`: a shard of the move takes part in another one.
const BUSY: i32 = 117;
const BUSY_MAX: Duration = Duration::from_secs(120);
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// Shards the empty collection `to` by `key`, and splits a ranged key where a sample of the
/// documents `from` says that the shards will hold equal shares. What an attempt that died left of
/// that is completed.
///
/// # Errors
/// When the router refuses.
pub async fn shard(from: &Handle, to: &Handle, key: &Document) -> Result<()> {
    let router = &to.endpoint;
    let is_hashed = key.values().any(|kind| kind.as_str() == Some("hashed"));
    let shards = shards(to).await?;
    if to.shard_key().await?.is_none() {
        let mut command = doc! {"shardCollection": to.ns.to_string(), "key": key.clone()};
        if to.definition().await?.is_some_and(|definition| definition.is_collated()) {
            command.insert("collation", doc! {"locale": "simple"});
        }
        // An index of the source that can serve becomes the key's: under its own name, and unique
        // where it is.
        let serving = from.indexes().await?.into_iter().find(|index| serves(index, key));
        to.create_indexes(serving.as_slice()).await?;
        // The database may have to be told first; that it was told already is no error.
        router
            .run("admin", doc! {"enableSharding": &to.ns.db})
            .await
            .map(|_| ())
            .or_else(|error| if error.is_transient() { Err(error) } else { Ok(()) })?;
        // Servers cut a new collection by themselves only where the hash comes first.
        if is_hashed && key.values().next().is_some_and(|way| way.as_str() == Some("hashed")) {
            let count = i32::try_from(shards.len()).unwrap_or(1) * HASHED_CHUNKS_PER_SHARD;
            command.insert("numInitialChunks", count);
        }
        router.run_at_length("admin", command).await?;
    }
    if is_hashed || shards.len() < 2 {
        return Ok(());
    }
    let ns = to.ns.to_string();
    let mut bounds = lower_bounds(to).await?;
    let mut points = bounds.clone();
    if bounds.len() + 1 < shards.len() {
        points = split_points(from, key, shards.len()).await?;
        for at in points.iter().filter(|at| !bounds.contains(at)) {
            router.run("admin", doc! {"split": &ns, "middle": document_of(at)?}).await?;
        }
        bounds.extend(points.iter().cloned());
        bounds.sort_unstable();
        bounds.dedup();
    }
    // The first chunk stays where the collection was created.
    for at in bounds {
        let share = points.partition_point(|point| *point <= at).min(shards.len() - 1);
        if share == 0 {
            continue;
        }
        let find = document_of(&at)?;
        let to = &shards[share];
        let command = doc! {"moveChunk": &ns, "find": find, "to": to, "_waitForDelete": false};
        move_chunk(router, &command).await?;
    }
    Ok(())
}

/// Shards an empty collection by one field of text, so that each shard gets an equal share of
/// documents whose keys are distributed as `sample` is.
///
/// # Errors
/// When the router refuses.
pub async fn spread(to: &Handle, field: &str, mut sample: Vec<String>) -> Result<()> {
    let router = &to.endpoint;
    let ns = to.ns.to_string();
    router.run("admin", doc! {"enableSharding": &to.ns.db}).await?;
    router.run_at_length("admin", doc! {"shardCollection": &ns, "key": {field: 1}}).await?;
    let shards = shards(to).await?;
    sample.sort_unstable();
    let points = cuts(sample, shards.len());
    for at in &points {
        router.run("admin", doc! {"split": &ns, "middle": {field: at}}).await?;
    }
    // The first chunk stays where the collection was created.
    for (at, shard) in points.iter().zip(&shards[1..]) {
        let find = doc! {field: at};
        move_chunk(router, &doc! {"moveChunk": &ns, "find": find, "to": shard}).await?;
    }
    Ok(())
}

/// Whether an index can be the one that a sharded collection needs for its key.
pub(crate) fn serves(index: &Document, key: &Document) -> bool {
    let is_whole = ["partialFilterExpression", "sparse", "collation", "hidden"];
    let is_whole = is_whole.iter().all(|option| !index.contains_key(option));
    let of = |key: &Document| doc! {"key": key.clone()};
    is_whole && index.get_document("key").is_ok_and(|found| is_same_index(&of(found), &of(key)))
}

/// Where the collection's chunks begin, but for the first one; in order.
async fn lower_bounds(to: &Handle) -> Result<Vec<Id>> {
    let bound = |(min, _): (Document, String)| {
        let min = RawDocumentBuf::try_from(&min).map_err(|e| Error::malformed("a chunk", e))?;
        Ok(Id::from_raw(RawBsonRef::Document(&min)))
    };
    chunks(to).await?.into_iter().skip(1).map(bound).collect()
}

/// The collection's chunks in order: where each begins, and the shard that it is on.
pub(crate) async fn chunks(of: &Handle) -> Result<Vec<(Document, String)>> {
    let config = of.endpoint.client().database("config");
    let doing = "reading config.chunks";
    let failed = |error| Error::server(doing, error);
    let ns = of.ns.to_string();
    let collections = config.collection::<Document>("collections");
    let found = collections.find_one(doc! {"_id": &ns});
    let found = answer(doing, found.into_future()).await?.map_err(failed)?;
    // Since 5.0 chunks name their collection by its UUID.
    let uuid = found.and_then(|of| of.get("uuid").cloned()).unwrap_or(Bson::Null);
    let chunks = config.collection::<Document>("chunks");
    let filter = doc! {"$or": [{"uuid": uuid}, {"ns": &ns}]};
    let read = async { chunks.find(filter).sort(doc! {"min": 1}).await?.try_collect().await };
    let read: mongodb::error::Result<Vec<Document>> = answer(doing, read).await?;
    let parse = |chunk: &Document| {
        let (min, shard) = (chunk.get_document("min").ok()?, chunk.get_str("shard").ok()?);
        Some((min.clone(), shard.to_owned()))
    };
    let parse = |chunk: Document| parse(&chunk).ok_or_else(|| Error::malformed("a chunk", chunk));
    read.map_err(failed)?.into_iter().map(parse).collect()
}

/// Moves a chunk as soon as its shards are free: each takes part in one move at a time, the
/// balancer's and everybody else's included.
async fn move_chunk(router: &Endpoint, command: &Document) -> Result<()> {
    let began = Instant::now();
    loop {
        match router.run_at_length("admin", command.clone()).await {
            Err(Error::Server { cause, .. })
                if code(&cause) == Some(BUSY) && began.elapsed() < BUSY_MAX =>
            {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            moved => return moved.map(|_| ()),
        }
    }
}

/// The shards, the one that a new collection lies on first: its share is the one that stays.
async fn shards(to: &Handle) -> Result<Vec<String>> {
    let config = to.endpoint.client().database("config").collection::<Document>("shards");
    let failed = |error| Error::server("reading config.shards", error);
    let mut found: Vec<Document> = config
        .find(doc! {})
        .sort(doc! {"_id": 1})
        .await
        .map_err(failed)?
        .try_collect()
        .await
        .map_err(failed)?;
    let databases = to.endpoint.client().database("config").collection::<Document>("databases");
    let own = databases.find_one(doc! {"_id": &to.ns.db}).await;
    let own = own.map_err(|error| Error::server("reading config.databases", error))?;
    let own = own.and_then(|own| own.get_str("primary").ok().map(str::to_owned));
    found.sort_by_key(|shard| shard.get_str("_id").ok() != own.as_deref());
    Ok(found.iter().filter_map(|shard| shard.get_str("_id").ok().map(str::to_owned)).collect())
}

/// Key values that cut a sample of the source's documents into equal shares.
async fn split_points(from: &Handle, key: &Document, shares: usize) -> Result<Vec<Id>> {
    let mut projection = doc! {"_id": 0};
    for field in key.keys() {
        projection.insert(field.replace('.', "_"), format!("${field}"));
    }
    let size = SAMPLE_PER_SHARD * shares as u64;
    let documents = from.size().await?.documents;
    let failed = |error| Error::server(format!("sampling {}", from.ns), error);
    let sample: Vec<Document> = from
        .endpoint
        .client()
        .database(&from.ns.db)
        .collection::<Document>(&from.ns.coll)
        .aggregate([uniform(documents, size), doc! {"$project": projection}])
        .selection_criteria(prefer_secondary())
        .await
        .map_err(failed)?
        .try_collect()
        .await
        .map_err(failed)?;
    // A key of several fields orders like a document of them.
    let value_of = |document: &Document, field: &str| {
        document.get(field.replace('.', "_")).cloned().unwrap_or(Bson::Null)
    };
    let keyed = sample.iter().map(|document| {
        let key: Document = key.keys().map(|f| (f.clone(), value_of(document, f))).collect();
        RawDocumentBuf::try_from(&key)
            .map(|raw| Id::from_raw(RawBsonRef::Document(&raw)))
            .map_err(|e| Error::malformed("a sampled shard key", e))
    });
    Ok(cuts(keyed.collect::<Result<Vec<Id>>>()?, shares))
}

fn document_of(key: &Id) -> Result<Document> {
    match Bson::try_from(key.as_raw()) {
        Ok(Bson::Document(document)) => Ok(document),
        other => Err(Error::malformed("a shard key's value", format!("{other:?}"))),
    }
}

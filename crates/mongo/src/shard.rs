//! Sharding a new, empty collection so that a copy fills all shards evenly from the start.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use imago_plan::cuts::cuts;

use crate::collection::Handle;
use crate::endpoint::prefer_secondary;
use crate::error::{Error, Result};
use crate::order::Id;

/// Chunks for each shard of a hashed key.
const HASHED_CHUNKS_PER_SHARD: i32 = 2;
const SAMPLE_PER_SHARD: i64 = 200;

/// Shards the empty collection `to` by `key`, and splits a ranged key where a sample of the
/// documents `from` says that the shards will hold equal shares.
///
/// # Errors
/// When the router refuses.
pub async fn shard(from: &Handle, to: &Handle, key: &Document) -> Result<()> {
    let router = &to.endpoint;
    let is_hashed = key.values().any(|kind| kind.as_str() == Some("hashed"));
    let shards = shards(to).await?;
    let mut command = doc! {"shardCollection": to.ns.to_string(), "key": key.clone()};
    if to.definition().await?.is_some_and(|definition| definition.is_collated()) {
        command.insert("collation", doc! {"locale": "simple"});
    }
    if is_hashed {
        let count = i32::try_from(shards.len()).unwrap_or(1) * HASHED_CHUNKS_PER_SHARD;
        command.insert("numInitialChunks", count);
    }
    // The database may have to be told first; that it was told already is no error.
    router
        .run("admin", doc! {"enableSharding": &to.ns.db})
        .await
        .map(|_| ())
        .or_else(|error| if error.is_transient() { Err(error) } else { Ok(()) })?;
    router.run_at_length("admin", command).await?;
    if is_hashed || shards.len() < 2 {
        return Ok(());
    }
    for (at, shard) in split_points(from, key, shards.len()).await?.into_iter().zip(&shards[1..]) {
        let ns = to.ns.to_string();
        router.run("admin", doc! {"split": &ns, "middle": at.clone()}).await?;
        router
            .run_at_length(
                "admin",
                doc! {"moveChunk": &ns, "find": at, "to": shard, "_waitForDelete": false},
            )
            .await?;
    }
    Ok(())
}

async fn shards(to: &Handle) -> Result<Vec<String>> {
    let config = to.endpoint.client().database("config").collection::<Document>("shards");
    let failed = |error| Error::server("reading config.shards", error);
    let found: Vec<Document> = config
        .find(doc! {})
        .sort(doc! {"_id": 1})
        .await
        .map_err(failed)?
        .try_collect()
        .await
        .map_err(failed)?;
    Ok(found.iter().filter_map(|shard| shard.get_str("_id").ok().map(str::to_owned)).collect())
}

/// Key values that cut a sample of the source's documents into equal shares.
async fn split_points(from: &Handle, key: &Document, shares: usize) -> Result<Vec<Document>> {
    let mut projection = doc! {"_id": 0};
    for field in key.keys() {
        projection.insert(field.replace('.', "_"), format!("${field}"));
    }
    let size = SAMPLE_PER_SHARD * i64::try_from(shares).unwrap_or(1);
    let failed = |error| Error::server(format!("sampling {}", from.ns), error);
    let sample: Vec<Document> = from
        .endpoint
        .client()
        .database(&from.ns.db)
        .collection::<Document>(&from.ns.coll)
        .aggregate([doc! {"$sample": {"size": size}}, doc! {"$project": projection}])
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
        bson::RawDocumentBuf::try_from(&key)
            .map(|raw| Id::from_raw(bson::raw::RawBsonRef::Document(&raw)))
            .map_err(|e| Error::malformed("a sampled shard key", e))
    });
    let points = cuts(keyed.collect::<Result<Vec<Id>>>()?, shares);
    let document = |id: &Id| match Bson::try_from(id.as_raw()) {
        Ok(Bson::Document(document)) => Ok(document),
        other => Err(Error::malformed("a sampled shard key", format!("{other:?}"))),
    };
    points.iter().map(document).collect()
}

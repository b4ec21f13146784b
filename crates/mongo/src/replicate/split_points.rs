//! Split points that cut a collection into parts of about equal numbers of documents.
//!
//! `$sample` alone samples unevenly. The server descends its tree at random, and the trees of recently loaded
//! collections are unbalanced: of a million documents, half were sampled a thirtieth as often as the others, and the
//! last slice was half the collection. So the `_id` index of a replica set is scanned, at 0.5 µs a key, and for a
//! sharded collection that of each shard past the router. If a shard cannot be reached past the router, all documents
//! are read and a few of them selected at random, separately on each shard: no router can skip cheaply. Only
//! collections that are too large for that use `$sample`: their trees were mostly read back from disk, where they are
//! balanced.

use bson::raw::{RawBsonRef, cstr};
use bson::{RawDocumentBuf, doc, rawdoc};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use imago_plan::copy::split_points::cuts;
use mongodb::raw_batch_cursor::RawBatchCursor;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::found_in;
use crate::server::collection::Handle;
use crate::server::endpoint::{Endpoint, answer_within, prefer_secondary};
use crate::server::shard::uniform;
use crate::server::timing::SEARCH_MAX;

/// Most documents of a collection whose index is scanned: that takes half a minute.
const WALK_MAX: u64 = 50_000_000;
/// Number of sampled `_id`s for each part.
const SAMPLE_PER_PART: u64 = 20;
/// With shards, number of marks (of all shards together) for each part.
const MARKS_PER_PART: u64 = 8;

/// Returns strictly increasing `_id`s that cut a collection of about `documents` documents into at most `parts` parts.
///
/// # Errors
/// Fails if the cluster does not answer.
#[crate::boxed]
pub async fn cut(source: &Handle, documents: u64, parts: u64) -> Result<Vec<Id>> {
    if parts < 2 || documents == 0 {
        return Ok(Vec::new());
    }
    if documents <= WALK_MAX
        && let Some(sets) = sets(source).await?
    {
        let step = documents.div_ceil(parts);
        return match sets.as_slice() {
            [set] => walk(set, step, parts).await,
            sets => walk_all(sets, step.div_ceil(MARKS_PER_PART), parts).await,
        };
    }
    let sample = draw(source, documents, parts * SAMPLE_PER_PART).await?;
    Ok(cuts(sample, usize::try_from(parts).expect("few parts")))
}

/// Returns the collection on each replica set that has it, or `None` if one of them cannot be reached.
async fn sets(source: &Handle) -> Result<Option<Vec<Handle>>> {
    let reached = source.endpoint.shards().await?;
    let of = |set: Endpoint| Handle::new(set, source.ns.clone());
    Ok(reached.into_iter().map(|(_, set)| set.ok().map(of)).collect())
}

/// Marks every `step` keys on each shard, so that every mark stands for the same number of documents, and selects the
/// split points among the marks.
async fn walk_all(sets: &[Handle], step: u64, parts: u64) -> Result<Vec<Id>> {
    let marks_max = parts * MARKS_PER_PART;
    let marks = try_join_all(sets.iter().map(|set| Box::pin(walk(set, step, marks_max)))).await?;
    Ok(cuts(marks.concat(), usize::try_from(parts).expect("few parts")))
}

async fn walk(source: &Handle, step: u64, parts: u64) -> Result<Vec<Id>> {
    let mut bounds: Vec<Id> = Vec::new();
    while (bounds.len() as u64) < parts - 1 {
        let mut command = rawdoc! {
            "find": source.ns.coll.as_str(), "hint": {"_id": 1}, "projection": {"_id": 1},
            "skip": i64::try_from(step).unwrap_or(i64::MAX), "limit": 1, "singleBatch": true,
        };
        if let Some(last) = bounds.last() {
            command.append(cstr!("min"), rawdoc! {"_id": last.as_raw()});
        }
        let found = all(source, command).await?.pop();
        let Some(found) = found.filter(|id| is_bound(id) && bounds.last() < Some(id)) else {
            break;
        };
        bounds.push(found);
    }
    Ok(bounds)
}

/// Returns the `_id`s of about `size` random documents.
async fn draw(source: &Handle, documents: u64, size: u64) -> Result<Vec<Id>> {
    let command = doc! {
        "aggregate": &source.ns.coll,
        "pipeline": [uniform(documents, size), {"$project": {"_id": 1}}],
        "cursor": {"batchSize": 20_000},
    };
    let doing = format!("sampling {}", source.ns);
    let command = RawDocumentBuf::try_from(&command).map_err(|e| Error::malformed(&doing, e))?;
    let mut ids = all(source, command).await?;
    ids.retain(is_bound);
    Ok(ids)
}

async fn all(source: &Handle, command: RawDocumentBuf) -> Result<Vec<Id>> {
    let doing = format!("looking where to cut {}", source.ns);
    let failed = |error| Error::server(doing.clone(), error);
    let db = source.endpoint.client().database(&source.ns.db);
    let read = async {
        let cursor = db.run_raw_cursor_command(command).selection_criteria(prefer_secondary());
        let mut cursor: RawBatchCursor = cursor.batch().await.map_err(failed)?;
        let mut ids = Vec::new();
        while let Some(batch) = cursor.next().await {
            let batch = batch.map_err(failed)?;
            let found = found_in(batch.doc_slices().map_err(failed)?, source)?;
            ids.extend(found.into_iter().map(|found| found.id));
        }
        Ok(ids)
    };
    answer_within(SEARCH_MAX, &doing, read).await?
}

/// True if `id` can be a bound: servers refuse bounds between which and the end of the index there is nothing.
fn is_bound(id: &Id) -> bool {
    !matches!(id.as_raw(), RawBsonRef::MinKey | RawBsonRef::MaxKey)
}

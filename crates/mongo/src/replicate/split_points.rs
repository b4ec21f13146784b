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

/// Most documents of a collection whose `_id` index is scanned for split points: that takes half a minute.
const WALK_MAX: u64 = 50_000_000;
/// Number of `_id`s that are sampled for each part into which a collection is cut.
const SAMPLE_PER_PART: u64 = 20;
/// For a sharded collection, number of marks (candidate split points, over all shards) for each part.
const MARKS_PER_PART: u64 = 8;

/// Returns strictly increasing `_id`s that cut the collection `source` of about `documents` documents into at most
/// `parts` parts of about equal numbers of documents.
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

/// Returns the collection `source` on each replica set of its cluster, past the router, or `None` if one of them
/// cannot be reached.
async fn sets(source: &Handle) -> Result<Option<Vec<Handle>>> {
    let reached = source.endpoint.shards().await?;
    let of = |set: Endpoint| Handle::new(set, source.ns.clone());
    Ok(reached.into_iter().map(|(_, set)| set.ok().map(of)).collect())
}

/// Takes every `step`th `_id` on each shard as a mark (a candidate split point), so that every mark stands for the
/// same number of documents, and returns the split points selected among the marks.
async fn walk_all(sets: &[Handle], step: u64, parts: u64) -> Result<Vec<Id>> {
    let marks_max = parts * MARKS_PER_PART;
    let marks = try_join_all(sets.iter().map(|set| Box::pin(walk(set, step, marks_max)))).await?;
    Ok(cuts(marks.concat(), usize::try_from(parts).expect("few parts")))
}

/// Returns every `step`th key of the `_id` index of `source`, at most `parts` - 1 of them, in order.
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

/// Returns the `_id`s of about `size` random documents of a collection of about `documents` documents.
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

/// Returns true if `id` can be a bound of a slice: servers refuse bounds between which and the end of the index there
/// is nothing.
fn is_bound(id: &Id) -> bool {
    !matches!(id.as_raw(), RawBsonRef::MinKey | RawBsonRef::MaxKey)
}

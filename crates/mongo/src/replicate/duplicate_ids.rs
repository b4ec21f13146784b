//! `_id`s that two documents of a sharded collection share.
//!
//! A shard enforces unique `_id`s only among its own documents, so two shards may hold the same one. A copy identifies
//! documents by `_id`: of two documents with the same one it would keep the one that was written last. So every read
//! of a copy is checked, and an `_id` that occurs twice ends the job, once it is certain.
//!
//! Invariant: a document that moves from one shard to another, which a read may return twice, does not count as two.
//! The count that decides is of one time.

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::TryStreamExt;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::pair::Pair;
use crate::server::collection::Handle;
use crate::server::endpoint::answer_within;
use crate::server::timing::SEARCH_MAX;

/// Returns an error if more than one document of the source has one of the `_id`s in `met_twice`, which a read
/// returned twice.
///
/// # Errors
/// [`Error::Document`] names the first such `_id`; fails if the source does not reply.
pub(crate) async fn refuse(pair: &Pair, met_twice: &[Id]) -> Result<()> {
    if met_twice.is_empty() || !pair.source.endpoint.is_sharded() {
        return Ok(());
    }
    let of_which = with_ids(met_twice)?;
    let now = pair.source.endpoint.cluster_time().await?;
    let Some(id) = find_counted_duplicate(&pair.source, vec![of_which], Some(now)).await? else {
        return Ok(());
    };
    Err(Error::Document {
        ns: pair.destination.ns.to_string(),
        id: id.to_string(),
        cause: format!(
            "two documents of {} have this _id, on different shards, and a copy knows documents by their _ids",
            pair.source.ns
        ),
        help: "give one of the two another _id, or delete it, then `imago job resume`".into(),
    })
}

/// Returns the aggregation stage that selects the documents with these `_id`s.
///
/// # Errors
/// Fails if an `_id` cannot be read.
pub(crate) fn with_ids(ids: &[Id]) -> Result<Document> {
    let ids = ids.iter().map(|id| Bson::try_from(id.as_raw()));
    let ids: Vec<Bson> =
        ids.collect::<std::result::Result<_, _>>().map_err(|e| Error::malformed("an _id", e))?;
    Ok(doc! {"$match": {"_id": {"$in": ids}}})
}

/// Returns an `_id` that more than one of the documents selected by the aggregation stages `of_which` has, or `None`.
/// The router counts them, as of the cluster time `at` if it is given.
///
/// # Errors
/// Fails if the cluster does not reply.
pub(crate) async fn find_counted_duplicate(
    of: &Handle,
    of_which: Vec<Document>,
    at: Option<Timestamp>,
) -> Result<Option<Id>> {
    let doing = format!("looking for equal _ids in {}", of.ns);
    let mut pipeline = of_which;
    pipeline.extend([
        doc! {"$group": {"_id": "$_id", "n": {"$sum": 1}}},
        doc! {"$match": {"n": {"$gt": 1}}},
        doc! {"$limit": 1},
    ]);
    let mut command =
        doc! {"aggregate": &of.ns.coll, "pipeline": pipeline, "cursor": {}, "allowDiskUse": true};
    if let Some(at) = at {
        command.insert("readConcern", doc! {"level": "snapshot", "atClusterTime": at});
    }
    let db = of.endpoint.client().database(&of.ns.db);
    let found = async {
        let found = db.run_cursor_command(command).await?;
        found.with_type::<RawDocumentBuf>().try_collect::<Vec<_>>().await
    };
    let found = answer_within(SEARCH_MAX, &doing, found).await?;
    let found = found.map_err(|error| Error::server(doing.clone(), error))?.pop();
    let id = found.map(|found| Id::of_document(&found)).transpose();
    id.map_err(|error| Error::malformed(doing, error))
}

//! `_id`s that a sharded collection holds more than once.
//!
//! Shards know only their own `_id`s, so nothing keeps two of them from taking the same one. Their
//! `_id` indexes are read alone, without the documents, and merged here: an `_id` that occurs twice
//! is on two shards. Those may be a document and its orphan; the router, which knows the owner, is
//! asked about these.

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use imago_job::control::Control;

use super::feed::{Scan, batch_documents, id_of};
use super::shards::Joined;
use crate::bson::order::{Id, id_element};
use crate::error::{Error, Result};
use crate::server::collection::{Handle, Size};
use crate::server::endpoint::{Endpoint, answer_within};
use crate::server::timing::SEARCH_MAX;

/// About how large an entry is that is all `_id`.
const ENTRY_BYTES: u64 = 32;
const BATCH_BYTES: u64 = 1 << 20;
/// Most `_id`s that are asked about at once.
const ASKED_MAX: usize = 1_000;

/// An `_id` that two documents of the collection have. The `_id`s' order has to be that of their
/// values: no collation.
///
/// # Errors
/// Fails if the cluster does not answer.
pub(crate) async fn held_twice(
    of: &Handle,
    shards: &[Endpoint],
    control: &Control,
) -> Result<Option<Id>> {
    let batch_bytes = control.throttle().batch_bytes(BATCH_BYTES);
    let times = try_join_all(shards.iter().map(|shard| Box::pin(shard.cluster_time()))).await?;
    let scan = Scan {
        handle: of.clone(),
        filter: None,
        // A shard refuses to read behind a time that it has not heard of.
        since: times.into_iter().min().unwrap_or(Timestamp { time: 0, increment: 1 }),
        min: None,
        max: None,
        ids_only: true,
        batch_documents: batch_documents(Size { documents: 1, bytes: ENTRY_BYTES }, batch_bytes),
    };
    let mut joined = Joined::start(shards, &scan, None, batch_bytes);
    let mut last: Vec<u8> = Vec::new();
    let mut alike = Vec::new();
    while let Some(chunk) = control.or_stop(joined.next()).await?? {
        let mut before = last.as_slice();
        for entry in chunk.documents() {
            if is_same(before, entry) {
                alike.push(id_of(entry)?);
            }
            before = entry;
        }
        last = before.to_vec();
        control.take_paced(0, chunk.bytes() as u64).await?;
        if alike.len() >= ASKED_MAX
            && let Some(id) = owned_twice(of, std::mem::take(&mut alike)).await?
        {
            return Ok(Some(id));
        }
    }
    owned_twice(of, alike).await
}

fn is_same(left: &[u8], right: &[u8]) -> bool {
    match (id_element(left), id_element(right)) {
        (Some(left), Some(right)) => left.cmp_value(&right).is_eq(),
        _ => false,
    }
}

/// The first of these `_id`s that more than one document has, as the router counts.
async fn owned_twice(of: &Handle, ids: Vec<Id>) -> Result<Option<Id>> {
    let ids = ids.iter().map(|id| Bson::try_from(id.as_raw()));
    let ids: Vec<Bson> =
        ids.collect::<std::result::Result<_, _>>().map_err(|e| Error::malformed("an _id", e))?;
    if ids.is_empty() {
        return Ok(None);
    }
    counted_twice(of, vec![doc! {"$match": {"_id": {"$in": ids}}}]).await
}

/// An `_id` that more than one of those documents has that pass these stages, counted by the router.
pub(crate) async fn counted_twice(of: &Handle, of_which: Vec<Document>) -> Result<Option<Id>> {
    let doing = format!("looking for equal _ids in {}", of.ns);
    let mut pipeline = of_which;
    pipeline.extend([
        doc! {"$group": {"_id": "$_id", "n": {"$sum": 1}}},
        doc! {"$match": {"n": {"$gt": 1}}},
        doc! {"$limit": 1},
    ]);
    let documents = of.endpoint.client().database(&of.ns.db).collection::<Document>(&of.ns.coll);
    let found = async {
        let found = documents.aggregate(pipeline).allow_disk_use(true);
        found.with_type::<RawDocumentBuf>().await?.try_collect::<Vec<_>>().await
    };
    let found = answer_within(SEARCH_MAX, &doing, found).await?;
    let found = found.map_err(|error| Error::server(doing.clone(), error))?.pop();
    let id = found.map(|found| Id::of_document(&found)).transpose();
    id.map_err(|error| Error::malformed(doing, error))
}

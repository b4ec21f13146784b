//! Detection of `_id`s that a sharded collection has more than once.
//!
//! Each shard enforces the uniqueness of its own `_id`s only, so two shards may have documents with the same `_id`.
//! The `_id` indexes of the shards are read, without the documents, and merged: an `_id` that occurs twice is on two
//! shards. One of the two documents may be an orphan, so the router, which knows the owner, counts the documents with
//! such `_id`s.

use bson::Timestamp;
use futures_util::future::try_join_all;
use imago_job::control::Control;

use super::feed::{Scan, batch_documents, id_of};
use super::shards::Joined;
use crate::bson::order::{Id, id_element};
use crate::error::Result;
use crate::replicate::duplicate_ids::{find_counted_duplicate, with_ids};
use crate::server::collection::{Handle, Size};
use crate::server::endpoint::Endpoint;

/// Estimated size of an entry of the `_id` index, in bytes.
const ENTRY_BYTES: u64 = 32;
const BATCH_BYTES: u64 = 1 << 20;
/// Maximum number of `_id`s in one query to the router.
const QUERY_IDS_MAX: usize = 1_000;

/// Returns an `_id` that two documents of the collection `of` have, or `None` if there is none. `shards` are all
/// shards of the collection, whose `_id`s must be ordered by their values, not by a collation.
///
/// # Errors
/// Fails if the cluster does not reply, or if `control` stops the operation.
pub(crate) async fn find_duplicate(
    of: &Handle,
    shards: &[Endpoint],
    control: &Control,
) -> Result<Option<Id>> {
    let batch_bytes = control.throttle().batch_bytes(BATCH_BYTES);
    let times = try_join_all(shards.iter().map(|shard| Box::pin(shard.cluster_time()))).await?;
    let scan = Scan {
        handle: of.clone(),
        filter: None,
        // A shard rejects a read after a time that it has not learnt of yet, so the earliest of the shards' times
        // is used.
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
        if alike.len() >= QUERY_IDS_MAX
            && let Some(id) = find_owned_duplicate(of, std::mem::take(&mut alike)).await?
        {
            return Ok(Some(id));
        }
    }
    find_owned_duplicate(of, alike).await
}

fn is_same(left: &[u8], right: &[u8]) -> bool {
    match (id_element(left), id_element(right)) {
        (Some(left), Some(right)) => left.cmp_value(&right).is_eq(),
        _ => false,
    }
}

/// Returns the first of `ids` that more than one document of the collection `of` has by the router's count, or
/// `None`.
async fn find_owned_duplicate(of: &Handle, ids: Vec<Id>) -> Result<Option<Id>> {
    if ids.is_empty() {
        return Ok(None);
    }
    find_counted_duplicate(of, vec![with_ids(&ids)?], None).await
}

//! Fills a collection before a load: the keys `0..documents`, with a few concurrent batches.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawDocumentBuf, doc};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use mongodb::options::{InsertManyOptions, WriteConcern};

use super::MongoTarget;
use imago_mongo::error::{Error, Result};

/// Number of batches that are inserted concurrently. More would only queue in the server.
const WRITERS: usize = 4;
/// Maximum number of documents in one batch of inserts.
const BATCH_DOCUMENTS: u64 = 1000;
/// Maximum size of the documents in one batch of inserts, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// Inserts the documents of the keys `0..documents` into an empty collection, each with `seq` equal to its key and
/// `n` = 0, acknowledged by a majority. Calls `progress` with the number of documents inserted so far.
///
/// # Errors
/// Returns a precondition error if the collection is not empty, and the error of the server otherwise. After an error
/// of the server the collection may hold a part of the documents.
pub async fn preload(
    target: &MongoTarget,
    documents: u64,
    progress: impl Fn(u64) + Sync,
) -> Result<()> {
    require_documents(target, 0).await?;
    let batch = BATCH_DOCUMENTS.min(BATCH_BYTES / u64::from(target.schema.reviews.size_bytes));
    let batch = batch.max(1);
    let inserted = AtomicU64::new(0);
    iter((0..documents).step_by(batch as usize))
        .map(|first| {
            let end = documents.min(first + batch);
            let (inserted, progress) = (&inserted, &progress);
            Box::pin(async move {
                insert(target, first, end).await?;
                progress(inserted.fetch_add(end - first, Ordering::Relaxed) + end - first);
                Ok(())
            })
        })
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await
}

async fn insert(target: &MongoTarget, first: u64, end: u64) -> Result<()> {
    let schema = target.schema;
    let batch: Vec<RawDocumentBuf> = (first..end).map(|key| schema.document(key, key, 0)).collect();
    let options =
        InsertManyOptions::builder().ordered(false).write_concern(WriteConcern::majority()).build();
    target
        .collection
        .insert_many(&batch)
        .with_options(options)
        .into_future()
        .await
        .map_err(|cause| Error::server(format!("filling {}", target.label), cause))?;
    Ok(())
}

/// Checks that the collection holds exactly `documents` documents.
///
/// # Errors
/// Returns a precondition error if the number differs, and the error of the server otherwise.
#[crate::boxed]
pub async fn require_documents(target: &MongoTarget, documents: u64) -> Result<()> {
    let doing = |cause| Error::server(format!("counting the documents of {}", target.label), cause);
    // One document more is enough to show that there are too many.
    let limit = documents + 1;
    let counting = target.collection.count_documents(doc! {}).limit(limit);
    let found = counting.into_future().await.map_err(doing)?;
    if found == documents {
        return Ok(());
    }
    let (what, help) = if documents == 0 {
        ("is not empty".to_owned(), "use another namespace, or drop this one")
    } else if found > documents {
        (format!("holds more than {documents} documents"), "say how many it was filled with")
    } else {
        (format!("holds {found} documents, not {documents}"), "say how many it was filled with")
    };
    Err(Error::precondition(format!("{} {what}", target.label), help))
}

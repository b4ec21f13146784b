//! Only reading: the floor of every operation that has to read all documents.
//!
//! The bytes of batches are counted, and not parsed. Each side is read in the order in which its documents are
//! stored, which no other order can beat, by one cursor whose batches are as large as a reply may be.

use std::time::Instant;

use bson::rawdoc;
use futures_util::StreamExt;
use imago_mongo::error::Error as ServerError;
use imago_mongo::server::endpoint::Endpoint;

use crate::cluster_pair::{COLL, ClusterPair, DB};
use crate::error::{Error, Result};

/// Reads both sides at the same time, and returns the time that it took, in seconds. Fails if a side has fewer than
/// `bytes_min` bytes.
pub(crate) async fn both(clusters: &ClusterPair, bytes_min: u64) -> Result<f64> {
    let began = Instant::now();
    let read = (Box::pin(side(&clusters.source)), Box::pin(side(&clusters.destination)));
    let (source, destination) = tokio::try_join!(read.0, read.1)?;
    let seconds = began.elapsed().as_secs_f64();
    for bytes in [source, destination] {
        if bytes < bytes_min {
            return Err(Error::Wrong(format!("{bytes} bytes were read, not {bytes_min}")));
        }
    }
    Ok(seconds)
}

async fn side(endpoint: &Endpoint) -> Result<u64> {
    let failed = |error| ServerError::server("reading a collection", error);
    let db = endpoint.client().database(DB);
    let find = rawdoc! {
        "find": COLL, "batchSize": i32::MAX, "readConcern": {"level": "majority"},
    };
    let cursor = db.run_raw_cursor_command(find).batch_size(u32::MAX >> 1).batch().await;
    let mut cursor = cursor.map_err(failed)?;
    let mut bytes = 0;
    while let Some(batch) = cursor.next().await {
        bytes += batch.map_err(failed)?.as_raw_document().as_bytes().len() as u64;
    }
    Ok(bytes)
}

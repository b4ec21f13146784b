//! The shard of each document, found by asking each shard, and the bytes of the documents that have to move.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use imago_mongo::reshard::plan::Plan;
use imago_plan::reshard::placement::{Shares, Weights, balanced};
use imago_workload::review::Reviews;

use super::{KEYS, ShardedCluster};
use crate::cluster_pair::{COLL, DB};
use crate::error::{Error, Result};

/// The shard of each document and its size in bytes, by its `_id`. The `_id`s are `0..len`.
pub(crate) struct Places {
    of: Vec<(usize, u64)>,
    shards: Vec<String>,
    reviews: Reviews,
}

impl Places {
    pub(crate) async fn snapshot(cluster: &ShardedCluster) -> Result<Self> {
        let mut of = Vec::new();
        let size = doc! {"$bsonSize": "$$ROOT"};
        let pipeline = [doc! {"$project": {"bytes": size}}];
        for (shard, endpoint) in cluster.shards().await?.iter().enumerate() {
            let found = endpoint.client().database(DB).collection::<Document>(COLL);
            let failed = |error| imago_mongo::error::Error::server("reading a shard", error);
            let cursor = found.aggregate(pipeline.clone()).batch_size(50_000);
            let mut cursor = cursor.into_future().await.map_err(failed)?;
            while let Some(document) = cursor.try_next().await.map_err(failed)? {
                let key = document.get_i64("_id").ok().and_then(|id| usize::try_from(id).ok());
                let bytes = document.get_i32("bytes").ok().and_then(|b| u64::try_from(b).ok());
                let (Some(key), Some(bytes)) = (key, bytes) else {
                    return Err(Error::Wrong(format!("a shard holds {document}")));
                };
                if of.len() <= key {
                    of.resize(key + 1, None);
                }
                if of[key].replace((shard, bytes)).is_some() {
                    return Err(Error::Wrong(format!("two shards hold document {key}")));
                }
            }
        }
        let of: Option<Vec<_>> = of.into_iter().collect();
        let of = of.ok_or_else(|| Error::Wrong("a document is on no shard".into()))?;
        Ok(Self { of, shards: cluster.shard_names(), reviews: cluster.schema.reviews })
    }

    /// Returns the bytes of the documents that are on another shard in `after`.
    pub(crate) fn moved(&self, after: &Self) -> Result<u64> {
        if self.of.len() != after.of.len() {
            let (before, after) = (self.of.len(), after.of.len());
            return Err(Error::Wrong(format!("there were {before} documents, now {after}")));
        }
        let pairs = self.of.iter().zip(&after.of);
        Ok(pairs.filter(|(from, to)| from.0 != to.0).map(|(from, _)| from.1).sum())
    }

    /// Returns the minimum number of bytes that have to move so that the chunks of the plan are evenly spread.
    pub(crate) fn optimum(&self, plan: &Plan) -> Result<u64> {
        let wrong = |what: String| Error::Wrong(format!("the plan's chunks: {what}"));
        let mut mins = Vec::new();
        for chunk in &plan.chunks[1..] {
            let min = chunk.min.as_deref().unwrap_or_default();
            let min: serde_json::Value =
                serde_json::from_str(min).map_err(|error| wrong(error.to_string()))?;
            let text = min[KEYS[1]].as_str().ok_or_else(|| wrong(format!("{min} is no text")))?;
            mins.push(text.to_owned());
        }
        let mut held = vec![vec![0_u64; self.shards.len()]; plan.chunks.len()];
        for (key, (shard, bytes)) in self.of.iter().enumerate() {
            let (_, user) = self.reviews.shard_keys(key as u64);
            held[mins.partition_point(|min| *min <= user)][*shard] += bytes;
        }
        let failed =
            |error: imago_plan::reshard::placement::PlacementError| wrong(error.to_string());
        let mut weights = Weights::new(self.shards.len()).map_err(failed)?;
        for row in held {
            weights.push(row.into_iter().enumerate()).map_err(failed)?;
        }
        let shares = Shares::equal(self.shards.len()).map_err(failed)?;
        Ok(balanced(&weights, &shares).map_err(failed)?.moved)
    }
}

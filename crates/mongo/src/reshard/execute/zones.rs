//! Temporary zones that place each chunk of a plan on its shard.
//!
//! Each shard that gets chunks has its own zone, and each chunk is a range of its shard's zone. The servers create
//! chunks according to zones, so no chunk has to be moved.
//!
//! Invariant: only the zones of one job are changed; the job's id is in their names. Every step is idempotent: the
//! successor of a process that died repeats them all.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use imago_job::id::JobId;

use crate::bson::input::parse_document;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::reshard::plan::Plan;
use crate::server::endpoint::{Endpoint, answer};

/// The zones of one job, whose id is in the names of the zones.
pub(in crate::reshard) struct Zones<'a> {
    pub(in crate::reshard) cluster: &'a Endpoint,
    /// The collection whose chunks the zones place.
    pub(in crate::reshard) ns: &'a Namespace,
    pub(in crate::reshard) id: &'a JobId,
}

impl Zones<'_> {
    fn prefix(&self) -> String {
        format!("imago/{}/", self.id)
    }

    fn name(&self, shard: &str) -> String {
        format!("{}{shard}", self.prefix())
    }

    /// Adds each shard that gets chunks to its zone of this job.
    pub(in crate::reshard) async fn tag(&self, plan: &Plan) -> Result<()> {
        for shard in used(plan) {
            let zone = self.name(shard);
            self.cluster.run("admin", doc! {"addShardToZone": shard, "zone": zone}).await?;
        }
        Ok(())
    }

    /// Returns the plan's chunks as zone ranges: documents with `min`, `max` and `zone`.
    pub(in crate::reshard) fn chunk_ranges(
        &self,
        plan: &Plan,
        key: &Document,
    ) -> Result<Vec<Document>> {
        let end: Document = key.keys().map(|field| (field.clone(), Bson::MaxKey)).collect();
        let mut ranges = Vec::with_capacity(plan.chunks.len());
        for (at, chunk) in plan.chunks.iter().enumerate() {
            let max = match plan.chunks.get(at + 1) {
                Some(next) => min_of(next.min.as_deref(), key)?,
                None => end.clone(),
            };
            let min = min_of(chunk.min.as_deref(), key)?;
            let zone = self.name(&plan.shards[chunk.shard]);
            ranges.push(doc! {"min": min, "max": max, "zone": zone});
        }
        Ok(ranges)
    }

    /// Adds the shards to their zones, and assigns the plan's chunks to the zones as ranges of the collection.
    pub(in crate::reshard) async fn set(&self, plan: &Plan, key: &Document) -> Result<()> {
        self.tag(plan).await?;
        for range in self.chunk_ranges(plan, key)? {
            let mut command = doc! {"updateZoneKeyRange": self.ns.to_string()};
            command.extend(range);
            self.cluster.run("admin", command).await?;
        }
        Ok(())
    }

    /// Removes the collection's ranges in this job's zones, and the shards from these zones.
    pub(in crate::reshard) async fn clear(&self, plan: &Plan) -> Result<()> {
        let prefix = self.prefix();
        for range in self.ranges().await? {
            let (Ok(min), Ok(max)) = (range.get_document("min"), range.get_document("max")) else {
                return Err(Error::malformed("a zone's range", range));
            };
            if !range.get_str("tag").is_ok_and(|tag| tag.starts_with(&prefix)) {
                continue;
            }
            let command = doc! {
                "updateZoneKeyRange": self.ns.to_string(), "min": min.clone(),
                "max": max.clone(), "zone": Bson::Null,
            };
            self.cluster.run("admin", command).await?;
        }
        let tagged = self.tagged().await?;
        for shard in used(plan) {
            let zone = self.name(shard);
            if tagged.contains(&zone) {
                let command = doc! {"removeShardFromZone": shard, "zone": zone};
                self.cluster.run("admin", command).await?;
            }
        }
        Ok(())
    }

    /// Returns all zone ranges of the collection, as documents of `config.tags`.
    pub(in crate::reshard) async fn ranges(&self) -> Result<Vec<Document>> {
        let tags = self.cluster.client().database("config").collection::<Document>("tags");
        let doing = "reading config.tags";
        let read = async { tags.find(doc! {"ns": self.ns.to_string()}).await?.try_collect().await };
        answer(doing, read).await?.map_err(|error| Error::server(doing, error))
    }

    async fn tagged(&self) -> Result<Vec<String>> {
        let shards = self.cluster.client().database("config").collection::<Document>("shards");
        let doing = "reading config.shards";
        let read = async { shards.find(doc! {}).await?.try_collect::<Vec<Document>>().await };
        let found = answer(doing, read).await?.map_err(|error| Error::server(doing, error))?;
        let tags = found.iter().flat_map(|shard| shard.get_array("tags").into_iter().flatten());
        Ok(tags.filter_map(Bson::as_str).map(str::to_owned).collect())
    }
}

/// Returns the names of the shards that get chunks in the plan, each once.
fn used(plan: &Plan) -> Vec<&str> {
    let mut used: Vec<&str> =
        plan.chunks.iter().map(|chunk| plan.shards[chunk.shard].as_str()).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// Returns the lower bound of a chunk as a document of the key's fields; `min` is extended JSON, or `None` for the
/// first chunk, which begins at `MinKey`.
pub(crate) fn min_of(min: Option<&str>, key: &Document) -> Result<Document> {
    match min {
        Some(text) => parse_document(text, "a chunk's least key"),
        None => Ok(key.keys().map(|field| (field.clone(), Bson::MinKey)).collect()),
    }
}

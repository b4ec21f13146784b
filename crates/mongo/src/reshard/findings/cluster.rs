//! What the cluster as a whole knows of the collection: zones, and `_id`s that it holds twice.

use bson::{Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;

use super::{Finding, obstacle, warning};
use crate::collection::Handle;
use crate::endpoint::answer_within;
use crate::error::{Error, Result};
use crate::order::Id;
use crate::reshard::key::Key;
use crate::reshard::survey::{Survey, read};
use crate::verify::patience::SEARCH_MAX;

/// Of so many documents all `_id`s are compared: some twenty seconds.
const COMPARED_MAX: u64 = 5_000_000;

/// Asks the router.
pub(in crate::reshard) async fn of_cluster(
    of: &Handle,
    survey: &Survey,
    old: &Key,
) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    found.extend(zones(of).await?);
    found.extend(Box::pin(duplicates(of, survey, old)).await?);
    Ok(found)
}

async fn zones(of: &Handle) -> Result<Option<Finding>> {
    let zones = read(&of.endpoint, "tags", doc! {"ns": of.ns.to_string()}).await?;
    Ok((!zones.is_empty()).then(|| {
        let mut names: Vec<&str> =
            zones.iter().filter_map(|zone| zone.get_str("tag").ok()).collect();
        names.sort_unstable();
        names.dedup();
        obstacle(
            "zones",
            format!(
                "{} has {} zone ranges ({}): they are of the old key, and a collection with zones \
                 cannot be replaced",
                of.ns,
                zones.len(),
                names.join(", ")
            ),
            format!(
                "write them down and take each away: sh.removeRangeFromZone(\"{}\", min, max)",
                of.ns
            ),
        )
    }))
}

/// Shards know only their own `_id`s: unless they are the shard key, two documents may have the
/// same.
async fn duplicates(of: &Handle, survey: &Survey, old: &Key) -> Result<Option<Finding>> {
    if old.fields().eq(["_id"]) || survey.entry.is_none() {
        return Ok(None);
    }
    if survey.stored.documents > COMPARED_MAX {
        return Ok(Some(warning(
            "duplicate_ids_unchecked",
            format!(
                "whether two documents have the same _id was not checked: {} has {} documents",
                of.ns, survey.stored.documents
            ),
            "if the application does not make sure of it, check by $group on _id at a quiet time",
        )));
    }
    let doing = format!("looking for equal _ids in {}", of.ns);
    let pipeline = [
        doc! {"$group": {"_id": "$_id", "n": {"$sum": 1}}},
        doc! {"$match": {"n": {"$gt": 1}}},
        doc! {"$limit": 1},
    ];
    let documents = of.endpoint.client().database(&of.ns.db).collection::<Document>(&of.ns.coll);
    let found = async {
        let found = documents.aggregate(pipeline).allow_disk_use(true);
        found.with_type::<RawDocumentBuf>().await?.try_collect::<Vec<_>>().await
    };
    let found = answer_within(SEARCH_MAX, &doing, found).await?;
    let Some(found) = found.map_err(|error| Error::server(doing.clone(), error))?.pop() else {
        return Ok(None);
    };
    let id = Id::of_document(&found).map_err(|error| Error::malformed(doing, error))?;
    Ok(Some(obstacle(
        "duplicate_ids",
        format!("more than one document of {} has the _id {id}", of.ns),
        "by another key they may come to one shard, which cannot hold both: give one of them \
         another _id",
    )))
}

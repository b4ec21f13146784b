//! Findings about the collection in the whole cluster: zones, and duplicate `_id`s.

use bson::doc;
use imago_job::control::Control;

use super::{Finding, obstacle, warning};
use crate::error::Result;
use crate::namespace::Namespace;
use crate::replicate::duplicate_ids::find_counted_duplicate;
use crate::reshard::plan::survey::{Survey, read};
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::shard_key::Key;
use crate::verify::find_duplicate;

/// Maximum number of documents whose `_id`s are compared: some twenty seconds if only the router can be queried, and
/// a fifth of that if the shards can.
const COMPARED_MAX: u64 = 5_000_000;

/// Returns the findings about zones and duplicate `_id`s of the collection; `old` is its present shard key.
pub(in crate::reshard) async fn cluster_findings(
    of: &Handle,
    survey: &Survey,
    old: &Key,
    control: &Control,
) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    found.extend(zones(of).await?);
    found.extend(duplicates(of, survey, old, control).await?);
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
                "{} has {} zone ranges ({}): they are defined by the old key, and a collection \
                 with zones cannot be replaced",
                of.ns,
                zones.len(),
                names.join(", ")
            ),
            format!(
                "record them, and remove each: sh.removeRangeFromZone(\"{}\", min, max)",
                of.ns
            ),
        )
    }))
}

/// Returns a finding about duplicate `_id`s of the collection, or `None`. Each shard enforces the uniqueness of its
/// own `_id`s only, so unless `_id` is the shard key, two documents may have the same one.
async fn duplicates(
    of: &Handle,
    survey: &Survey,
    old: &Key,
    control: &Control,
) -> Result<Option<Finding>> {
    if old.fields().eq(["_id"]) || survey.entry.is_none() {
        return Ok(None);
    }
    if let Some(unchecked) = unchecked(&of.ns, survey.stored.documents) {
        return Ok(Some(unchecked));
    }
    let reached = if survey.definition.is_collated() { None } else { reached(of).await? };
    let found = match reached {
        Some(shards) => find_duplicate(of, &shards, control).await?,
        None => find_counted_duplicate(of, Vec::new(), None).await?,
    };
    let Some(id) = found else { return Ok(None) };
    Ok(Some(obstacle(
        "duplicate_ids",
        format!("more than one document of {} has the _id {id}", of.ns),
        "by another key they may come to one shard, which cannot hold both: give one of them \
         another _id",
    )))
}

/// Returns a warning if the collection has too many documents to compare their `_id`s while clients are at work.
fn unchecked(ns: &Namespace, documents: u64) -> Option<Finding> {
    (documents > COMPARED_MAX).then(|| {
        warning(
            "duplicate_ids_unchecked",
            format!(
                "whether two documents have the same _id was not checked: {ns} has {documents} \
                 documents"
            ),
            "if the application does not make sure of it, check by $group on _id at a quiet time",
        )
    })
}

/// Returns connections to the collection's shards, or `None` if one of them cannot be reached past the router.
async fn reached(of: &Handle) -> Result<Option<Vec<Endpoint>>> {
    let reached = of.endpoint.shards().await?;
    Ok(reached.into_iter().map(|(_, shard)| shard.ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_too_many_documents_are_not_compared_is_told() {
        let ns = Namespace::new("d", "c");
        assert_eq!(unchecked(&ns, COMPARED_MAX), None);
        let told = unchecked(&ns, COMPARED_MAX + 1).unwrap();
        assert_eq!(told.code, "duplicate_ids_unchecked");
    }
}

//! Checks that a plan fits the present state of the cluster, before anything is written.
//!
//! A plan is a file. It may be old, for another cluster, or edited by hand. Later steps of a job rely on these
//! checks.

use std::collections::HashSet;

use bson::raw::RawBsonRef;
use bson::{Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;

use crate::bson::input::parse_document;
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::reshard::execute::zones::min_of;
use crate::reshard::plan::Plan;
use crate::server::collection::Handle;
use crate::server::endpoint::{Endpoint, answer};
use crate::server::shard_key::Key;

/// Checks that the plan is consistent and fits the cluster.
///
/// # Errors
/// Returns a precondition error that names the first mismatch; another error if the cluster does not reply.
pub(in crate::reshard) async fn check(cluster: &Endpoint, plan: &Plan) -> Result<()> {
    check_consistency(plan)?;
    let of = Handle::new(cluster.clone(), plan.ns.clone());
    if of.definition().await?.is_none() {
        return Err(Error::precondition(
            format!("the cluster has no collection {}", plan.ns),
            "look at the names, and whether this is the cluster that the plan is for",
        ));
    }
    let key = of.shard_key().await?.ok_or_else(|| unsharded(&plan.ns))?;
    if !Key::parse(&plan.old_key)?.is_same(&key) {
        return Err(outdated_plan(format!(
            "{} is sharded by {key}, and the plan is for a collection sharded by {}",
            plan.ns, plan.old_key
        )));
    }
    let new_key = Key::parse(&plan.key)?;
    let indexes = of.indexes().await?;
    if let Some(index) = indexes.iter().find(|index| !new_key.keeps(index)) {
        return Err(Error::precondition(
            format!(
                "{} cannot keep its unique index {} when it is sharded by {}",
                plan.ns,
                index.get_str("name").unwrap_or("without a name"),
                plan.key
            ),
            "a sharded collection's unique indexes begin with its key or with _id: drop the \
             index, or choose a key that it begins with",
        ));
    }
    let shards = shards(cluster).await?;
    match plan.shards.iter().find(|shard| !shards.contains(*shard)) {
        Some(shard) => {
            Err(outdated_plan(format!("the cluster has no shard {shard}, which the plan names")))
        }
        None => Ok(()),
    }
}

/// Returns the error that the collection `ns` has no shard key.
pub(in crate::reshard) fn unsharded(ns: &Namespace) -> Error {
    Error::precondition(format!("{ns} is not sharded"), "shard it first: sh.shardCollection")
}

/// Checks that the plan's chunks are in order, begin at the least key, and are on shards that the plan names.
fn check_consistency(plan: &Plan) -> Result<()> {
    let key = parse_document(&plan.key, "the shard key")?;
    if plan.chunks.first().is_none_or(|first| first.min.is_some()) {
        return Err(outdated_plan("the plan has no chunk that begins at MinKey"));
    }
    let mut before: Option<Id> = None;
    for (at, chunk) in plan.chunks.iter().enumerate() {
        if chunk.shard >= plan.shards.len() {
            return Err(outdated_plan(format!(
                "the plan's chunk {at} is on a shard that it does not name"
            )));
        }
        let min = min_of(chunk.min.as_deref(), &key)?;
        let raw = RawDocumentBuf::try_from(&min).map_err(|e| Error::malformed("the plan", e))?;
        let id = Id::from_raw(RawBsonRef::Document(&raw));
        if !min.keys().eq(key.keys()) || before.is_some_and(|before| before >= id) {
            return Err(outdated_plan(format!(
                "the plan's chunk {at} does not begin after the previous one"
            )));
        }
        before = Some(id);
    }
    Ok(())
}

fn outdated_plan(what: impl Into<String>) -> Error {
    Error::precondition(what, "make the plan anew: `imago reshard plan`")
}

async fn shards(cluster: &Endpoint) -> Result<HashSet<String>> {
    let shards = cluster.client().database("config").collection::<Document>("shards");
    let doing = "reading config.shards";
    let read = async { shards.find(doc! {}).await?.try_collect::<Vec<Document>>().await };
    let found = answer(doing, read).await?.map_err(|error| Error::server(doing, error))?;
    Ok(found.iter().filter_map(|one| one.get_str("_id").ok().map(str::to_owned)).collect())
}

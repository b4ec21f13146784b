//! The shadow collection: created empty, with its chunks placed according to the plan.
//!
//! Zones determine the placement. A collection that is sharded while it is empty gets one chunk for each range of a
//! zone, on a shard of that zone. Each shard therefore gets its own zone for a moment, and no chunk has to be moved.
//! Zones and ranges are removed before anything is copied.
//!
//! Until the bulk is copied the shadow has no index but that of `_id`, and unique ones that serve its key: see
//! [`drop_key_index`].
//!
//! Every step is idempotent: the successor of a process that died repeats them all.

use bson::{Document, doc};
use imago_job::id::JobId;

use crate::bson::input::parse_document;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::reshard::execute::zones::{Zones, min_of};
use crate::reshard::plan::Plan;
use crate::server::collection::name_of;
use crate::server::collection::{Definition, Handle};
use crate::server::endpoint::Endpoint;
use crate::server::shard::key_index;
use crate::server::structure::is_unique;

/// Returns the full name of the shadow of the collection `ns` in the job `id`.
#[must_use]
pub fn name(ns: &Namespace, id: &JobId) -> Namespace {
    Namespace::new(&ns.db, format!("{PREFIX}{id}"))
}

pub use crate::namespace::SHADOW_PREFIX as PREFIX;

/// Creates the shadow of the job `id` with its chunks placed according to the plan. Completes the work of an earlier
/// process.
///
/// # Errors
/// Fails if the cluster rejects a command, or if the collection does not exist.
#[crate::boxed]
pub async fn create(cluster: &Endpoint, plan: &Plan, shadow: &Namespace, id: &JobId) -> Result<()> {
    let from = Handle::new(cluster.clone(), plan.ns.clone());
    let to = Handle::new(cluster.clone(), shadow.clone());
    let key = parse_document(&plan.key, "the shard key")?;
    let gone = || Error::Disrupted { ns: plan.ns.to_string(), what: "dropped".into() };
    let definition = from.definition().await?.ok_or_else(gone)?;
    if to.definition().await?.is_none() {
        to.create(&definition.options).await?;
    }
    if to.shard_key().await?.is_none() {
        to.create_indexes(&[key_index(&definition.indexes, &key)]).await?;
        let zones = Zones { cluster, ns: shadow, id };
        zones.set(plan, &key).await?;
        let mut command = doc! {"shardCollection": shadow.to_string(), "key": key.clone()};
        if definition.is_collated() {
            command.insert("collation", doc! {"locale": "simple"});
        }
        cluster.run_at_length("admin", command).await?;
        drop_key_index(&to, &definition, &key).await?;
    }
    Zones { cluster, ns: shadow, id }.clear(plan).await?;
    check(&to, plan, &key).await
}

/// Returns the index of the shadow's own key, for a shadow of the collection defined by `of`; the index is dropped
/// until the bulk is copied. Returns `None` if it is unique: such an index rejects documents, and has to stay.
pub(in crate::reshard) fn deferred_key_index(of: &Definition, key: &Document) -> Option<Document> {
    Some(key_index(&of.indexes, key)).filter(|index| !is_unique(index))
}

/// Drops the index of the shadow's key until the bulk is copied. Documents arrive in the order of their `_id`s, which
/// is random order for the key's index: inserting them one by one costs the servers more than twice as much as
/// building the index afterwards. Servers refuse to drop it through a router. If a shard cannot be reached past the
/// router, or refuses too, the index stays, and the bulk takes longer.
async fn drop_key_index(to: &Handle, of: &Definition, key: &Document) -> Result<()> {
    let Some(index) = deferred_key_index(of, key) else { return Ok(()) };
    for (name, shard) in to.endpoint.shards().await? {
        let dropped = match shard {
            Ok(shard) => Handle::new(shard, to.ns.clone()).drop_index(name_of(&index)).await,
            Err(error) => Err(error),
        };
        // A shard without chunks has no such collection.
        if let Err(error) = dropped.or_else(is_gone) {
            tracing::info!(name, %error, "the shadow keeps the index of its key there");
        }
    }
    Ok(())
}

/// Checks that a shadow into which documents were copied still exists: a new one would count as filled.
///
/// # Errors
/// Returns a precondition error if the shadow does not exist; another error if the cluster does not reply.
pub async fn check_exists(cluster: &Endpoint, shadow: &Namespace) -> Result<()> {
    let of = Handle::new(cluster.clone(), shadow.clone());
    if of.definition().await?.is_some() && of.shard_key().await?.is_some() {
        return Ok(());
    }
    Err(Error::precondition(
        format!("the shadow {shadow} is gone, and what was copied into it: it was dropped"),
        "`imago job cancel` gives the job up; then begin anew with `imago reshard run`",
    ))
}

/// Drops the shadow of the job `id`, if it exists, and removes the zones that placed its chunks.
///
/// # Errors
/// Fails if the cluster rejects a command.
#[crate::boxed]
pub async fn remove(cluster: &Endpoint, plan: &Plan, shadow: &Namespace, id: &JobId) -> Result<()> {
    Zones { cluster, ns: shadow, id }.clear(plan).await?;
    cluster.run_at_length(&shadow.db, drop_command(shadow)).await.map(|_| ()).or_else(is_gone)
}

fn drop_command(ns: &Namespace) -> Document {
    doc! {"drop": &ns.coll, "writeConcern": {"w": "majority"}}
}

fn is_gone(error: Error) -> Result<()> {
    match &error {
        Error::Server { cause, .. } if crate::error::code(cause) == Some(26) => Ok(()),
        _ => Err(error),
    }
}

/// Checks that the chunks of the collection `to` are where the plan has them; a server that placed them otherwise
/// must be noticed at once.
async fn check(to: &Handle, plan: &Plan, key: &Document) -> Result<()> {
    let lie = crate::server::shard::chunks(to).await?;
    let mut wanted = Vec::new();
    for chunk in &plan.chunks {
        let min = min_of(chunk.min.as_deref(), key)?;
        wanted.push((min, plan.shards[chunk.shard].clone()));
    }
    if lie == wanted {
        return Ok(());
    }
    Err(Error::precondition(
        format!("the server did not place the chunks of {} as planned", to.ns),
        "something moved or split them meanwhile: `imago reshard` again, with the balancer off",
    ))
}

//! Prepares a copy: reads the source's time T0, and creates the collections, the slices and the horizon.

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::bson::input;
use crate::copy::preflight::{self, Paired, Plan, Planned};
use crate::copy::{Clusters, INSPECTIONS_MAX};
use crate::error::Result;
use crate::replicate::pair::Pair;
use crate::replicate::split_points::cut;
use crate::server::collection::{Definition, Handle};
use crate::server::retention::Suspension;
use crate::server::shard;
use crate::state::leases::{Leases, Slice};

/// Default of the target size of a slice, in bytes of documents: a slice of that size takes a few seconds to copy, so
/// little work is lost if its worker dies.
pub const SLICE_BYTES: u64 = 64 * 1024 * 1024;
/// Most slices into which one collection is cut.
const SLICES_MAX: u64 = 4_096;

/// Creates the collections, the slices and the horizon, and returns T0: the source's cluster time before that, in
/// seconds since 1970, and increment. Every part is idempotent.
pub(crate) async fn prepare(
    clusters: &Clusters,
    plan: &Plan,
    leases: &Leases,
    slice_bytes: u64,
) -> Result<(u32, u32)> {
    let t0 = clusters.source.cluster_time().await?;
    make_all(clusters, plan, &plan.collections).await?;
    // Slices of an attempt that died here are all replaced: no process has leased one.
    leases.remove().await?;
    cut_from(0, clusters, plan, leases, slice_bytes).await?;
    leases.set_horizon(t0).await?;
    Ok((t0.time, t0.increment))
}

/// Moves the horizon, and creates the collections from number `first` on and their slices. These collections joined a
/// job whose other collections are copied. No process reads any of these slices until all of this is done.
pub(crate) async fn prepare_joined(
    first: usize,
    clusters: &Clusters,
    plan: &Plan,
    leases: &Leases,
    slice_bytes: u64,
) -> Result<()> {
    // The bulk of these slices must be read from a state that includes all changes that the job's stream has passed.
    leases.set_horizon(clusters.source.cluster_time().await?).await?;
    make_all(clusters, plan, &plan.collections[first..]).await?;
    leases.remove_from(first).await?;
    cut_from(first, clusters, plan, leases, slice_bytes).await
}

/// Creates at the destination the collections in `all` like the source's, several at a time. Sharded collections are
/// created one by one, since a shard takes part in one chunk migration at a time.
async fn make_all(clusters: &Clusters, plan: &Plan, all: &[Planned]) -> Result<()> {
    let at_once = if plan.shard_key.is_some() { 1 } else { INSPECTIONS_MAX };
    let each: Vec<_> = all.iter().map(|planned| make(clusters, plan, planned)).collect();
    stream::iter(each).buffered(at_once).try_collect().await
}

/// Creates one collection at the destination like the source's, and shards it if the plan has a shard key. Does
/// nothing for a collection that the source no longer has.
async fn make(clusters: &Clusters, plan: &Plan, planned: &Planned) -> Result<()> {
    if planned.gone.is_some() {
        return Ok(());
    }
    let to = Handle::new(clusters.destination.clone(), planned.to.clone());
    let from = Handle::new(clusters.source.clone(), planned.from.clone());
    if to.definition().await?.is_none() {
        let options = preflight::definition_of(&from).await?.options;
        let suspension = Suspension::between(&clusters.source, &clusters.destination);
        to.create(&suspension.options(&options)).await?;
    }
    // An attempt that died may have left a collection, created by this job, only partly split.
    if let Some(key) = &plan.shard_key
        && (planned.creates || to.shard_key().await?.is_none())
    {
        shard::shard(&from, &to, &input::parse_document(key, "the shard key")?).await?;
    }
    Ok(())
}

async fn cut_from(
    first: usize,
    clusters: &Clusters,
    plan: &Plan,
    leases: &Leases,
    slice_bytes: u64,
) -> Result<()> {
    let pairs = preflight::pairs(plan, &clusters.source, &clusters.destination).await?;
    let each = pairs.iter().enumerate().skip(first);
    let each = each.map(|(ns, Paired { pair, definition, .. })| async move {
        let size = plan.collections[ns].size;
        let count = size.bytes / slice_bytes.max(1);
        leases.create(&slices(ns, pair, definition, size.documents, count).await?).await
    });
    let each: Vec<_> = each.collect();
    stream::iter(each).buffered(INSPECTIONS_MAX).try_collect().await
}

async fn slices(
    ns: usize,
    pair: &Pair,
    definition: &Definition,
    documents: u64,
    count: u64,
) -> Result<Vec<Slice>> {
    // A collection is one slice if its `_id`s are not ordered by their bytes, or not ordered at all.
    let is_whole = pair.is_collated || definition.is_capped();
    let wanted = if is_whole { 1 } else { count.clamp(1, SLICES_MAX) };
    let cuts = cut(&pair.source, documents, wanted).await?;
    let bound = |n: usize| cuts.get(n).cloned();
    let slice = |n: usize| Slice { ns, n, min: n.checked_sub(1).and_then(bound), max: bound(n) };
    Ok((0..=cuts.len()).map(slice).collect())
}

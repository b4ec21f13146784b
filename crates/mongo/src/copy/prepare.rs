//! Preparing a copy: T0, the collections, the slices, the horizon.

use crate::bson::input;
use crate::copy::Clusters;
use crate::copy::preflight::{self, Plan, Planned};
use crate::error::{Error, Result};
use crate::replicate::apply::Pair;
use crate::replicate::split_points::cut;
use crate::server::collection::{Definition, Handle};
use crate::server::shard;
use crate::state::leases::{Leases, Slice};

/// Default size of a slice, in bytes: a few seconds' work, of which little is lost.
pub const SLICE_BYTES: u64 = 64 * 1024 * 1024;
const SLICES_MAX: u64 = 4_096;

/// Creates collections, slices and the horizon. Each part may find itself done.
pub(crate) async fn prepare(
    clusters: &Clusters,
    plan: &Plan,
    leases: &Leases,
    slice_bytes: u64,
) -> Result<(u32, u32)> {
    let t0 = clusters.source.cluster_time().await?;
    for planned in &plan.collections {
        make(clusters, plan, planned).await?;
    }
    // Slices of an attempt that died here are replaced as a whole: none was leased.
    leases.remove().await?;
    cut_from(0, clusters, plan, leases, slice_bytes).await?;
    leases.set_horizon(t0).await?;
    Ok((t0.time, t0.increment))
}

/// As [`prepare`], for the collections from number `first` on, which joined a job whose others are
/// copied. Until all of it is done, no process reads any of these slices.
pub(crate) async fn prepare_joined(
    first: usize,
    clusters: &Clusters,
    plan: &Plan,
    leases: &Leases,
    slice_bytes: u64,
) -> Result<()> {
    // Their slices are to be read from a state that holds the changes which the job's stream has
    // passed.
    leases.set_horizon(clusters.source.cluster_time().await?).await?;
    for planned in &plan.collections[first..] {
        make(clusters, plan, planned).await?;
    }
    leases.remove_from(first).await?;
    cut_from(first, clusters, plan, leases, slice_bytes).await
}

/// Creates a collection like the source's.
async fn make(clusters: &Clusters, plan: &Plan, planned: &Planned) -> Result<()> {
    if planned.gone.is_some() {
        return Ok(());
    }
    let to = Handle::new(clusters.destination.clone(), planned.to.clone());
    let from = Handle::new(clusters.source.clone(), planned.from.clone());
    if to.definition().await?.is_none() {
        let definition = from.definition().await?.ok_or_else(|| Error::Disrupted {
            ns: planned.from.to_string(),
            what: "dropped".into(),
        })?;
        to.create(&definition.options).await?;
    }
    // A collection of this job's making may be left half split by an attempt that died.
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
    for (ns, (pair, definition)) in pairs.iter().enumerate().skip(first) {
        let size = plan.collections[ns].size;
        let count = size.bytes / slice_bytes.max(1);
        leases.create(&slices(ns, pair, definition, size.documents, count).await?).await?;
    }
    Ok(())
}

async fn slices(
    ns: usize,
    pair: &Pair,
    definition: &Definition,
    documents: u64,
    count: u64,
) -> Result<Vec<Slice>> {
    // A collection is one slice if its `_id`s are not ordered by their bytes, or not ordered at
    // all.
    let is_whole = pair.is_collated || definition.is_capped();
    let wanted = if is_whole { 1 } else { count.clamp(1, SLICES_MAX) };
    let cuts = cut(&pair.source, documents, wanted).await?;
    let bound = |n: usize| cuts.get(n).cloned();
    let slice = |n: usize| Slice { ns, n, min: n.checked_sub(1).and_then(bound), max: bound(n) };
    Ok((0..=cuts.len()).map(slice).collect())
}

//! Differences between the indexes and options of a job's collections at both sides.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use imago_job::control::Control;

use super::{INSPECTIONS_MAX, retry_transient};
use crate::copy::preflight::{Plan, Planned};
use crate::error::{Error, Result};
use crate::replicate::pair::Pair;
use crate::server::collection::{Definition, Kind};
use crate::server::retention::Suspension;
use crate::server::shard::index_gaps;
use crate::verify::{StructureDifference, index_differences, options_differences};

fn is_collection(definition: &Definition) -> bool {
    definition.kind == Kind::Collection
}

/// The result of comparing the indexes and options of one collection at both sides.
#[derive(Default)]
pub(super) struct Compared {
    /// Indexes of the source that are missing or differ at the destination, and options if the job created the
    /// collection. Further indexes at the destination are its users'.
    pub(super) differing: Vec<StructureDifference>,
    /// The collection's definition at the source; `None` if a side has no such collection.
    source: Option<Definition>,
}

/// Compares a collection's indexes and options at both sides. Returns no differences if a side has no such
/// collection: the stream reports that.
pub(super) async fn differences(
    pair: &Pair,
    planned: &Planned,
    suspension: Suspension,
) -> Result<Compared> {
    let (source, destination) =
        tokio::try_join!(pair.source.definition(), pair.destination.definition())?;
    let (source, destination) = (source.filter(is_collection), destination.filter(is_collection));
    let (Some(source), Some(destination)) = (source, destination) else {
        return Ok(Compared::default());
    };
    let wanted = suspension.applied_to(&source);
    // Retention rules that are in force at the destination would be found as differences, and suspended.
    let mut differing = index_differences(&wanted, &destination);
    differing.retain(|difference| difference.source.is_some());
    if planned.creates {
        differing.extend(options_differences(&wanted, &destination));
    }
    let gaps = index_gaps(&pair.source).await?.into_iter();
    differing.extend(gaps.map(|gap| StructureDifference {
        name: gap.index.clone(),
        source: Some(gap.to_string()),
        destination: None,
    }));
    Ok(Compared { differing, source: Some(source) })
}

/// Returns the numbers of the collections that the job created and that now differ from the source's, or whose
/// definition at the source has changed since this process started.
pub(super) async fn outdated(
    pairs: &[Pair],
    definitions: &[Definition],
    plan: &Plan,
    suspension: Suspension,
    control: &Control,
) -> Result<Vec<usize>> {
    let made = plan.collections.iter().enumerate();
    let made = made.filter(|(_, planned)| planned.creates && planned.gone.is_none());
    let looks = made.map(|(n, planned)| async move {
        let compare = || differences(&pairs[n], planned, suspension);
        let Compared { differing, source } =
            retry_transient("compare both catalogs", control, compare).await?;
        let is_as_begun = source.is_none_or(|source| source == definitions[n]);
        Ok::<_, Error>((n, !is_as_begun || !differing.is_empty()))
    });
    let looks: Vec<_> = looks.collect();
    let looked: Vec<_> = stream::iter(looks).buffered(INSPECTIONS_MAX).try_collect().await?;
    Ok(looked.into_iter().filter(|(_, is_outdated)| *is_outdated).map(|(n, _)| n).collect())
}

/// The result of comparing the catalogs of both sides.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Indexes and options that differ, by the collection's number.
    pub(super) differing: BTreeMap<usize, Vec<StructureDifference>>,
    /// Descriptions of the indexes that are being built at the source. The build of a unique one may fail, and the
    /// source admits writes that violate it meanwhile, so the destination gets an index once the source's is complete.
    pub(super) building: Vec<String>,
}

/// Compares the indexes and options of all collections of a job that are not gone, and returns the differences.
pub(super) async fn all_differences(
    pairs: &[Pair],
    plan: &Plan,
    suspension: Suspension,
) -> Result<Differences> {
    let present = pairs.iter().zip(&plan.collections).enumerate();
    let present = present.filter(|(_, (_, planned))| planned.gone.is_none());
    let looks = present.map(|(n, (pair, planned))| async move {
        Ok::<_, Error>((n, differences(pair, planned, suspension).await?))
    });
    let looks: Vec<_> = looks.collect();
    let mut all = stream::iter(looks).buffer_unordered(INSPECTIONS_MAX);
    let mut differences = Differences::default();
    while let Some((n, Compared { differing, source })) = all.try_next().await? {
        if !differing.is_empty() {
            differences.differing.insert(n, differing);
        }
        let building = source.map(|source| source.building).unwrap_or_default();
        let ns = &pairs[n].source.ns;
        differences.building.extend(building.iter().map(|index| {
            format!("the index {index} of {ns} is being built at the source, and the write block would end that")
        }));
    }
    Ok(differences)
}

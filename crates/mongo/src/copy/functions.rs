//! Stored functions (`system.js`), copied if their collection is named.
//!
//! No change stream reports a system collection. The functions of both sides are therefore compared as a whole: after
//! the indexes are built, at every inspection of the source's catalog, and under the block of a cut-over. They are
//! few and small, and [`BYTES_MAX`] bounds the size of a comparison.
//!
//! Invariants:
//! - A job starts only if the destination has no functions. So each function there was copied by the job, and one that
//!   the source no longer has is deleted.
//! - A cut-over ends only after a comparison under the block found no difference.

use std::collections::BTreeMap;

use bson::{RawDocumentBuf, rawdoc};
use futures_util::TryStreamExt;
use imago_job::run::Run;
use mongodb::options::ReadConcern;

use super::Clusters;
use crate::bson::order::Id;
use crate::copy::preflight::functions::{BYTES_MAX, too_large};
use crate::copy::preflight::{Plan, Planned};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::collection::Handle;
use crate::server::endpoint::{answer, primary};
use crate::server::write::{self, Written};

type Functions = BTreeMap<Id, RawDocumentBuf>;

/// Returns the job's `system.js` collections whose functions differ between both sides, by their names at the source.
///
/// # Errors
/// Fails if a cluster does not reply, or the functions are too large.
pub(super) async fn differing(clusters: &Clusters, plan: &Plan) -> Result<Vec<Namespace>> {
    let mut differing = Vec::new();
    for planned in &plan.functions {
        let (source, destination) = both(clusters, planned).await?;
        if source != destination {
            differing.push(planned.from.clone());
        }
    }
    Ok(differing)
}

/// Makes the job's stored functions at the destination equal to those at the source.
///
/// # Errors
/// Fails if a cluster does not reply or refuses, or the functions are too large.
pub(super) async fn sync_functions(clusters: &Clusters, run: &Run, plan: &Plan) -> Result<()> {
    for planned in &plan.functions {
        let (source, destination) = both(clusters, planned).await?;
        let mut to = Handle::new(clusters.destination.clone(), planned.to.clone());
        to.owner = Some(run.ownership());
        let changed = source.iter().filter(|(id, function)| destination.get(id) != Some(function));
        let updates: Vec<RawDocumentBuf> = changed
            .map(|(id, function)| {
                rawdoc! {"q": {"_id": id.as_raw()}, "u": function.clone(), "upsert": true}
            })
            .collect();
        let deleted = destination.keys().filter(|id| !source.contains_key(id));
        let deletes: Vec<RawDocumentBuf> =
            deleted.map(|id| rawdoc! {"q": {"_id": id.as_raw()}, "limit": 1}).collect();
        done(planned, &write::update(&to, &updates).await?)?;
        done(planned, &write::delete(&to, &deletes).await?)?;
    }
    Ok(())
}

async fn both(clusters: &Clusters, planned: &Planned) -> Result<(Functions, Functions)> {
    let source = Handle::new(clusters.source.clone(), planned.from.clone());
    let destination = Handle::new(clusters.destination.clone(), planned.to.clone());
    Ok((read(&source).await?, read(&destination).await?))
}

/// Reads all stored functions of the collection `from`, at read concern majority. Fails if they exceed [`BYTES_MAX`].
async fn read(from: &Handle) -> Result<Functions> {
    let doing = format!("find of {} on the {}", from.ns, from.endpoint.role());
    let database = from.endpoint.client().database(&from.ns.db);
    let all = database.collection::<RawDocumentBuf>(&from.ns.coll);
    let all =
        all.find(bson::doc! {}).selection_criteria(primary()).read_concern(ReadConcern::majority());
    let read = async {
        let mut cursor = all.await?;
        let (mut functions, mut bytes) = (Vec::new(), 0);
        while let Some(function) = cursor.try_next().await? {
            bytes += function.as_bytes().len();
            functions.push(function);
            if bytes > BYTES_MAX {
                break;
            }
        }
        Ok::<_, mongodb::error::Error>((functions, bytes))
    };
    let (functions, bytes) =
        answer(&doing, read).await?.map_err(|error| Error::server(doing.clone(), error))?;
    if bytes > BYTES_MAX {
        return Err(too_large(&from.ns));
    }
    let entry = |function: RawDocumentBuf| {
        let id = Id::of_document(&function).map_err(|e| Error::malformed(&doing, e))?;
        Ok((id, function))
    };
    functions.into_iter().map(entry).collect()
}

/// Returns a precondition error if the destination refused a function of the collection `planned`, for example
/// because its version does not support it.
fn done(planned: &Planned, written: &Written) -> Result<()> {
    match written.errors.first() {
        None => Ok(()),
        Some(error) => Err(Error::precondition(
            format!(
                "the destination does not take a function of {}: {} (code {})",
                planned.from, error.message, error.code
            ),
            "change or delete the function at the source, then `imago job resume`",
        )),
    }
}

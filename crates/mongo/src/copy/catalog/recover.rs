//! Recovery of a job whose collection was replaced before the change stream reported it.
//!
//! A read of a name that has just become a view fails while the event that reports the change is still on its way. And
//! the stream of a single collection ends when that is dropped, although the same name may exist again: a database
//! that is moved to another primary shard drops each unsharded collection at the old one. In either case the process
//! ends its writes, and starts the job anew from the source's present catalog.
//!
//! Invariant: a job that names one collection continues only if a collection of that name exists, and then copies all
//! of it anew. The copy so far is dropped, and never mixed with the new one.

use imago_job::journal::Journal;
use imago_job::run::Run;

use super::Gone;
use crate::copy::preflight::{Planned, definition_of};
use crate::copy::{Clusters, KIND, plan_with, save_final, state_of};
use crate::error::{Error, Result, code};
use crate::server::collection::Handle;
use crate::state::journal::MongoJournal;

/// Server error codes of a read of a name that is now a view, or does not exist: `NamespaceNotFound`,
/// `CommandNotSupportedOnView`, `OptionNotSupportedOnView`, `InvalidPipelineOperator` (of a read with bounds).
const NOT_A_COLLECTION: [i32; 4] = [26, 166, 167, 168];

/// Returns true if the job, whose run ended with `error`, can be run again at once, because the source's catalog
/// changed. The caller ensures that none of this process's writes is in progress any more.
///
/// # Errors
/// Returns [`Error::Disrupted`] if the cause is a collection without which the job cannot continue; fails if a cluster
/// does not reply, or the job was taken over.
pub(in crate::copy) async fn recover(
    clusters: &Clusters,
    run: &Run,
    error: &Error,
) -> Result<bool> {
    if run.record().kind != KIND {
        return Ok(false);
    }
    let record = MongoJournal::new(clusters.destination.clone()).load(&run.record().id).await?;
    let mut state = state_of(&record)?;
    let plan = plan_with(&record, &state)?;
    let mut present = plan.collections.iter().enumerate().filter(|(_, of)| of.gone.is_none());
    let source = |of: &Planned| Handle::new(clusters.source.clone(), of.from.clone());
    match error {
        Error::Server { cause, .. }
            if code(cause).is_some_and(|c| NOT_A_COLLECTION.contains(&c)) =>
        {
            let mut is_changed = false;
            for (_, of) in present {
                match definition_of(&source(of)).await {
                    Err(disrupted @ Error::Disrupted { .. }) if !plan.is_open(KIND) => {
                        return Err(disrupted);
                    }
                    Err(Error::Disrupted { .. }) => is_changed = true,
                    looked => looked.map(|_| ())?,
                }
            }
            Ok(is_changed)
        }
        Error::Disrupted { ns, what } => {
            let Some((n, of)) = present.find(|(_, of)| of.from.to_string() == *ns) else {
                return Ok(false);
            };
            if !of.creates || plan.no_new || definition_of(&source(of)).await.is_err() {
                return Ok(false);
            }
            run.reporter().decision(
                format!("{ns} is copied anew"),
                format!("it was {what}, and there is a collection of this name again"),
            );
            state.gone.insert(n, Gone { what: what.clone(), is_done: false });
            save_final(run, &state).await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

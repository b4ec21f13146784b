//! Creates a job, and lists the collections into which a destination's jobs copy.

use std::collections::HashSet;

use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::{Limits, Record};

use super::{Clusters, KIND, State, describe_state, plan_of};
use crate::copy::preflight::{Plan, Planned};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::endpoint::Endpoint;
use crate::state::journal::MongoJournal;

/// Persists the record of a new copy job with this plan and these limits, and returns the job's id. Writes nothing
/// else.
///
/// # Errors
/// Fails if another unfinished job copies into one of the plan's collections, or the destination refuses.
#[crate::boxed]
pub async fn create(clusters: &Clusters, plan: &Plan, limits: Limits) -> Result<JobId> {
    let journal = MongoJournal::new(clusters.destination.clone());
    refuse_shared(&journal, plan).await?;
    let spec = serde_json::to_value(plan).map_err(|e| Error::malformed("the plan", e))?;
    let mut record = Record::new(KIND, spec, journal.now_ms().await?);
    record.limits = limits;
    let state = serde_json::to_value(State::default());
    record.checkpoint = state.map_err(|e| Error::malformed("the job's state", e))?;
    journal.create(&record).await?;
    Ok(record.id)
}

/// Returns a precondition error if another unfinished copy job copies into a collection of `plan`: each job would
/// undo the other's writes.
async fn refuse_shared(journal: &MongoJournal, plan: &Plan) -> Result<()> {
    for record in journal.list().await? {
        if record.kind != KIND || record.state.is_final() {
            continue;
        }
        let other = plan_of(&record)?;
        let into = |planned: &&Planned| {
            other.collections.iter().any(|of| of.gone.is_none() && of.to == planned.to)
        };
        if let Some(shared) = plan.collections.iter().find(into) {
            let id = &record.id;
            let now_ms = journal.now_ms().await?;
            let state = describe_state(&record, now_ms);
            return Err(Error::precondition(
                format!("job {id} ({state}) copies into {} already", shared.to),
                format!(
                    "let it go on with `imago job resume {id}`, give it up with `imago job cancel {id}`, \
                     or choose another name with --ns a.b=c.d"
                ),
            ));
        }
    }
    Ok(())
}

/// The collections of a destination into which unfinished copy jobs copy. Their retention rules are suspended.
pub enum FollowedCollections {
    /// The collections, by their names at the destination.
    These(HashSet<Namespace>),
    /// The collections are unknown, because this user may not read the records of jobs.
    Unknown,
}

impl FollowedCollections {
    /// Reads the records of unfinished copy jobs in `destination`, and returns the collections into which they copy.
    ///
    /// # Errors
    /// Fails if the destination does not reply.
    #[crate::boxed]
    pub async fn of(destination: &Endpoint) -> Result<Self> {
        let records = match MongoJournal::new(destination.clone()).list().await {
            Ok(records) => records,
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(_) => return Ok(Self::Unknown),
        };
        let mut all = HashSet::new();
        for record in records.iter().filter(|of| of.kind == KIND && !of.state.is_final()) {
            // A plan that cannot be read is reported when its job is resumed.
            let Ok(plan) = plan_of(record) else { continue };
            let present = plan.collections.into_iter().filter(|of| of.gone.is_none());
            all.extend(present.map(|of| of.to));
        }
        Ok(Self::These(all))
    }

    /// Returns true if a job may have suspended the retention rules of the destination's collection `to`. If the jobs
    /// are unknown, returns true: a suspended rule has no other cause.
    #[must_use]
    pub fn may_be(&self, to: &Namespace) -> bool {
        match self {
            Self::These(all) => all.contains(to),
            Self::Unknown => true,
        }
    }
}

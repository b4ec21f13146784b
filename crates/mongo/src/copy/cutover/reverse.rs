//! The reverse job, which makes the old cluster follow the new one.

use std::collections::BTreeMap;

use imago_job::id::JobId;
use imago_job::journal::{Journal, JournalError, Update};
use imago_job::record::Record;
use imago_job::run::Run;
use imago_job::state::State as JobState;

use super::{Block, Options};
use crate::copy::preflight::Plan;
use crate::copy::{Clusters, CutOver, Job, KIND, ReverseJob, State, plan_of, state_of};
use crate::error::{Error, Result};
use crate::server::retention::Retention;
use crate::state::journal::MongoJournal;
use crate::state::leases::{Leases, Slice};

/// Creates a reverse job of the job `forward`. Its bulk counts as copied, since the old cluster equals the new one as
/// of now. Returns its id. `retention` holds the retention rules of the old cluster's collections, by the
/// collection's number in the reverse job's plan; the reverse job suspends them once it runs.
pub(super) async fn prepare(
    clusters: &Clusters,
    forward: &Run,
    plan: &Plan,
    retention: BTreeMap<usize, Retention>,
    options: &Options,
) -> Result<JobId> {
    let back = reversed(clusters);
    let now = back.source.fence().await?;
    let plan = plan.reversed(&back);
    let journal = MongoJournal::new(back.destination.clone());
    let encoded = |e: serde_json::Error| Error::malformed("the reverse job", e);
    let spec = serde_json::to_value(&plan).map_err(encoded)?;
    let mut record = Record::new(KIND, spec, journal.now_ms().await?);
    let state = State {
        t0: Some((now.time, now.increment)),
        is_indexed: true,
        retention,
        job: Job::WayBack(ReverseJob {
            from: forward.record().id.clone(),
            is_destination_blocked: options.block == Block::UserWrites,
            cut_over: CutOver::default(),
        }),
        ..State::default()
    };
    record.checkpoint = serde_json::to_value(state).map_err(encoded)?;
    record.state = JobState::Planned;
    let leases = Leases::new(back.destination.clone(), record.id.clone(), "cutover".into());
    let slices = (0..plan.collections.len()).map(|ns| Slice { ns, n: 0, min: None, max: None });
    leases.create(&slices.collect::<Vec<_>>()).await?;
    leases.set_horizon(now).await?;
    while let Some(lease) = leases.lease(None, plan.collections.len()).await? {
        leases.copied(&lease, 0, 0, &[]).await?;
    }
    journal.create(&record).await?;
    Ok(record.id)
}

/// Cancels the reverse job `id`, which an attempt at a cut-over created before it failed. No process has worked at
/// it.
pub(super) async fn discard(clusters: &Clusters, id: &JobId) -> Result<()> {
    let journal = MongoJournal::new(reversed(clusters).destination);
    let claimed = match journal.claim(id, "cutover", 0).await {
        Err(JournalError::Final { .. }) => return Ok(()),
        claimed => claimed?,
    };
    journal.save(id, claimed.epoch, &Update::of(JobState::Cancelled)).await?;
    Ok(journal.release(id, claimed.epoch).await?)
}

/// Returns the clusters of the reverse job, given those of the job that was cut over: source and destination swapped.
#[must_use]
pub fn reversed(clusters: &Clusters) -> Clusters {
    Clusters {
        source: clusters.destination.clone().in_role("source"),
        destination: clusters.source.clone().in_role("destination"),
    }
}

/// Returns the id of the reverse job of the job `id`, which was cut over with `--reverse`.
///
/// # Errors
/// Returns a precondition error if the job was cut over without `--reverse`.
#[crate::boxed]
pub async fn reverse_of(clusters: &Clusters, id: &JobId) -> Result<JobId> {
    let record = MongoJournal::new(clusters.destination.clone()).load(id).await?;
    let plan = plan_of(&record)?;
    let back = state_of(&record)?.cut_over_mut().reverse_job.take();
    back.ok_or_else(|| {
        Error::precondition(
            format!("job {id} to {} was not cut over with --reverse", plan.destination),
            "without it the old cluster did not follow the new one, and nothing leads back",
        )
    })
}

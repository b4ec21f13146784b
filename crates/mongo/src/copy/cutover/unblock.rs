//! Lifts the write block that a cut-over left at the source.
//!
//! A write block applies to the whole cluster, and the server does not record its owner. The job does: its record says
//! whether the block that its cut-over set is in force. Any other block (of another job, of an administrator) is
//! lifted only by force, and the result names the overridden owner: if writes are admitted before that owner expects
//! them, acknowledged writes are lost.

use imago_job::id::JobId;
use imago_job::journal::{Journal, Update};
use imago_job::record::Record;
use imago_job::state::State as JobState;
use serde::Serialize;

use crate::copy::cutover::reverse::reversed;
use crate::copy::preflight::check_identity;
use crate::copy::{Clusters, CutOver, SourceBlock, State, owner_timing, plan_of, state_of};
use crate::error::{Error, Result};
use crate::server::block;
use crate::state::journal::MongoJournal;

/// The result of [`unblock`].
#[derive(Clone, Debug, Serialize)]
pub struct Unblocked {
    /// The job whose source was unblocked.
    pub job: JobId,
    /// True if the source still refuses its users' writes. After a successful [`unblock`] it is always false.
    pub is_blocked: bool,
    /// The reason that the write block was not this job's, if it was lifted by force; `None` if it was the job's.
    pub overridden: Option<String>,
}

/// Lifts the write block that the cut-over of the job `id` left at its source; with `is_forced`, any write block
/// there. `process` is the name under which the job is claimed meanwhile.
///
/// # Errors
/// Returns a precondition error if the block is not the job's, or if it is unknown which cluster the clients use;
/// fails if a cluster refuses.
#[crate::boxed]
pub async fn unblock(
    clusters: &Clusters,
    id: &JobId,
    process: &str,
    is_forced: bool,
) -> Result<Unblocked> {
    let journal = MongoJournal::new(clusters.destination.clone());
    let record = journal.load(id).await?;
    check_identity(&plan_of(&record)?, &clusters.source, &clusters.destination)?;
    let state = state_of(&record)?;
    state.refuse_undecided(id)?;
    let overridden = refusal_reason(clusters, &record, &state).await?;
    if let Some(why) = overridden.as_ref().filter(|_| !is_forced) {
        return Err(Error::precondition(
            why.clone(),
            "leave the block to its owner: if it is lifted too early, acknowledged writes can be \
             lost; `--force` lifts it all the same",
        ));
    }
    if record.state.is_final() {
        block::lift(&clusters.source).await?;
        if state.cut_over().is_some_and(|cut_over| cut_over.block == SourceBlock::Left) {
            journal.amend(id, &encoded(&state.with_block_lifted())?).await?;
        }
    } else {
        // The claim ensures that no process cuts the job over while the block is lifted.
        let stale_after_ms =
            u64::try_from(owner_timing().stale_after.as_millis()).unwrap_or(u64::MAX);
        let claimed = journal.claim(id, process, stale_after_ms).await?;
        let lifted = block::lift(&clusters.source).await;
        if lifted.is_ok() && state.cut_over().is_some_and(CutOver::is_blocked) {
            let checkpoint = Some(encoded(&state.with_block_lifted())?);
            let update = Update { checkpoint, ..Update::default() };
            journal.save(id, claimed.epoch, &update).await?;
        }
        journal.release(id, claimed.epoch).await?;
        lifted?;
    }
    Ok(Unblocked { job: id.clone(), is_blocked: false, overridden })
}

/// Returns the reason that a write block at the source is not this job's to lift, or `None` if it is.
async fn refusal_reason(
    clusters: &Clusters,
    record: &Record,
    state: &State,
) -> Result<Option<String>> {
    let (id, source) = (&record.id, clusters.source.redacted());
    let Some(cut_over) = state.cut_over() else {
        return Ok(Some(format!("job {id} is a {}, which lifts its block by itself", record.kind)));
    };
    if cut_over.block == SourceBlock::None {
        let stands = match block::is_set(&clusters.source).await? {
            Some(true) => "the block that is set there is not this job's",
            Some(false) => "no block is set there",
            None => "this user may not see whether a block is set there",
        };
        return Ok(Some(format!("job {id} has left no write block at {source}: {stands}")));
    }
    let Some(back) = &cut_over.reverse_job else { return Ok(None) };
    let back = MongoJournal::new(reversed(clusters).destination).load(back).await?;
    Ok((back.state != JobState::Cancelled).then(|| {
        format!(
            "the write block at {source} belongs to job {} now, which leads back and is {}",
            back.id,
            back.state.word()
        )
    }))
}

fn encoded(state: &State) -> Result<serde_json::Value> {
    serde_json::to_value(state).map_err(|e| Error::malformed("the job's state", e))
}

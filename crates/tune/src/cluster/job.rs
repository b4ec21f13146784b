//! A job that changes the configuration of a cluster: its claim by a process, the lock on the cluster, and its end.
//!
//! Invariants:
//! - A process acquires and releases the lock only while it holds the claim, so that no process works without the lock.
//! - A job that another process may resume keeps the lock.

use std::sync::Arc;

use imago_job::control::Stop;
use imago_job::id::JobId;
use imago_job::journal::{Journal, Update};
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_job::run::{Ending, OwnerTiming, Run};
use imago_job::state::State;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;

use super::error::{Error, Result, chain};

/// An action that a job has taken on the cluster, such as the stop of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Start of the action, in milliseconds since the Unix epoch: for Cassandra by the clock of the node that stored
    /// it, for Redis by the clock of the job's process.
    pub at_ms: i64,
    /// Description of the action, with the node or table that it concerns.
    pub what: String,
    /// Reason why the job takes the action.
    pub why: String,
}

/// The lock on a cluster's configuration, which one job at a time holds.
pub(crate) trait Lock {
    /// Help text of the warning that the lock could not be released: how the lock ends by itself.
    const IF_LEFT: &'static str;

    /// Acquires the lock on the configuration for this job; the error names the other job that holds the lock.
    async fn take(&self, job: &JobId) -> Result<()>;

    /// Releases the lock on the configuration if this job holds it.
    async fn give_up(&self, job: &JobId) -> Result<()>;
}

/// A job, and the process that is to execute it.
pub(crate) struct Job<'a> {
    /// Store of the job's record.
    pub(crate) journal: Arc<dyn Journal>,
    /// ID of the job, whose record exists already.
    pub(crate) id: &'a JobId,
    /// Name of the process that claims the job.
    pub(crate) process: &'a str,
    /// Receiver of the job's events.
    pub(crate) events: &'a Events,
    /// Token whose cancellation interrupts the job; another process may then resume it.
    pub(crate) interrupted: CancellationToken,
    /// True if no part of the job has been executed yet.
    pub(crate) is_new: bool,
}

impl Job<'_> {
    /// Claims the job, executes `work` under the lock, and records how the job ended.
    pub(crate) async fn work<T, L: Lock>(
        self,
        lock: &L,
        work: impl AsyncFnOnce(&Run) -> Result<T>,
    ) -> Result<T> {
        let Self { journal, id, process, events, interrupted, is_new } = self;
        let timing = OwnerTiming::default();
        let run = Run::begin(journal, id, process, timing, events, interrupted).await?;
        if let Err(refusal) = lock.take(id).await {
            let stop = if is_new { Stop::Cancelled } else { Stop::Interrupted };
            run.end(Ending::Stopped(stop)).await?;
            return Err(refusal);
        }
        let worked = work(&run).await;
        let ending = match &worked {
            Ok(_) => Ending::Done,
            Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
            Err(error) => Ending::Failed(chain(error)),
        };
        let goes_on = matches!(
            ending,
            Ending::Stopped(
                Stop::Interrupted | Stop::HandedOver | Stop::TakenOver(_) | Stop::JournalLost(_)
            )
        );
        if !goes_on && let Err(error) = lock.give_up(id).await {
            run.reporter().warning("lock", chain(&error), L::IF_LEFT);
        }
        match (worked, run.end(ending).await) {
            (Ok(outcome), ended) => ended.map(|()| outcome).map_err(Error::from),
            (Err(error), ended) => {
                // The error of the nodes is more important than that of the journal.
                if let Err(unsaved) = ended {
                    let help = "the job is still in the journal as it was";
                    run.reporter().warning("journal", chain(&unsaved), help);
                }
                Err(error)
            }
        }
    }
}

/// Returns true if the job of this record still needs its lock on the configuration. A failed job releases the lock,
/// and acquires it again when it resumes.
pub(crate) fn needs_lock(record: &Record) -> bool {
    !record.state.is_final() && !matches!(record.state, State::Failed { .. })
}

/// Decodes the checkpoint `saved` in a job's record, from which a process resumes the job; the default if there is
/// none yet.
pub(crate) fn checkpoint<C: DeserializeOwned + Default>(saved: &Json) -> Result<C> {
    if saved.is_null() {
        return Ok(C::default());
    }
    serde_json::from_value(saved.clone())
        .map_err(|error| Error::Usage(format!("the job's state cannot be read: {error}")))
}

/// Cancels a job that no process executes any more, unless `leaves_nodes` finds in the job's checkpoint that nodes
/// must be restored first: then the job has to be resumed. Returns true if the job has ended.
pub(crate) async fn cancel(
    journal: &dyn Journal,
    lock: &impl Lock,
    id: &JobId,
    process: &str,
    leaves_nodes: impl FnOnce(&Json) -> Result<bool>,
) -> Result<bool> {
    let stale_after = OwnerTiming::default().stale_after.as_millis();
    let stale_after_ms = u64::try_from(stale_after).unwrap_or(u64::MAX);
    let Ok(claimed) = journal.claim(id, process, stale_after_ms).await else { return Ok(false) };
    let leaves_nodes = leaves_nodes(&claimed.record.checkpoint)?;
    if !leaves_nodes {
        let cancelled = Update { state: Some(State::Cancelled), ..Update::default() };
        journal.save(id, claimed.epoch, &cancelled).await?;
        lock.give_up(id).await?;
    }
    journal.release(id, claimed.epoch).await?;
    Ok(!leaves_nodes)
}

//! Claiming a job, and taking it over.
//!
//! At most one process coordinates a job at a time. MongoDB offers no fencing token that stops a late write of a
//! replaced process, so time is the fence. A coordinator sends no write later than [`OWNED_WRITE_WITHIN`] after it
//! sent the last heartbeat that the journal acknowledged; the server ends each write after [`WRITE_TIME_MAX`]; and a
//! job is claimed only after its owner was silent for longer than both together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_job::id::JobId;
use imago_job::journal::{Journal, JournalError, Request};
use imago_job::record::{Record, Requested};
use imago_job::reporter::Events;
use imago_job::run::{OwnerTiming, Run, RunError};
use imago_job::state::State;
use tokio_util::sync::CancellationToken;

use super::Clusters;
use crate::error::Result;
use crate::server::timing::{OWNED_WRITE_WITHIN, WRITE_TIME_MAX};
use crate::state::journal::MongoJournal;

/// Time since the last heartbeat of a job's owner after which another process may claim the job.
const STALE_AFTER: Duration = Duration::from_secs(20);
const _: () =
    assert!(OWNED_WRITE_WITHIN.as_secs() + WRITE_TIME_MAX.as_secs() + 4 <= STALE_AFTER.as_secs());
/// Longest time that [`take_over`] waits for the job's owner to hand the job over.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(30);
/// Interval between reads of the owner's heartbeat from the job's record.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Returns the interval of a coordinator's heartbeats, and the time without one after which it loses its job.
#[must_use]
pub fn owner_timing() -> OwnerTiming {
    OwnerTiming { stale_after: STALE_AFTER, ..OwnerTiming::default() }
}

/// Claims the job `id` under the name `process`, and returns this process's run of it. If the job's owner has died,
/// waits until the owner's last write must have ended.
///
/// # Errors
/// Fails if another process is working at the job, or the destination does not reply.
#[crate::boxed]
pub async fn claim(
    clusters: &Clusters,
    id: &JobId,
    process: &str,
    events: &Events,
    interrupted: &CancellationToken,
) -> Result<Run> {
    let journal: Arc<dyn Journal> = Arc::new(MongoJournal::new(clusters.destination.clone()));
    let beat = last_beat(&journal.load(id).await?);
    let deadline = Instant::now() + STALE_AFTER + Duration::from_secs(3);
    loop {
        let (journal, cancel) = (Arc::clone(&journal), interrupted.clone());
        let again = Arc::clone(&journal);
        match Run::begin(journal, id, process, owner_timing(), events, cancel).await {
            Ok(run) => return Ok(run),
            Err(RunError::Journal(owned @ JournalError::Owned { .. })) => {
                // An owner that still sends heartbeats is alive, so there is no wait for it.
                if last_beat(&again.load(id).await?) != beat || Instant::now() > deadline {
                    return Err(owned.into());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Requests that the owner of the job `id` hand it over, waits for that, and claims the job as [`claim`] does.
///
/// # Errors
/// Fails if the owner neither hands the job over nor falls silent.
#[crate::boxed]
pub async fn take_over(
    clusters: &Clusters,
    id: &JobId,
    process: &str,
    events: &Events,
    interrupted: &CancellationToken,
) -> Result<Run> {
    let journal = MongoJournal::new(clusters.destination.clone());
    let record = journal.load(id).await?;
    if record.owner.is_some() {
        journal.request(id, &Request::Control(Requested::HandOver)).await?;
        let deadline = Instant::now() + HAND_OVER_WITHIN;
        let (mut beat, mut heard) = (last_beat(&record), Instant::now());
        // An owner that has died is silent. `claim` waits long enough for it.
        while Instant::now() < deadline && heard.elapsed() < SILENT_AFTER {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = last_beat(&journal.load(id).await?);
            if now.is_none() {
                break;
            }
            if now != beat {
                (beat, heard) = (now, Instant::now());
            }
        }
    }
    claim(clusters, id, process, events, interrupted).await
}

/// Time without a new heartbeat after which [`take_over`] assumes that the owner is dead: a living owner sends
/// several heartbeats in that time.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Returns the time of the owner's last heartbeat, in ms since 1970 by the journal's clock; `None` without an owner.
fn last_beat(record: &Record) -> Option<u64> {
    record.owner.as_ref().map(|owner| owner.heartbeat_at_ms)
}

/// Returns the state of a job in words. A record says that the job is running until a process changes it, so the
/// owner's silence is reported too. `now_ms` is the time in ms since 1970, by the clock of the cluster that holds the
/// record.
#[must_use]
pub fn describe_state(record: &Record, now_ms: u64) -> String {
    let silent_ms =
        { record.owner.as_ref() }.map(|owner| now_ms.saturating_sub(owner.heartbeat_at_ms));
    let is_worked_at = silent_ms.is_some_and(|ms| u128::from(ms) < STALE_AFTER.as_millis());
    let state = &record.state;
    match state {
        State::Running { .. } if !is_worked_at => {
            let since_ms =
                record.owner.as_ref().map_or(record.updated_at_ms, |o| o.heartbeat_at_ms);
            let since_s = now_ms.saturating_sub(since_ms) / 1_000;
            format!("{state}, but no process has worked at it for {since_s} s")
        }
        _ => state.to_string(),
    }
}

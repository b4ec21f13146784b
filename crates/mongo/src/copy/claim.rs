//! Claiming a job, and taking it over.
//!
//! One process leads a job at a time. MongoDB offers no fence against a late write of a process that
//! was replaced, so time is the fence: a coordinator sends no write later than [`OWNED_WRITE_WITHIN`]
//! after it sent the last sign of life that the journal acknowledged, each write ends at the server
//! after [`WRITE_TIME_MAX`], and a job is claimed only when its owner has been silent for longer than
//! both together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_job::id::JobId;
use imago_job::journal::{Journal, JournalError, Request};
use imago_job::record::{Record, Requested};
use imago_job::reporter::Events;
use imago_job::run::{OwnerTiming, Run, RunError};
use tokio_util::sync::CancellationToken;

use super::Clusters;
use crate::error::Result;
use crate::server::timing::{OWNED_WRITE_WITHIN, WRITE_TIME_MAX};
use crate::state::journal::MongoJournal;

const STALE_AFTER: Duration = Duration::from_secs(20);
const _: () =
    assert!(OWNED_WRITE_WITHIN.as_secs() + WRITE_TIME_MAX.as_secs() + 4 <= STALE_AFTER.as_secs());
const HAND_OVER_WITHIN: Duration = Duration::from_secs(30);
/// Between looks at an owner.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The interval of a coordinator's heartbeats, and the silence after which it loses its job.
#[must_use]
pub fn owner_timing() -> OwnerTiming {
    OwnerTiming { stale_after: STALE_AFTER, ..OwnerTiming::default() }
}

/// Claims a job. An owner that died is waited for until its last write has certainly ended.
///
/// # Errors
/// Fails if another process is at work, or the destination does not answer.
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
                // An owner that still beats is alive: it is not waited for.
                if last_beat(&again.load(id).await?) != beat || Instant::now() > deadline {
                    return Err(owned.into());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Asks the job's coordinator to let go of it, and claims it.
///
/// # Errors
/// Fails if the owner neither lets go nor falls silent.
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
        // One that has died is silent: `claim` knows how long to wait for it.
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

/// A living owner beats several times within it.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Time of the owner's last heartbeat, in ms by the journal's clock; nothing without an owner.
fn last_beat(record: &Record) -> Option<u64> {
    record.owner.as_ref().map(|owner| owner.heartbeat_at_ms)
}

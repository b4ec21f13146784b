//! Ends an attempt at a cut-over that failed: the write blocks of both clusters become what they were before it.
//!
//! Invariants:
//! - The source's block is lifted at once while this process certainly owns the job, whether or not the destination,
//!   which has the job's record, can be reached. Later it is lifted only after the record has confirmed the ownership:
//!   another process may own the job by then, and rely on a block of its own.
//! - A block that could not be lifted is reported with its remedy, and remains in the record, so that the job's next
//!   process lifts it.

use std::convert::Infallible;
use std::time::Duration;

use imago_job::control::{Control, Stop};
use imago_job::journal::JournalError;
use imago_job::retry::retry;
use imago_job::run::Run;

use crate::copy::{self, Clusters, CopyJob, SourceBlock};
use crate::error::{Error, Result};
use crate::server::block;
use crate::server::timing::{OWNED_WRITE_WITHIN, PATIENCE};

/// Age of the last confirmation of the ownership, after three missed heartbeats, that counts as a silent destination.
const SILENT_AFTER: Duration = Duration::from_millis(3_500);
/// Time that a silent destination has for a heartbeat. A process that was suspended must not give up before its
/// first heartbeat.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// Interval between two checks of the age.
const CHECK_EVERY: Duration = Duration::from_millis(200);

const _: () = assert!(
    SILENT_AFTER.as_millis() + HEARD_WITHIN.as_millis() + 2 * CHECK_EVERY.as_millis()
        < OWNED_WRITE_WITHIN.as_millis(),
    "a silent destination is noticed while this process certainly owns the job"
);

/// Waits until the destination no longer confirms that this process owns the job of `run`, and returns the error that
/// ends the attempt while the write block can still be lifted without the destination.
///
/// # Errors
/// Returns a precondition error that names the destination.
pub(super) async fn until_silent(clusters: &Clusters, run: &Run) -> Result<Infallible> {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if run.ownership().age() > SILENT_AFTER {
            tokio::time::sleep(HEARD_WITHIN).await;
            let age = run.ownership().age();
            if age > SILENT_AFTER {
                return Err(Error::precondition(
                    format!(
                        "{} has acknowledged no write for {} ms",
                        clusters.destination.redacted(),
                        age.as_millis()
                    ),
                    "the write block is not kept for a destination that may have lost its majority: \
                     see to its members, then try again",
                ));
            }
        }
    }
}

/// Restores the write blocks of both clusters as they were before an attempt that failed, and saves that in the job's
/// record. If the job has a new owner, that owner does it. What fails is reported with its remedy: the caller's error
/// says why the attempt failed.
pub(super) async fn give_up_attempt(clusters: &Clusters, run: &Run, copying: &mut CopyJob<'_>) {
    let mut block = SourceBlock::None;
    if copying.state.cut_over_mut().is_blocked()
        && let Err(error) = lift_as_owner(clusters, run, copying).await
    {
        if is_taken_over(&error) {
            tracing::warn!(%error, "the write block is left to the job's new owner");
            return;
        }
        let id = &run.record().id;
        let help = format!(
            "once both clusters acknowledge writes: `imago cutover {id} --unblock`, or `imago job \
             resume {id}`; without the destination: db.adminCommand({{setUserWriteBlockMode: 1, \
             global: false}}) at the source"
        );
        report_left(clusters, run, &error, help);
        block = copying.state.cut_over_mut().block;
    }
    if copying.state.is_destination_blocked()
        && let Err(error) = block::set(&clusters.destination).await
    {
        run.reporter().warning(
            "block_missing",
            format!(
                "{} admits its users' writes, which a later step would overwrite: {error}",
                clusters.destination.redacted()
            ),
            format!("`imago job resume {}` blocks them again", run.record().id),
        );
    }
    copying.state.cut_over_mut().end_attempt(block);
    if let Err(error) = copy::save_final(run, &copying.state).await {
        run.reporter().warning(
            "not_recorded",
            format!("the job's record does not say that this cut-over has ended: {error}"),
            format!(
                "once {} acknowledges writes: `imago job status {}` says how to go on",
                clusters.destination.redacted(),
                run.record().id
            ),
        );
    }
}

/// Lifts the write block at the source; each attempt is made only while no other process can own the job.
async fn lift_as_owner(clusters: &Clusters, run: &Run, copying: &CopyJob<'_>) -> Result<()> {
    let state = &copying.state;
    retry("lift the write block", &PATIENCE, &Control::default(), Error::is_transient, |_| async {
        if run.ownership().age() > OWNED_WRITE_WITHIN {
            // The save confirms the ownership.
            copy::save_final(run, state).await?;
        }
        block::lift_once(&clusters.source).await
    })
    .await
    .map_err(Error::from)
}

fn is_taken_over(error: &Error) -> bool {
    matches!(
        error,
        Error::Journal(JournalError::Fenced { .. }) | Error::Stopped(Stop::TakenOver(_))
    )
}

/// Reports that the write block at the source could not be lifted because of `error`, with what to do.
pub(super) fn report_left(clusters: &Clusters, run: &Run, error: &Error, help: String) {
    run.reporter().warning(
        "block_may_stand",
        format!("writes may still be blocked at {}: {error}", clusters.source.redacted()),
        help,
    );
}

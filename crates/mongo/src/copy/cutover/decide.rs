//! Records which cluster the clients use, after a cut-over that died while its hook ran.
//!
//! Only an operator can determine that. Until then the job does not resume, and the block stays.

use imago_job::clock::now_ms;
use imago_job::control::Stop;
use imago_job::id::JobId;
use imago_job::run::{Ending, Run};

use crate::copy::{self, Clusters, SourceBlock, state_of};
use crate::error::{Error, Result};
use crate::server::block;

/// The cluster that the clients use, after a cut-over that died while its hook ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientsAt {
    /// The cluster that they used before the cut-over.
    Source,
    /// The cluster to which the hook was to move them.
    Destination,
}

/// Records which cluster the clients use, for a job whose cut-over died while its hook ran. If it is the source, the
/// write block is lifted and the job can be resumed. If it is the destination, the job is done, and the write block
/// stays. Returns the reverse job, if the clients are at the destination and there is one.
///
/// # Errors
/// Returns a precondition error if no cut-over of the job died while its hook ran; fails if a cluster refuses.
#[crate::boxed]
pub async fn decide(clusters: &Clusters, run: Run, clients: ClientsAt) -> Result<Option<JobId>> {
    let decided = decided(clusters, &run, clients).await;
    let ending = match (&decided, clients) {
        (Ok(_), ClientsAt::Destination) => Ending::Done,
        _ => Ending::Stopped(Stop::Interrupted),
    };
    run.end(ending).await?;
    decided
}

async fn decided(clusters: &Clusters, run: &Run, clients: ClientsAt) -> Result<Option<JobId>> {
    let mut state = state_of(run.record())?;
    if !state.cut_over_mut().hook_begun {
        return Err(Error::precondition(
            format!("no cut-over of job {} died while its hook ran", run.record().id),
            "leave out --clients-at",
        ));
    }
    run.enter("cut-over").await?;
    let is_blocked = state.cut_over_mut().is_blocked();
    match clients {
        ClientsAt::Source if is_blocked => {
            block::lift(&clusters.source).await?;
            state.cut_over_mut().count_block(now_ms());
        }
        ClientsAt::Source => {}
        ClientsAt::Destination => {
            copy::restore_retention(&clusters.destination, run.record(), run.reporter()).await?;
            if state.is_destination_blocked() {
                block::lift(&clusters.destination).await?;
            }
            state.unblock_destination();
            if is_blocked {
                state.cut_over_mut().block = SourceBlock::Left;
            }
        }
    }
    state.cut_over_mut().hook_begun = false;
    copy::save(run, &state).await?;
    let reverse_job = state.cut_over_mut().reverse_job.take();
    Ok(reverse_job.filter(|_| clients == ClientsAt::Destination))
}

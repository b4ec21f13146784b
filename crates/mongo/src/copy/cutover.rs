//! Cutting over: the moment when clients move to the copy.
//!
//! 1. Take the job over from its coordinator, and catch up.
//! 2. Say whether it may be cut over: bulk, indexes, options, lag, and a random sample of documents.
//! 3. Block writes at the source, where it can.
//! 4. Drain: make the destination the source at exactly one time behind the block.
//! 5. Compare the documents of the last changes once more.
//! 6. Run the hook, which moves the clients. Then the job is done; nothing is applied any more.
//!
//! Invariants:
//! - Before anything is blocked, the record says so: the next process of the job lifts the block
//!   first. If steps 4–6 fail or take too long, the block is lifted and the job can go on. A block
//!   that the job did not set is left alone.
//! - Once the hook has begun, nothing of the source is applied to the destination: not by this
//!   process, and if it dies, by no other until an operator has said where the clients are.
//! - With `reverse`, the old cluster follows the new one from a time before the hook, so that going
//!   back loses nothing that was written since.

use std::time::{Duration, Instant};

use bson::Timestamp;
use imago_job::clock::now_ms;
use imago_job::event::Body;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::reporter::Events;
use imago_job::run::{Ending, Run};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::copy::{
    self, CatalogChanges, Clusters, Copying, SLICE_BYTES, SourceBlock, State, Until, complete,
    state_of,
};
use crate::error::{Error, Result};
use crate::server::block::{self, Blocker};
use crate::state::journal::MongoJournal;
use crate::verify::Mode;

pub(crate) mod check;
mod decide;
mod reverse;
mod unblock;

pub use decide::{ClientsAt, decide};
pub use reverse::{reverse_of, reversed};
pub use unblock::{Unblocked, unblock};

/// The way in which writes to the source are blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// By the server, for every user without `bypassWriteBlockingMode`.
    UserWrites,
    /// Not at all: the operator has stopped the writers.
    None,
}

/// The options of a cut-over.
#[derive(Clone, Debug)]
pub struct Options {
    /// The way in which writes to the source are blocked.
    pub block: Block,
    /// The old cluster shall follow the new one.
    pub reverse: bool,
    /// The block stays after the hook.
    pub keep_block: bool,
    /// Longest time of the drain, the last comparison and the hook together.
    pub block_max: Duration,
    /// Most documents of the last changes to compare under the block.
    pub last_changes: usize,
    /// Documents to compare before the block.
    pub sample: u64,
    /// Collections that the source got since the job was planned may be left behind.
    pub ignore_new: bool,
}

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// From the block, or with none the drain, until the hook had ended, in ms; with the blocks of
    /// attempts that died, until these were lifted.
    pub write_block_ms: u64,
    /// The drain alone, in ms.
    pub drain_ms: u64,
    /// Documents of the last changes that were compared under the block.
    pub last_verified: u64,
    /// Documents that were compared before it.
    pub sampled: u64,
    /// The job that makes the old cluster follow the new one.
    pub reverse_job: Option<JobId>,
    /// True while the source still refuses writes.
    pub is_blocked: bool,
    /// Collections that joined the job since it was planned, and that are gone.
    #[serde(flatten)]
    pub catalog: CatalogChanges,
}

/// Attempts at a cut-over while the source gets and loses collections.
const ATTEMPTS_MAX: u32 = 3;
/// Slices of the collections that joined last that are copied at the same time.
const WORKERS: usize = 4;
/// The drain must not wait for a change that the block keeps from coming.
const AWAIT_MAX: Duration = Duration::from_millis(20);

/// Checks whether the job may be cut over at all, then takes it over from its coordinator.
///
/// # Errors
/// A precondition that is known without disturbing the coordinator; as [`copy::take_over`].
pub async fn take_over(
    clusters: &Clusters,
    id: &JobId,
    options: &Options,
    process: &str,
    events: &Events,
    interrupted: &CancellationToken,
) -> Result<Run> {
    let record = MongoJournal::new(clusters.destination.clone()).load(id).await?;
    check::before(clusters, &record, options).await?;
    copy::take_over(clusters, id, process, events, interrupted).await
}

/// Cuts a claimed job over. `hook` moves the clients.
///
/// # Errors
/// A precondition with every obstacle; an error on the way, with the block lifted.
pub async fn cutover(
    clusters: &Clusters,
    run: Run,
    process: &str,
    options: &Options,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Outcome> {
    let copy_options = copy::Options {
        workers: WORKERS,
        until: Until::HandedOver,
        process: process.to_owned(),
        await_max: AWAIT_MAX,
        slice_bytes: SLICE_BYTES,
        route: None,
    };
    let ended = stages(clusters, &run, &copy_options, options, hook).await;
    if ended.is_err() {
        let id = &run.record().id;
        run.reporter().warning(
            "not_cut_over",
            format!("no process follows the source by job {id} now"),
            format!("`imago job resume {id}`, or `imago cutover {id}` again"),
        );
    }
    let ending = match &ended {
        Ok(_) => Ending::Done,
        Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
        // It goes on following when it is resumed: a cut-over that may not be is no failed job.
        Err(_) => Ending::Stopped(imago_job::control::Stop::Interrupted),
    };
    run.end(ending).await?;
    ended
}

async fn stages(
    clusters: &Clusters,
    run: &Run,
    copy_options: &copy::Options,
    options: &Options,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Outcome> {
    check::before(clusters, run.record(), options).await?;
    let mut state = state_of(run.record())?;
    let mut hook = Some(hook);
    for attempt in 1.. {
        let mut copying = Box::pin(complete(clusters, run, copy_options, state)).await?;
        match steps(clusters, run, &mut copying, options, &mut hook).await {
            Err(Error::CatalogChanged { .. }) if attempt < ATTEMPTS_MAX => {
                run.reporter().decision(
                    format!("cut-over is tried again, attempt {} of {ATTEMPTS_MAX}", attempt + 1),
                    "the source got or lost a collection while writes were being blocked"
                        .to_owned(),
                );
                state = copying.end().await?;
            }
            Err(error) => {
                copying.quiesce().await;
                return Err(error);
            }
            outcome => return outcome,
        }
    }
    unreachable!("the last attempt returns")
}

async fn steps(
    clusters: &Clusters,
    run: &Run,
    copying: &mut Copying<'_>,
    options: &Options,
    hook: &mut Option<impl AsyncFnOnce() -> std::result::Result<(), String>>,
) -> Result<Outcome> {
    run.enter("catch-up").await?;
    copying.come_near(options.block_max).await?;
    run.enter("check").await?;
    let sampled = check::check(copying, &Mode::Sample(options.sample), None).await?;
    copying.come_near(options.block_max).await?;
    run.enter("cut-over").await?;
    record_block(clusters, copying, options).await?;
    let blocker = Blocker::reach(&clusters.source).await;
    let blocked = Instant::now();
    // Never dropped half-way: a block that comes after it was lifted would stay.
    let set = match options.block {
        Block::UserWrites => blocker.set().await,
        Block::None => Ok(()),
    };
    let behind = async {
        set?;
        behind_block(clusters, run, copying, options, hook).await
    };
    let left = options.block_max.saturating_sub(blocked.elapsed());
    let done = match tokio::time::timeout(left, behind).await {
        Ok(done) => done,
        Err(_) => Err(Error::precondition(
            format!("the cut-over was not done within {} ms", options.block_max.as_millis()),
            "the block is lifted and clients are still at the source, unless the hook had moved \
             them: look at the hook, then try again, with a larger --max-block-ms if need be",
        )),
    };
    match done {
        Ok(done) => {
            let block_ms = copying.state.cut_over_mut().blocked_before_ms + ms(blocked);
            conclude(clusters, run, copying, options, block_ms, sampled, done).await
        }
        Err(error) => {
            give_up_attempt(clusters, run, copying).await?;
            Err(error)
        }
    }
}

/// Records that a block may stand from now on. A block that stands already is not the job's, and stays in
/// any case.
async fn record_block(
    clusters: &Clusters,
    copying: &mut Copying<'_>,
    options: &Options,
) -> Result<()> {
    if options.block == Block::None {
        return Ok(());
    }
    if block::is_set(&clusters.source).await? != Some(true) {
        copying.state.cut_over_mut().block = SourceBlock::MayStand { since_ms: Some(now_ms()) };
    }
    copying.save().await
}

/// Restores the blocks as they were before an attempt that failed. A new owner of the job does that itself:
/// lifting the block here would admit writes in its cut-over.
async fn give_up_attempt(clusters: &Clusters, run: &Run, copying: &mut Copying<'_>) -> Result<()> {
    if let Err(lost) = copy::save_at_last(run, &copying.state).await {
        tracing::warn!(%lost, "the write block is left to the next process of the job");
        return Ok(());
    }
    if copying.state.cut_over_mut().is_blocked() {
        block::lift(&clusters.source).await?;
    }
    if copying.state.is_destination_blocked() {
        block::set(&clusters.destination).await?;
    }
    copying.state.cut_over_mut().end_attempt(SourceBlock::None);
    copy::save_at_last(run, &copying.state).await
}

/// Lifts the block, or leaves it to the operator, and records the end of the job.
async fn conclude(
    clusters: &Clusters,
    run: &Run,
    copying: &mut Copying<'_>,
    options: &Options,
    block_ms: u64,
    sampled: u64,
    done: Behind,
) -> Result<Outcome> {
    run.reporter().emit(Body::Measurement {
        name: "write_block_ms".into(),
        value: f64::from(u32::try_from(block_ms).unwrap_or(u32::MAX)),
        unit: "ms".into(),
    });
    let is_blocked = copying.state.cut_over_mut().is_blocked();
    let lifts = is_blocked && !options.keep_block && !options.reverse;
    if lifts {
        block::lift(&clusters.source).await?;
    }
    let is_left = is_blocked && !lifts;
    let block = if is_left { SourceBlock::Left } else { SourceBlock::None };
    copying.state.cut_over_mut().end_attempt(block);
    copying.state.unblock_destination();
    copy::save_at_last(run, &copying.state).await?;
    Ok(Outcome {
        job: run.record().id.clone(),
        write_block_ms: block_ms,
        drain_ms: done.drain_ms,
        last_verified: done.last_verified,
        sampled,
        reverse_job: done.reverse_job,
        is_blocked: options.block == Block::UserWrites && !lifts,
        catalog: CatalogChanges::with(run.record(), &copying.state)?,
    })
}

struct Behind {
    drain_ms: u64,
    last_verified: u64,
    reverse_job: Option<JobId>,
}

async fn behind_block(
    clusters: &Clusters,
    run: &Run,
    copying: &mut Copying<'_>,
    options: &Options,
    hook: &mut Option<impl AsyncFnOnce() -> std::result::Result<(), String>>,
) -> Result<Behind> {
    let drained = Instant::now();
    let at = copying.coordinator.settle().await?;
    let drain_ms = ms(drained);
    let last_verified = check::last_look(run, copying, options.last_changes).await?;
    if copying.coordinator.has_structure() {
        return Err(Error::precondition(
            "indexes or options of the source changed while writes were being blocked",
            "try again: the job follows them first",
        ));
    }
    if copying.coordinator.has_ended() || !check::has_all(clusters, &copying.plan, options).await? {
        return Err(Error::CatalogChanged { job: run.record().id.clone() });
    }
    if options.block == Block::UserWrites && block::is_set(&clusters.source).await? == Some(false) {
        return Err(Error::precondition(
            "another user lifted the write block during the cut-over",
            "another cut-over from this cluster, perhaps: let it end, then try again",
        ));
    }
    // One of an earlier attempt begins too early, and may know less of the block.
    if let Some(tried) = copying.state.cut_over_mut().reverse_job.take() {
        reverse::discard(clusters, &tried).await?;
    }
    let reverse_job = match options.reverse {
        true => Some(reverse::prepare(clusters, run, &copying.plan, options).await?),
        false => None,
    };
    copying.state.cut_over_mut().reverse_job.clone_from(&reverse_job);
    keep_settled(run, &mut copying.state, at).await?;
    // A cut-over back gives the old cluster to its users again before they are sent there.
    if copying.state.is_destination_blocked() {
        block::lift(&clusters.destination).await?;
    }
    let hook = hook.take().expect("nothing is tried again behind the hook");
    hook().await.map_err(|cause| {
        Error::precondition(
            format!("the hook failed: {cause}"),
            "clients are still at the source, unless the hook had moved them: mend it, then \
             `imago cutover` again",
        )
    })?;
    Ok(Behind { drain_ms, last_verified, reverse_job })
}

/// Keeps the settled point as the job's position, and that the hook begins now. If this process
/// dies before it records the end of the hook, the clients' cluster is unknown, and the job waits
/// until an operator names it ([`decide()`]). If it is the source, the settled changes are not
/// applied again.
async fn keep_settled(run: &Run, state: &mut State, at: Timestamp) -> Result<()> {
    state.cut_over_mut().hook_begun = true;
    state.token = None;
    state.t0 = Some((at.time, at.increment + 1));
    state.applied_to = Some((at.time, at.increment));
    copy::save(run, state).await
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

//! Cutting over: clients move from the source to the copy.
//!
//! 1. Take the job over from its coordinator, and catch up.
//! 2. Check that the job may be cut over: bulk, indexes, options, lag, and a random sample of documents.
//! 3. Block writes at the source, if it supports that.
//! 4. Drain: make the destination equal to the source as of one time after the block.
//! 5. Compare the documents of the last changes once more.
//! 6. Run the hook, which moves the clients. Then the destination's retention rules are restored, and the job is done;
//!    nothing is applied any more.
//!
//! Invariants:
//! - Before anything is blocked, the record says so: the job's next process lifts the block first. If steps 4–6 fail
//!   or take too long, or the destination acknowledges nothing for some seconds before the hook, the block is lifted
//!   and the job can be resumed. A block that the job did not set stays.
//! - Once the hook has begun, no change of the source is applied to the destination: not by this process, and if it
//!   dies, by no other process until an operator has said where the clients are.
//! - With `reverse`, the old cluster follows the new one from a time before the hook, so that a cut-over back loses no
//!   write that was made since.

use std::time::{Duration, Instant};

use bson::Timestamp;
use imago_job::clock::now_ms;
use imago_job::control::{Control, Stop};
use imago_job::event::Body;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::reporter::Events;
use imago_job::run::{Ending, Run};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::copy::retention::{restore, reverse_retention};
use crate::copy::{
    self, CatalogChanges, Clusters, CopyJob, SLICE_BYTES, SourceBlock, State, StopWhen, complete,
    state_of,
};
use crate::error::{Error, Result};
use crate::server::block::{self, Blocker};
use crate::server::timing::retry_transient;
use crate::state::journal::MongoJournal;
use crate::verify::Mode;

pub(crate) mod check;
mod decide;
mod give_up;
mod reverse;
mod unblock;

pub use decide::{ClientsAt, decide};
pub use reverse::{reverse_of, reversed};
pub use unblock::{Unblocked, unblock};

/// The way in which a cut-over blocks writes to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The server blocks the writes of every user without `bypassWriteBlockingMode`.
    UserWrites,
    /// Writes are not blocked: the operator has stopped the writers.
    None,
}

/// The options of one cut-over.
#[derive(Clone, Debug)]
pub struct Options {
    /// The way in which writes to the source are blocked.
    pub block: Block,
    /// True if a reverse job is created, by which the old cluster follows the new one after the cut-over.
    pub reverse: bool,
    /// True if the write block at the source stays in force after the hook.
    pub keep_block: bool,
    /// Longest time, from the request of the write block, that the drain, the last comparison and the hook may take
    /// together.
    pub block_max: Duration,
    /// Number of the last changes, over all collections, whose documents are compared under the write block.
    pub last_changes: usize,
    /// Number of sampled documents of each collection that are compared before the write block.
    pub sample: u64,
    /// True if source collections that match the plan's patterns and cannot join the job may be left out of the
    /// cut-over.
    pub ignore_new: bool,
}

/// The result of a cut-over.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The job that was cut over.
    pub job: JobId,
    /// Time, in ms, from the write block (or, without one, the drain) to the end of the hook; plus the duration of
    /// the write blocks of attempts that died.
    pub write_block_ms: u64,
    /// Duration of the drain alone, in ms: until the destination equalled the source under the write block.
    pub drain_ms: u64,
    /// Number of documents of the last changes, over all collections, that were compared under the write block.
    pub last_verified: u64,
    /// Number of documents, over all collections, that were compared before the write block.
    pub sampled: u64,
    /// The job that makes the old cluster follow the new one; `None` without `reverse`.
    pub reverse_job: Option<JobId>,
    /// True if a write block was set and still refuses the writes of the source's users.
    pub is_blocked: bool,
    /// Collections that have joined the job or gone since it was planned.
    #[serde(flatten)]
    pub catalog: CatalogChanges,
}

/// Most attempts of one cut-over. An attempt is repeated if the source got or lost a collection while writes were
/// being blocked.
const ATTEMPTS_MAX: u32 = 3;
/// Number of slices that a cut-over copies at the same time, if collections have joined the job and are not copied
/// yet.
const WORKERS: usize = 4;
/// Longest time that the server waits for a change before it sends an empty batch of the change stream, during a
/// cut-over: the drain must not wait for changes that the write block prevents.
const AWAIT_MAX: Duration = Duration::from_millis(20);

/// Checks the conditions for a cut-over of the job `id`, and then takes the job over from its coordinator.
///
/// # Errors
/// Returns a precondition error that can be found without disturbing the coordinator; fails as [`copy::take_over`]
/// does.
#[crate::boxed]
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

/// Cuts over the job of `run`, which this process has claimed, and returns the result. `hook` moves the clients; it
/// is called at most once.
///
/// # Errors
/// Returns a precondition error that names every obstacle, or the error that interrupted the cut-over, after which the
/// block is lifted.
pub async fn cutover(
    clusters: &Clusters,
    run: Run,
    process: &str,
    options: &Options,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Outcome> {
    let copy_options = copy::Options {
        workers: WORKERS,
        stop_when: StopWhen::HandedOver,
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
    if let Err(Error::Stopped(Stop::Cancelled)) = &ended {
        let journal = MongoJournal::new(clusters.destination.clone());
        let record = journal.load(&run.record().id).await?;
        copy::restore_retention(&clusters.destination, &record, run.reporter()).await?;
    }
    let ending = match &ended {
        Ok(_) => Ending::Done,
        Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
        // An obstacle to the cut-over does not fail the job: it follows the source again once it is resumed.
        Err(_) => Ending::Stopped(Stop::Interrupted),
    };
    let saved = run.end(ending).await;
    let outcome = ended?;
    saved?;
    Ok(outcome)
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
                    "a collection was created or dropped at the source while writes were being \
                     blocked"
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
    copying: &mut CopyJob<'_>,
    options: &Options,
    hook: &mut Option<impl AsyncFnOnce() -> std::result::Result<(), String>>,
) -> Result<Outcome> {
    run.enter("catch-up").await?;
    copying.reduce_lag(options.block_max).await?;
    run.enter("check").await?;
    copying.refuse_building()?;
    let sampled = check::check(copying, &Mode::Sample(options.sample), None).await?;
    copying.reduce_lag(options.block_max).await?;
    run.enter("cut-over").await?;
    record_block(clusters, copying, options).await?;
    let blocker = Blocker::reach(&clusters.source).await;
    let blocked = Instant::now();
    // The future of the block is never dropped half-way: a block that is set after the lift would stay.
    let set = match options.block {
        Block::UserWrites => blocker.set().await,
        Block::None => Ok(()),
    };
    let behind = async {
        set?;
        let steps = tokio::select! {
            steps = steps_before_hook(clusters, run, copying, options) => steps?,
            silent = give_up::until_silent(clusters, run) => match silent? {},
        };
        run_hook(clusters, copying, hook).await?;
        Ok(steps)
    };
    let left = options.block_max.saturating_sub(blocked.elapsed());
    let done = match tokio::time::timeout(left, behind).await {
        Ok(done) => done,
        Err(_) => Err(Error::precondition(
            format!("the cut-over did not finish within {} ms", options.block_max.as_millis()),
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
            give_up::give_up_attempt(clusters, run, copying).await;
            Err(error)
        }
    }
}

/// Records in the job's record that a write block of this job may be in force at the source from now on. A block that
/// is already in force is not the job's: it is not recorded, and stays in any case.
async fn record_block(
    clusters: &Clusters,
    copying: &mut CopyJob<'_>,
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

/// Restores the destination's retention rules, lifts the write block at the source or leaves it to the operator,
/// records the end of the job, and returns the result. `block_ms` is the duration of the write block, in ms;
/// `sampled` is the number of documents that were compared before it.
async fn conclude(
    clusters: &Clusters,
    run: &Run,
    copying: &mut CopyJob<'_>,
    options: &Options,
    block_ms: u64,
    sampled: u64,
    done: BlockedSteps,
) -> Result<Outcome> {
    run.reporter().emit(Body::Measurement {
        name: "write_block_ms".into(),
        value: f64::from(u32::try_from(block_ms).unwrap_or(u32::MAX)),
        unit: "ms".into(),
    });
    let (plan, state, reporter) = (&copying.plan, &copying.state, run.reporter());
    let restore = || restore(&clusters.destination, plan, state, reporter);
    retry_transient("restore the expiry of documents", &Control::default(), restore).await?;
    let is_blocked = copying.state.cut_over_mut().is_blocked();
    let mut lifts = is_blocked && !options.keep_block && !options.reverse;
    if lifts && let Err(error) = block::lift(&clusters.source).await {
        lifts = false;
        let id = &run.record().id;
        let help = format!("once it acknowledges writes: `imago cutover {id} --unblock`");
        give_up::report_left(clusters, run, &error, help);
    }
    let is_left = is_blocked && !lifts;
    let block = if is_left { SourceBlock::Left } else { SourceBlock::None };
    copying.state.cut_over_mut().end_attempt(block);
    copying.state.unblock_destination();
    copy::save_final(run, &copying.state).await?;
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

/// The result of the steps of a cut-over under the write block.
struct BlockedSteps {
    /// Duration of the drain, in ms.
    drain_ms: u64,
    /// Number of documents of the last changes, over all collections, that were compared.
    last_verified: u64,
    /// The job that makes the old cluster follow the new one; `None` without `reverse`.
    reverse_job: Option<JobId>,
}

/// Performs the steps under the write block that precede the hook, up to the record that the hook begins.
async fn steps_before_hook(
    clusters: &Clusters,
    run: &Run,
    copying: &mut CopyJob<'_>,
    options: &Options,
) -> Result<BlockedSteps> {
    let drained = Instant::now();
    let at = copying.coordinator.settle().await?;
    check::has_last_writes(&clusters.source).await?;
    let drain_ms = ms(drained);
    let last_verified = check::compare_last_changes(run, copying, options.last_changes).await?;
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
            "this may have been another cut-over from this cluster: let it end, then try again",
        ));
    }
    // The reverse job of an earlier attempt starts too early, and its record of the block may be wrong.
    if let Some(tried) = copying.state.cut_over_mut().reverse_job.take() {
        reverse::discard(clusters, &tried).await?;
    }
    let reverse_job = match options.reverse {
        true => {
            let rules = reverse_retention(clusters, &copying.plan, &copying.definitions);
            Some(reverse::prepare(clusters, run, &copying.plan, rules, options).await?)
        }
        false => None,
    };
    copying.state.cut_over_mut().reverse_job.clone_from(&reverse_job);
    save_settled(run, &mut copying.state, at).await?;
    Ok(BlockedSteps { drain_ms, last_verified, reverse_job })
}

/// Runs the hook, which moves the clients.
async fn run_hook(
    clusters: &Clusters,
    copying: &CopyJob<'_>,
    hook: &mut Option<impl AsyncFnOnce() -> std::result::Result<(), String>>,
) -> Result<()> {
    // A cut-over back lets the old cluster admit its users' writes before the hook moves the users there.
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
    })
}

/// Saves the settled point `at` (a cluster time of the source) as the job's position, and that the hook begins now.
/// If this process dies before it records the end of the hook, it is unknown which cluster the clients use, and the
/// job waits until an operator names it ([`decide()`]). If it is the source, the settled changes are not applied
/// again.
async fn save_settled(run: &Run, state: &mut State, at: Timestamp) -> Result<()> {
    state.cut_over_mut().hook_begun = true;
    state.token = None;
    state.t0 = Some((at.time, at.increment + 1));
    state.applied_to = Some((at.time, at.increment));
    copy::save(run, state).await
}

/// Returns the time since `since`, in ms.
fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

//! Cutting over: the moment when clients move to the copy.
//!
//! 1. Take the job over from whoever leads it, and catch up.
//! 2. Say whether it may be cut over: bulk, indexes, options, lag, and a random sample of documents.
//! 3. Block writes at the source, where it can.
//! 4. Drain: make the destination the source at exactly one time behind the block.
//! 5. Compare the documents of the last changes once more.
//! 6. Run the hook, which moves the clients. Then the job is done; nothing is applied any more.
//!
//! Invariants:
//! - Before anything is blocked, the record says so: whoever goes on with the job lifts the block
//!   first. If steps 4–6 fail or take too long, the block is lifted and the job still follows.
//! - Once the hook has begun, nothing of the source is applied to the destination.
//! - With `reverse`, the old cluster follows the new one from a time before the hook, so that going
//!   back loses nothing that was written since.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bson::Timestamp;
use imago_job::event::Body;
use imago_job::id::JobId;
use imago_job::journal::{Journal, Request};
use imago_job::record::{Record, Requested};
use imago_job::reporter::Events;
use imago_job::run::{Ending, Run};
use imago_job::state::State as JobState;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::block;
use crate::copy::{
    self, Clusters, Copying, KIND, Options, SLICE_BYTES, State, Until, plan_of, state_of,
};
use crate::error::{Error, Result};
use crate::journal::MongoJournal;
use crate::leases::{Leases, Slice};
use crate::order::Id;
use crate::preflight::Plan;
use crate::verify::{Mode, Report, Retries, Spec, Unwatched, verify};

/// How writes are kept from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// By the server, for every user without `bypassWriteBlockingMode`.
    UserWrites,
    /// Not at all: the operator has stopped the writers.
    None,
}

/// How a job is cut over.
#[derive(Clone, Debug)]
pub struct How {
    /// How writes are kept from the source.
    pub block: Block,
    /// Whether the old cluster shall follow the new one.
    pub reverse: bool,
    /// Whether the block stays after the hook.
    pub keep_block: bool,
    /// The drain, the last comparison and the hook together may take this long.
    pub block_max: Duration,
    /// How many documents of the last changes are compared under the block.
    pub last_changes: usize,
    /// How many documents are compared before it.
    pub sample: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// From the block, or with none the drain, until the hook had ended, in ms.
    pub write_block_ms: u64,
    /// The drain alone, in ms.
    pub drain_ms: u64,
    /// Documents of the last changes that were compared under the block.
    pub last_verified: u64,
    /// Documents that were compared before it.
    pub sampled: u64,
    /// The job that makes the old cluster follow the new one.
    pub reverse_job: Option<JobId>,
    /// Whether the source still refuses writes.
    pub is_blocked: bool,
}

/// The drain must not wait for a change that the block keeps from coming.
const AWAIT_MAX: Duration = Duration::from_millis(20);
const HAND_OVER_WITHIN: Duration = Duration::from_secs(30);
/// The destination is caught up before anything is blocked.
const LAG_MS_MAX: u64 = 500;
const CATCH_UP_WITHIN: Duration = Duration::from_secs(600);

/// Asks whoever leads the job to let go of it, and claims it.
///
/// # Errors
/// When the owner neither lets go nor falls silent.
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
        while journal.load(id).await?.owner.is_some() {
            if Instant::now() > deadline {
                // Silent, then: `claim` knows how long to wait for one that died.
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let owner = journal.load(id).await?.owner;
            let now_ms = journal.now_ms().await?;
            let stale_ms = u64::try_from(copy::pace().stale_after.as_millis()).unwrap_or(u64::MAX);
            if owner.is_some_and(|owner| now_ms.saturating_sub(owner.heartbeat_at_ms) > stale_ms) {
                break;
            }
        }
    }
    Box::pin(copy::claim(clusters, id, process, events, interrupted)).await
}

/// Cuts a claimed job over. `hook` moves the clients.
///
/// # Errors
/// A precondition with everything that is in the way; what failed on the way, with the block
/// lifted.
pub async fn cutover(
    clusters: &Clusters,
    run: Run,
    process: &str,
    how: &How,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Outcome> {
    let options = Options {
        workers: 1,
        until: Until::HandedOver,
        process: process.to_owned(),
        await_max: AWAIT_MAX,
        slice_bytes: SLICE_BYTES,
    };
    let ended = Box::pin(stages(clusters, &run, &options, how, hook)).await;
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
    options: &Options,
    how: &How,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Outcome> {
    if how.block == Block::UserWrites {
        block::check(&clusters.source).await?;
    }
    let state = state_of(run.record())?;
    if !state.is_indexed {
        return Err(Error::precondition(
            format!("job {} may not be cut over: the copy is not complete", run.record().id),
            "`imago job resume` it, and wait until it follows",
        ));
    }
    let mut copying = Box::pin(Copying::begin(clusters, run, options)).await?;
    let outcome = Box::pin(steps(clusters, run, &mut copying, how, hook)).await;
    if outcome.is_err() {
        copying.quiesce().await;
    }
    outcome
}

async fn steps(
    clusters: &Clusters,
    run: &Run,
    copying: &mut Copying<'_>,
    how: &How,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Outcome> {
    run.enter("catch-up").await?;
    Box::pin(catch_up(copying)).await?;
    run.enter("check").await?;
    let sampled = Box::pin(check(copying, how.sample)).await?;
    Box::pin(catch_up(copying)).await?;
    run.enter("cut-over").await?;
    let began = Instant::now();
    if how.block == Block::UserWrites {
        copying.state.is_blocked = true;
        copying.save().await?;
        copy::save(run, &copying.state).await?;
    }
    let blocked = Instant::now();
    let behind = Box::pin(behind_block(clusters, run, copying, how, hook));
    let done = match tokio::time::timeout(how.block_max, behind).await {
        Ok(done) => done,
        Err(_) => Err(Error::precondition(
            format!("the cut-over was not done within {} ms", how.block_max.as_millis()),
            "the block is lifted and clients are still at the source, unless the hook had moved \
             them: look at the hook, then try again, with a larger --max-block-ms if need be",
        )),
    };
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            if how.block == Block::UserWrites {
                block::lift(&clusters.source).await?;
                copying.state.is_blocked = false;
                copy::save(run, &copying.state).await?;
            }
            if copying.state.is_destination_blocked {
                block::set(&clusters.destination).await?;
            }
            return Err(error);
        }
    };
    let block_ms = ms(blocked);
    run.reporter().emit(Body::Measurement {
        name: "write_block_ms".into(),
        value: f64::from(u32::try_from(block_ms).unwrap_or(u32::MAX)),
        unit: "ms".into(),
    });
    tracing::debug!(total_ms = ms(began), "cut over");
    let keeps = how.block == Block::UserWrites && (how.keep_block || how.reverse);
    if how.block == Block::UserWrites && !keeps {
        block::lift(&clusters.source).await?;
    }
    copying.state.is_blocked = false;
    copying.state.is_destination_blocked = false;
    copy::save(run, &copying.state).await?;
    Ok(Outcome {
        job: run.record().id.clone(),
        write_block_ms: block_ms,
        drain_ms: done.drain_ms,
        last_verified: done.last_verified,
        sampled,
        reverse_job: done.reverse_job,
        is_blocked: keeps,
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
    how: &How,
    hook: impl AsyncFnOnce() -> std::result::Result<(), String>,
) -> Result<Behind> {
    if how.block == Block::UserWrites {
        block::set(&clusters.source).await?;
    }
    let drained = Instant::now();
    let at = copying.lead.settle().await?;
    let drain_ms = ms(drained);
    let last_verified = Box::pin(last_look(run, copying, how.last_changes)).await?;
    // Once tried, the job that leads back is kept: it follows from a time before this hook too.
    let reverse_job = match (how.reverse, copying.state.reverse_job.take()) {
        (true, None) => Some(Box::pin(prepare_reverse(clusters, &copying.plan, how)).await?),
        (true, prepared) => prepared,
        (false, _) => None,
    };
    copying.state.reverse_job.clone_from(&reverse_job);
    keep_settled(run, &mut copying.state, at).await?;
    // A cut-over back gives the old cluster to its users again before they are sent there.
    if copying.state.is_destination_blocked {
        block::lift(&clusters.destination).await?;
    }
    hook().await.map_err(|cause| {
        Error::precondition(
            format!("the hook failed: {cause}"),
            "clients are still at the source, unless the hook had moved them: mend it, then \
             `imago cutover` again",
        )
    })?;
    Ok(Behind { drain_ms, last_verified, reverse_job })
}

/// Keeps the settled point as the job's position. Whoever goes on with a job of which nobody knows
/// whether its hook moved the clients applies only what the source saw since, and never again what
/// clients may have overwritten at the destination.
async fn keep_settled(run: &Run, state: &mut State, at: Timestamp) -> Result<()> {
    state.token = None;
    state.t0 = Some((at.time, at.increment + 1));
    state.applied_to = Some((at.time, at.increment));
    copy::save(run, state).await
}

async fn catch_up(copying: &mut Copying<'_>) -> Result<()> {
    let since = copying.source_time().await?;
    let deadline = Instant::now() + CATCH_UP_WITHIN;
    while copying.lead.applied_to() < since || copying.lead.standing().lag_ms > LAG_MS_MAX {
        copying.step().await?;
        if Instant::now() > deadline {
            return Err(Error::precondition(
                format!(
                    "the destination is still {} ms behind after {} s",
                    copying.lead.standing().lag_ms,
                    CATCH_UP_WITHIN.as_secs()
                ),
                "the source is written faster than the destination takes it: try at a quieter time",
            ));
        }
    }
    Ok(())
}

/// Options, indexes, and a random sample of documents, while changes go on being applied.
async fn check(copying: &mut Copying<'_>, sample: u64) -> Result<u64> {
    let pairs = copying.pairs.clone();
    let control = copying.control();
    let mut checks = tokio::task::JoinSet::new();
    checks.spawn(async move {
        let mut compared = 0;
        for pair in pairs.iter() {
            let spec =
                Spec { mode: Mode::Sample(sample), filter: pair.filter.clone(), ..Spec::default() };
            let mut watch = Unwatched;
            let looked = verify(&pair.source, &pair.destination, &spec, &control, &mut watch);
            let report = Box::pin(looked).await?;
            refuse(&report)?;
            compared += report.compared;
        }
        Ok::<u64, Error>(compared)
    });
    loop {
        copying.step().await?;
        if let Some(checked) = checks.try_join_next() {
            return checked.expect("a check neither panics nor is aborted");
        }
    }
}

fn refuse(report: &Report) -> Result<()> {
    // A shard key's own index is the destination's; what the source has must be there.
    if report.document_differences() == 0 && report.incomplete.is_none() {
        return Ok(());
    }
    Err(Error::precondition(
        format!(
            "{} may not be cut over: {} of {} documents differ",
            report.source,
            report.document_differences(),
            report.compared
        ),
        "`imago verify --stragglers FILE` names them all, `imago repair` mends them",
    ))
}

async fn last_look(run: &Run, copying: &Copying<'_>, last_changes: usize) -> Result<u64> {
    let mut ids: Vec<HashSet<Id>> = vec![HashSet::new(); copying.pairs.len()];
    for (ns, id) in copying.lead.recent().rev().take(last_changes) {
        ids[*ns].insert(id.clone());
    }
    let mut compared = 0;
    for (pair, ids) in copying.pairs.iter().zip(ids) {
        if ids.is_empty() {
            continue;
        }
        let spec = Spec {
            mode: Mode::Ids(ids.into_iter().collect()),
            filter: pair.filter.clone(),
            retries: Retries { rounds: 2, first_ms: 20, pause_ms_max: 50 },
            structure: false,
            ..Spec::default()
        };
        let mut watch = Unwatched;
        let looked = verify(&pair.source, &pair.destination, &spec, run.control(), &mut watch);
        let report = Box::pin(looked).await?;
        refuse(&report)?;
        compared += report.compared;
    }
    Ok(compared)
}

/// A job whose bulk is copied already: the old cluster equals the new one as of now.
async fn prepare_reverse(clusters: &Clusters, plan: &Plan, how: &How) -> Result<JobId> {
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
        is_destination_blocked: how.block == Block::UserWrites,
        ..State::default()
    };
    record.checkpoint = serde_json::to_value(state).map_err(encoded)?;
    record.state = JobState::Planned;
    let leases = Leases::new(back.destination.clone(), record.id.clone(), "cutover".into());
    let slices = (0..plan.collections.len()).map(|ns| Slice { ns, n: 0, min: None, max: None });
    leases.create(&slices.collect::<Vec<_>>()).await?;
    leases.set_horizon(now).await?;
    while let Some(lease) = leases.lease().await? {
        leases.copied(&lease, 0, 0, &[]).await?;
    }
    journal.create(&record).await?;
    Ok(record.id)
}

/// The clusters of the job that leads back, from those of a job that was cut over.
#[must_use]
pub fn reversed(clusters: &Clusters) -> Clusters {
    Clusters {
        source: clusters.destination.clone().in_role("source"),
        destination: clusters.source.clone().in_role("destination"),
    }
}

/// The job that leads back, of a job that was cut over with `--reverse`.
///
/// # Errors
/// A precondition when it was not.
pub async fn reverse_of(clusters: &Clusters, id: &JobId) -> Result<JobId> {
    let record = MongoJournal::new(clusters.destination.clone()).load(id).await?;
    let plan = plan_of(&record)?;
    state_of(&record)?.reverse_job.ok_or_else(|| {
        Error::precondition(
            format!("job {id} to {} was not cut over with --reverse", plan.destination),
            "without it the old cluster did not follow the new one, and nothing leads back",
        )
    })
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

//! A change of a collection's shape as a job: prepare, execute, index, recover, verify, commit.
//!
//! All phases but the first and the last are a copy within one cluster ([`crate::copy`]), with its slices,
//! checkpoints and workers. The spec in the job's record is the copy's spec with the plan added.

pub mod balance;
pub(in crate::reshard) mod bulk;
mod cluster_lock;
pub(in crate::reshard) mod native;
pub(in crate::reshard) mod plan_check;
pub mod shadow;
mod watch;
mod zones;

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_job::control::{Control, Stop};
use imago_job::event::Body;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::{Limits, Record};
use imago_job::run::{Ending, Run, RunError};
use imago_plan::reshard::write_block::RehearsalTimes;

use crate::bson::input;
use crate::copy::cutover::check;
use crate::copy::preflight;
use crate::copy::{self, Clusters, CopyJob, SLICE_BYTES, State, StopWhen};
use crate::error::{Error, Result};
use crate::namespace::{Namespace, Selector};
use crate::replicate::changes::AWAIT_MAX;
use crate::replicate::pace::{self, SparedCluster};
use crate::replicate::route::Route;
use crate::reshard::commit::{self, Block, Committed, RenameOutcome, commit, ms, rehearsal};
use crate::reshard::commit::{bypass, validation};
use crate::reshard::execute::bulk::{measure, route_of};
use crate::reshard::plan::{Engine, Plan};
use crate::reshard::spec::{KIND, Known, LateWrites, Options, Outcome, Spec};
use crate::server::block;
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::retention;
use crate::server::timing::WRITE_TIME_MAX;
use crate::server::timing::retry_transient;
use crate::state::journal::MongoJournal;

/// Minimum number of slices of a collection, unless they would be smaller than [`SLICE_BYTES_MIN`]. Changes in a
/// slice wait until the slice is copied, which takes long at a pace that spares clients.
const SLICES: u64 = 32;
/// Minimum size of a slice, in bytes; with smaller ones most of the work would be leases.
const SLICE_BYTES_MIN: u64 = 2 * 1024 * 1024;
/// Time that a read of the change stream may wait for changes during the commit. The write block prevents new
/// changes, so the drain must not wait for them.
const COMMIT_AWAIT_MAX: Duration = Duration::from_millis(5);
/// Maximum number of attempts at a commit whose drain misses its deadline.
const COMMITS_MAX: usize = 5;

/// Checks that the cluster supports a change of a collection's shape by `engine` with these options.
///
/// # Errors
/// Returns a precondition error that names the obstacle.
#[crate::boxed]
pub async fn check(cluster: &Endpoint, options: &Options, engine: Engine) -> Result<()> {
    if !cluster.is_sharded() {
        return Err(Error::precondition(
            format!("{} is a replica set: it has no shards", cluster.redacted()),
            "name a sharded cluster's router",
        ));
    }
    match options.block {
        _ if engine == Engine::Native => Ok(()),
        Block::UserWrites => {
            block::check(cluster).await.map_err(validation::or_validator)?;
            block::check_bypass(cluster).await.map_err(validation::or_validator)
        }
        Block::Validator => validation::check(cluster).await,
        Block::None => Ok(()),
    }
}

/// Stores the record of a planned reshard job and returns the job's id; nothing else is written except the cluster
/// lock. `limits` are those on the job's speed.
///
/// # Errors
/// Returns a precondition error for the first of the plan's obstacles; another error if the cluster rejects a write.
#[crate::boxed]
pub async fn create(
    cluster: &Endpoint,
    plan: &Plan,
    engine: Engine,
    limits: Limits,
) -> Result<JobId> {
    if let Some(obstacle) = plan.obstacles().next() {
        return Err(Error::precondition(obstacle.what.clone(), obstacle.help.clone()));
    }
    plan_check::check(cluster, plan).await?;
    if engine == Engine::Native {
        native::check(cluster, plan).await?;
    }
    let journal = MongoJournal::new(cluster.clone());
    let mut record = Record::new(KIND, serde_json::Value::Null, journal.now_ms().await?);
    let to = shadow::name(&plan.ns, &record.id);
    let Clusters { source, destination } = both_roles(cluster);
    let request = preflight::Request {
        selectors: vec![Selector::One { from: plan.ns.clone(), to }],
        filter: None,
        into_existing: false,
        no_new: false,
        shard_key: None,
    };
    let copy = preflight::plan(&source, &destination, &request).await?;
    let of = Handle::new(cluster.clone(), plan.ns.clone());
    let uuid =
        commit::uuid_of(cluster, &of).await?.ok_or_else(|| plan_check::unsharded(&plan.ns))?;
    let known = Known { uuid, was_off: balance::is_off(cluster, &plan.ns).await? };
    let spec = Spec { copy, reshard: plan.clone(), engine, known };
    record.spec = serde_json::to_value(spec).map_err(|e| Error::malformed("the plan", e))?;
    record.limits = limits;
    let state = serde_json::to_value(State::of_reshard());
    record.checkpoint = state.map_err(|e| Error::malformed("the job's state", e))?;
    cluster_lock::take(cluster, &journal, &record.id).await?;
    journal.create(&record).await?;
    Ok(record.id)
}

/// Returns two connections to the cluster, one in the role of the source and one in that of the destination.
#[must_use]
pub fn both_roles(cluster: &Endpoint) -> Clusters {
    Clusters {
        source: cluster.clone().in_role("source"),
        destination: cluster.clone().in_role("destination"),
    }
}

/// Runs a claimed job until the collection has its new shape, stores the result in the job's record, and returns the
/// outcome.
///
/// # Errors
/// Returns the error that ended the job, which the record has too. A cancelled job leaves the collection as it was.
#[crate::boxed]
pub async fn run(cluster: &Endpoint, run: Run, options: &Options) -> Result<Outcome> {
    let mut ended = Box::pin(work(cluster, &run, options)).await;
    if let Err(Error::Stopped(Stop::Cancelled)) = &ended {
        // The record is loaded again: the one that was claimed lacks all later changes.
        let cleaned = async {
            let journal = MongoJournal::new(cluster.clone());
            clean_up(cluster, &journal.load(&run.record().id).await?).await
        };
        if let Err(error) = cleaned.await {
            ended = Err(error);
        }
    }
    let ending = match &ended {
        Ok(_) => Ending::Done,
        Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
        Err(Error::Undecided { .. }) => Ending::Stopped(Stop::Interrupted),
        Err(error) => Ending::Failed(error.to_string()),
    };
    run.end(ending).await?;
    ended
}

/// Restores the state before the job of `record`: lifts the write block, drops the shadow, and restores the balancer
/// flag of the collection.
///
/// # Errors
/// Fails if the rename has happened already, or if the cluster rejects a command.
#[crate::boxed]
pub async fn clean_up(cluster: &Endpoint, record: &Record) -> Result<()> {
    let (spec, mut state) = (Spec::of(record)?, copy::state_of(record)?);
    if spec.engine == Engine::Native {
        return native::clean_up(cluster, record, &spec).await;
    }
    if state.commit_mut().rename_requested {
        let always = Control::default();
        let look = || commit::rename_outcome(cluster, &spec);
        match retry_transient("look what became of the rename", &always, look).await {
            Ok(RenameOutcome::Renamed) => {
                return Err(Error::precondition(
                    format!("{} has its new shape already", spec.reshard.ns),
                    "`imago reshard resume` ends the job; then `imago reshard revert` goes back",
                ));
            }
            // Another user dropped the collection or the shadow, so there is less to clean up.
            Ok(RenameOutcome::NotYet) | Err(Error::Precondition { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    commit::lift(cluster, &spec, &record.id, &mut state).await?;
    shadow::remove(cluster, &spec.reshard, spec.shadow(), &record.id).await?;
    balance::set_off(cluster, &spec.reshard.ns, spec.known.was_off).await
}

async fn work(cluster: &Endpoint, run: &Run, options: &Options) -> Result<Outcome> {
    let began = Instant::now();
    let spec = Spec::of(run.record())?;
    if spec.engine == Engine::Native {
        return native::work(cluster, run, &spec).await;
    }
    let planned = (spec.reshard.predicted_s, spec.reshard.paced_s);
    let planned_s = |earlier: &Record| Some(Spec::of(earlier).ok()?.reshard.predicted_s);
    let journal = MongoJournal::new(cluster.clone());
    copy::predict_reshard(run, &journal, planned, planned_s).await;
    let mut state = copy::state_of(run.record())?;
    if let Some(late_writes) = conclude_earlier_rename(cluster, run, &spec, &mut state).await? {
        return finish(cluster, run, &spec, began, 0, Err(late_writes)).await;
    }
    prepare(cluster, run, &spec, options, &mut state).await?;
    let (verified, tried, state) =
        Box::pin(fill(&both_roles(cluster), run, options, state)).await?;
    let committed = Box::pin(commit_in_attempts(cluster, run, &spec, options, state)).await?;
    finish(cluster, run, &spec, began, verified, Ok((committed, tried))).await
}

/// Completes the commit if a rename that an earlier process requested has happened, and returns the late writes.
/// Returns `None` if no rename was requested or it did not happen.
async fn conclude_earlier_rename(
    cluster: &Endpoint,
    run: &Run,
    spec: &Spec,
    state: &mut State,
) -> Result<Option<LateWrites>> {
    if !state.commit_mut().rename_requested {
        return Ok(None);
    }
    // A pause or a cancellation comes too late for a rename that has happened.
    match run.enter("commit").await {
        Ok(()) | Err(RunError::Stopped(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let always = Control::default();
    let look = || commit::rename_outcome(cluster, spec);
    if retry_transient("look what became of the rename", &always, look).await?
        != RenameOutcome::Renamed
    {
        return Ok(None);
    }
    let late_writes = commit::conclude(run, cluster, spec, state).await?;
    copy::save_final(run, state).await?;
    Ok(Some(late_writes))
}

/// Lifts the write block of an earlier attempt, disables the balancer for the collection, and creates the shadow.
async fn prepare(
    cluster: &Endpoint,
    run: &Run,
    spec: &Spec,
    options: &Options,
    state: &mut State,
) -> Result<()> {
    let control = run.control();
    commit::lift(cluster, spec, &run.record().id, state).await?;
    let commit = state.commit_mut();
    (commit.rename_requested, commit.drained_to) = (false, None);
    commit.block = Some(options.block);
    copy::save(run, state).await?;
    run.enter("prepare").await?;
    let ns = &spec.reshard.ns;
    if options.block == Block::Validator {
        bypass::warn(run, cluster, ns).await;
    }
    let leave = || balance::set_off(cluster, ns, true);
    retry_transient("keep the balancer from the collection", control, leave).await?;
    if state.t0.is_some() {
        shadow::check_exists(cluster, spec.shadow()).await?;
    }
    let create = || shadow::create(cluster, &spec.reshard, spec.shadow(), &run.record().id);
    retry_transient("create the shadow", control, create).await?;
    let leave = || balance::set_off(cluster, spec.shadow(), true);
    retry_transient("keep the balancer from the shadow", control, leave).await
}

/// Blocks writes, drains and renames. Repeats this when the drain misses its deadline, up to [`COMMITS_MAX`] times.
async fn commit_in_attempts(
    cluster: &Endpoint,
    run: &Run,
    spec: &Spec,
    options: &Options,
    mut state: State,
) -> Result<Committed> {
    let clusters = both_roles(cluster);
    let block_max = options.block_max;
    for attempt in 1..=COMMITS_MAX {
        run.enter("commit").await?;
        let mut copying = begin(&clusters, run, options, COMMIT_AWAIT_MAX, state).await?;
        let done = async {
            copying.reduce_lag(block_max).await?;
            commit(run, spec, &mut copying, cluster, options.block, block_max).await
        };
        match done.await {
            Ok(Some(done)) => {
                copy::realize_end(run);
                return Ok(done);
            }
            Ok(None) => {
                run.reporter().warning(
                    "drain_too_long",
                    format!(
                        "the last changes were not applied within {} ms: attempt {attempt} of \
                         {COMMITS_MAX}",
                        block_max.as_millis()
                    ),
                    "the block is lifted, and set again in a moment",
                );
                copying.coordinator.quiesce().await;
                state = copying.state;
                // A write that the deadline cut off may still be running at the server.
                run.control().sleep(WRITE_TIME_MAX).await?;
            }
            Err(error) => {
                if !matches!(error, Error::Undecided { .. }) {
                    copying.quiesce().await;
                }
                return Err(error);
            }
        }
    }
    Err(Error::precondition(
        format!("{} could not be drained within {} ms", spec.reshard.ns, block_max.as_millis()),
        "try at a quieter time, or with a larger --max-block-ms: `imago reshard resume`",
    ))
}

async fn begin<'a>(
    clusters: &'a Clusters,
    run: &'a Run,
    options: &Options,
    await_max: Duration,
    state: State,
) -> Result<CopyJob<'a>> {
    let mut copy_options = copy_options(options, await_max, None);
    let size = Spec::of(run.record())?.copy.collections.iter().map(|of| of.size.bytes).sum::<u64>();
    copy_options.slice_bytes = (size / SLICES).clamp(SLICE_BYTES_MIN, SLICE_BYTES);
    CopyJob::begin_at(clusters, run, &copy_options, state).await
}

fn copy_options(
    options: &Options,
    await_max: Duration,
    route: Option<Arc<Route>>,
) -> copy::Options {
    copy::Options {
        route,
        workers: options.workers,
        stop_when: StopWhen::CaughtUp,
        process: options.process.clone(),
        await_max,
        slice_bytes: SLICE_BYTES,
    }
}

/// Fills the shadow until it follows the collection, and compares both. Returns the number of compared documents, the
/// times of the rehearsal (`None` without one), and the job's state.
async fn fill(
    clusters: &Clusters,
    run: &Run,
    options: &Options,
    state: State,
) -> Result<(u64, Option<RehearsalTimes>, State)> {
    let plan = Spec::of(run.record())?.reshard;
    let key = input::parse_document(&plan.key, "the shard key")?;
    let (cluster, ns) = (clusters.source.clone(), plan.ns);
    let reporter = Some(run.reporter().clone());
    let mut copying = begin(clusters, run, options, AWAIT_MAX, state).await?;
    let watched = vec![SparedCluster::of(cluster, ns)];
    if options.verify.is_some() {
        copying.expect_comparison();
    }
    let _pace = pace::watch(watched, run.control().clone(), reporter);
    let filled = async {
        if !copying.coordinator.is_copied() {
            run.enter("execute").await?;
            let route = route_of(run.record(), &clusters.destination).await?;
            if route.is_none() {
                run.reporter().decision(
                    "the bulk goes through the router",
                    "its shards cannot be reached as this user, or a key is hashed",
                );
            }
            copying.copy_bulk(&copy_options(options, AWAIT_MAX, route.clone())).await?;
            measure(run, route.as_deref());
        }
        // The change stream reports its position twice a second, so it passes this time while indexes are built;
        // later changes are handled as they come.
        let since = copying.source_time().await?;
        if !copying.state.is_indexed {
            run.enter("index").await?;
            let deferred_key_index = shadow::deferred_key_index(&copying.definitions[0], &key);
            copying.build_indexes(deferred_key_index).await?;
        }
        run.enter("recover").await?;
        copying.catch_up(since).await?;
        // The rehearsal precedes the comparison, which may be long, so that an operator can still postpone the
        // commit.
        let tried = match options.block {
            Block::None => None,
            Block::UserWrites | Block::Validator => {
                rehearsal::rehearse(run, &clusters.source).await
            }
        };
        let Some(mode) = &options.verify else { return Ok((0, tried)) };
        run.enter("verify").await?;
        copying.begin_comparison();
        let route = route_of(run.record(), &clusters.destination).await?;
        Ok((check::check(&mut copying, mode, route).await?, tried))
    };
    match filled.await {
        Ok((verified, tried)) => Ok((verified, tried, copying.end().await?)),
        Err(error) => {
            copying.quiesce().await;
            Err(error)
        }
    }
}

/// Restores the retention rules that the job suspended, so that the renamed collection `ns` expires documents by
/// itself again.
async fn restore_retention(cluster: &Endpoint, run: &Run, ns: &Namespace) -> Result<()> {
    let record = MongoJournal::new(cluster.clone()).load(&run.record().id).await?;
    let Some(rules) = copy::state_of(&record)?.retention.remove(&0) else { return Ok(()) };
    let of = Handle::new(cluster.clone(), ns.clone());
    let restore = || retention::restore(&of, &rules);
    retry_transient("restore the expiry of documents", &Control::default(), restore).await
}

async fn finish(
    cluster: &Endpoint,
    run: &Run,
    spec: &Spec,
    began: Instant,
    verified: u64,
    done: std::result::Result<(Committed, Option<RehearsalTimes>), LateWrites>,
) -> Result<Outcome> {
    let ns = &spec.reshard.ns;
    let restore = || balance::set_off(cluster, ns, spec.known.was_off);
    retry_transient("give the collection back to the balancer", &Control::default(), restore)
        .await?;
    restore_retention(cluster, run, ns).await?;
    let (done, tried) = match done {
        Ok((done, tried)) => (Ok(done), tried),
        Err(late_writes) => (Err(late_writes), None),
    };
    if let Ok(done) = &done {
        let steps = done.steps.iter().map(|at| (format!("write_block_{}_ms", at.step), at.ms));
        let whole = [("write_block_ms", done.block_ms), ("rename_ms", done.rename_ms)];
        let whole = whole.map(|(name, value)| (name.to_owned(), value));
        for (name, value) in whole.into_iter().chain(steps) {
            let value = f64::from(u32::try_from(value).unwrap_or(u32::MAX));
            run.reporter().emit(Body::Measurement { name, value, unit: "ms".into() });
        }
    }
    let of = |figure: fn(&Committed) -> u64| done.as_ref().ok().map(figure);
    Ok(Outcome {
        job: run.record().id.clone(),
        engine: Engine::Shadow,
        write_block_ms: of(|done| done.block_ms),
        drain_ms: of(|done| done.drain_ms),
        rename_ms: of(|done| done.rename_ms),
        block_steps: done.as_ref().map(|done| done.steps.clone()).unwrap_or_default(),
        predicted_block_ms: tried.map(RehearsalTimes::block_ms),
        bare_rename_ms: tried.map(|tried| tried.rename_ms),
        majority_write_ms: tried.map(|tried| tried.write_ms),
        verified,
        last_verified: of(|done| done.last_verified),
        late_writes: done.map_or_else(|late_writes| late_writes, |done| done.late_writes),
        seconds: f64::from(u32::try_from(ms(began)).unwrap_or(u32::MAX)) / 1_000.0,
    })
}

//! A change of a collection's shape as a job: prepare, execute, index, recover, verify, commit.
//!
//! All but the first and the last is a copy within one cluster ([`crate::copy`]), with its slices,
//! checkpoints and helpers. The record's spec is that of the copy with the plan beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::doc;
use imago_job::control::{Control, Stop};
use imago_job::event::Body;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::{Limits, Record};
use imago_job::run::{Ending, Run, RunError};
use serde::{Deserialize, Serialize};

use super::bulk::{measure, route_of};
use super::commit::{self, Block, Committed, Fate, commit, ms};
use super::late_writes::Slipped;
use super::plan::{Engine, Plan};
use super::{balance, bypass, cluster_lock, native, plan_check, shadow, validation};
use crate::bson::input;
use crate::copy::cutover::check;
use crate::copy::preflight;
use crate::copy::{self, Clusters, Copying, Options, SLICE_BYTES, State, Until};
use crate::error::{Error, Result};
use crate::namespace::{Namespace, Selector};
use crate::replicate::changes::AWAIT_MAX;
use crate::replicate::pace::{self, Watched};
use crate::replicate::route::Route;
use crate::server::block;
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::timing::WRITE_TIME_MAX;
use crate::server::timing::retry_transient;
use crate::state::journal::MongoJournal;
use crate::verify::Mode;

/// The kind of such a job's record.
pub const KIND: &str = "reshard";

/// What a job is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The copy into the shadow.
    #[serde(flatten)]
    pub copy: preflight::Plan,
    /// The change of shape.
    pub reshard: Plan,
    /// By what it is done.
    #[serde(default)]
    pub engine: Engine,
    /// What the collection was like when the job was created.
    pub known: Known,
}

/// What tells a collection from another one of its name, and what is to be restored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known {
    /// Its UUID.
    pub uuid: String,
    /// Whether the balancer left it alone already.
    pub was_off: bool,
}

impl Spec {
    /// The spec in a job's record.
    ///
    /// # Errors
    /// When the record is not one of a change of shape.
    pub fn of(record: &Record) -> Result<Self> {
        if record.kind != KIND {
            return Err(Error::precondition(
                format!("job {} is a {}, not a {KIND}", record.id, record.kind),
                "`imago job list` shows what each job is",
            ));
        }
        serde_json::from_value(record.spec.clone()).map_err(|e| Error::malformed("the plan", e))
    }

    /// The collection that the documents are copied to.
    #[must_use]
    pub fn shadow(&self) -> &Namespace {
        &self.copy.collections[0].to
    }
}

/// How a process works at a change of shape.
#[derive(Clone, Debug)]
pub struct How {
    /// Slices that this process copies at the same time.
    pub workers: usize,
    /// The name of this process, for the job's record.
    pub process: String,
    /// Which documents are compared before the commit; none when absent.
    pub verify: Option<Mode>,
    /// How writes are kept from the collection at the commit.
    pub block: Block,
    /// The drain may take this long; then the block is lifted, and it is tried again.
    pub block_max: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// By what it was done.
    pub engine: Engine,
    /// From the block until it was lifted, in ms; absent when another process did it.
    pub write_block_ms: Option<u64>,
    /// The drain alone, in ms.
    pub drain_ms: Option<u64>,
    /// The rename alone, in ms.
    pub rename_ms: Option<u64>,
    /// Documents that were compared before the commit.
    pub verified: u64,
    /// Documents of the last changes that were compared under the block.
    pub last_verified: Option<u64>,
    /// What came between the drain and the rename.
    pub slipped: Slipped,
    /// From the start of this process's work to its end, in s.
    pub seconds: f64,
}

/// A collection is cut at least so often, if its slices stay as large as the next constant says:
/// what changes in a slice waits until the slice is copied, which takes long where clients are
/// spared.
const SLICES: u64 = 32;
/// Smaller slices would be mostly leases.
const SLICE_BYTES_MIN: u64 = 2 * 1024 * 1024;
/// The drain must not wait for a change that the block keeps from coming.
const COMMIT_AWAIT_MAX: Duration = Duration::from_millis(5);
/// How often a commit is tried whose drain misses its deadline.
const COMMITS_MAX: usize = 5;

/// Looks whether the cluster is one that a change of shape can be done on in this way.
///
/// # Errors
/// A precondition that says why not.
pub async fn check(cluster: &Endpoint, how: &How, engine: Engine) -> Result<()> {
    if !cluster.is_sharded() {
        return Err(Error::precondition(
            format!("{} is a replica set: it has no shards", cluster.redacted()),
            "name a sharded cluster's router",
        ));
    }
    match how.block {
        _ if engine == Engine::Native => Ok(()),
        Block::UserWrites => {
            block::check(cluster).await.map_err(validation::or_validator)?;
            block::check_bypass(cluster).await.map_err(validation::or_validator)
        }
        Block::Validator => validation::check(cluster).await,
        Block::None => Ok(()),
    }
}

/// Keeps a planned job; nothing else is written.
///
/// # Errors
/// The first of the plan's obstacles; when the cluster refuses.
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
    let Clusters { source, destination } = both(cluster);
    let request = preflight::Request {
        selectors: vec![Selector::One { from: plan.ns.clone(), to }],
        filter: None,
        into_existing: false,
        no_new: false,
        shard_key: None,
    };
    let copy = Box::pin(preflight::plan(&source, &destination, &request)).await?;
    let of = Handle::new(cluster.clone(), plan.ns.clone());
    let uuid =
        commit::uuid_of(cluster, &of).await?.ok_or_else(|| plan_check::unsharded(&plan.ns))?;
    let known = Known { uuid, was_off: balance::is_off(cluster, &plan.ns).await? };
    let spec = Spec { copy, reshard: plan.clone(), engine, known };
    record.spec = serde_json::to_value(spec).map_err(|e| Error::malformed("the plan", e))?;
    record.limits = limits;
    let state = serde_json::to_value(copy::State::default());
    record.checkpoint = state.map_err(|e| Error::malformed("the job's state", e))?;
    cluster_lock::take(cluster, &journal, &record.id).await?;
    journal.create(&record).await?;
    Ok(record.id)
}

/// One cluster in both roles.
#[must_use]
pub fn both(cluster: &Endpoint) -> Clusters {
    Clusters {
        source: cluster.clone().in_role("source"),
        destination: cluster.clone().in_role("destination"),
    }
}

/// Works at a claimed job until the collection has its new shape, and says so in its record.
///
/// # Errors
/// What ended it; the record says it too. A cancelled job leaves the collection as it was.
pub async fn run(cluster: &Endpoint, run: Run, how: &How) -> Result<Outcome> {
    let mut ended = Box::pin(work(cluster, &run, how)).await;
    if let Err(Error::Stopped(Stop::Cancelled)) = &ended {
        // The record as it is now: the one that was claimed knows nothing of what was done since.
        let cleaned = async {
            let journal = MongoJournal::new(cluster.clone());
            clean_up(cluster, &journal.load(&run.record().id).await?).await
        };
        if let Err(error) = Box::pin(cleaned).await {
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

/// Leaves the collection as it was before the job: no block, no shadow, the balancer as before.
///
/// # Errors
/// When the rename has happened already; when the cluster refuses.
pub async fn clean_up(cluster: &Endpoint, record: &Record) -> Result<()> {
    let (spec, mut state) = (Spec::of(record)?, copy::state_of(record)?);
    if spec.engine == Engine::Native {
        return native::clean_up(cluster, record, &spec).await;
    }
    if state.hook_begun {
        let always = Control::default();
        let look = || commit::decided(cluster, &spec);
        match retry_transient("look what became of the rename", &always, look).await {
            Ok(Fate::Renamed) => {
                return Err(Error::precondition(
                    format!("{} has its new shape already", spec.reshard.ns),
                    "`imago reshard resume` ends the job; then `imago reshard revert` goes back",
                ));
            }
            // Somebody else took the collection or the shadow away: there is less to clean up.
            Ok(Fate::NotYet) | Err(Error::Precondition { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    commit::lift(cluster, &spec, &record.id, &mut state).await?;
    shadow::remove(cluster, &spec.reshard, spec.shadow(), &record.id).await?;
    balance::set_off(cluster, &spec.reshard.ns, spec.known.was_off).await
}

async fn work(cluster: &Endpoint, run: &Run, how: &How) -> Result<Outcome> {
    let began = Instant::now();
    let spec = Spec::of(run.record())?;
    if spec.engine == Engine::Native {
        return native::work(cluster, run, &spec).await;
    }
    let control = run.control();
    let mut state = copy::state_of(run.record())?;
    if state.hook_begun {
        let look = || commit::decided(cluster, &spec);
        // Whatever is asked of the job now: when the rename has happened, it is done.
        match run.enter("commit").await {
            Ok(()) | Err(RunError::Stopped(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let always = Control::default();
        if retry_transient("look what became of the rename", &always, look).await? == Fate::Renamed
        {
            let slipped = commit::conclude(run, cluster, &spec, &mut state).await?;
            copy::save_at_last(run, &state).await?;
            return finish(cluster, run, &spec, began, 0, Err(slipped)).await;
        }
    }
    commit::lift(cluster, &spec, &run.record().id, &mut state).await?;
    (state.hook_begun, state.drained_to, state.block) = (false, None, Some(how.block));
    copy::save(run, &state).await?;
    run.enter("prepare").await?;
    let ns = &spec.reshard.ns;
    if how.block == Block::Validator {
        bypass::warn(run, cluster, ns).await;
    }
    let leave = || balance::set_off(cluster, ns, true);
    retry_transient("keep the balancer from the collection", control, leave).await?;
    if state.t0.is_some() {
        shadow::check_there(cluster, spec.shadow()).await?;
    }
    let create = || shadow::create(cluster, &spec.reshard, spec.shadow(), &run.record().id);
    retry_transient("create the shadow", control, create).await?;
    let leave = || balance::set_off(cluster, spec.shadow(), true);
    retry_transient("keep the balancer from the shadow", control, leave).await?;
    let clusters = both(cluster);
    let (verified, mut state) = Box::pin(fill(&clusters, run, how, state)).await?;
    for attempt in 1..=COMMITS_MAX {
        run.enter("commit").await?;
        let mut copying = begin(&clusters, run, how, COMMIT_AWAIT_MAX, state).await?;
        let done = async {
            Box::pin(copying.come_near(how.block_max)).await?;
            commit(run, &spec, &mut copying, cluster, how.block, how.block_max).await
        };
        match Box::pin(done).await {
            Ok(Some(done)) => {
                return finish(cluster, run, &spec, began, verified, Ok(done)).await;
            }
            Ok(None) => {
                run.reporter().warning(
                    "drain_too_long",
                    format!(
                        "the last changes were not applied within {} ms: attempt {attempt} of \
                         {COMMITS_MAX}",
                        how.block_max.as_millis()
                    ),
                    "the block is lifted, and set again in a moment",
                );
                copying.coordinator.quiesce().await;
                state = copying.state;
                // A write that the deadline cut short may still be under way at the server.
                control.sleep(WRITE_TIME_MAX).await?;
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
        format!("{ns} could not be drained within {} ms", how.block_max.as_millis()),
        "try at a quieter time, or with a larger --max-block-ms: `imago reshard resume`",
    ))
}

async fn begin<'a>(
    clusters: &'a Clusters,
    run: &'a Run,
    how: &How,
    await_max: Duration,
    state: State,
) -> Result<Copying<'a>> {
    let mut options = options(how, await_max, None);
    let size = Spec::of(run.record())?.copy.collections.iter().map(|of| of.size.bytes).sum::<u64>();
    options.slice_bytes = (size / SLICES).clamp(SLICE_BYTES_MIN, SLICE_BYTES);
    Box::pin(Copying::begin_at(clusters, run, &options, state)).await
}

fn options(how: &How, await_max: Duration, route: Option<Arc<Route>>) -> Options {
    Options {
        route,
        workers: how.workers,
        until: Until::CaughtUp,
        process: how.process.clone(),
        await_max,
        slice_bytes: SLICE_BYTES,
    }
}

/// Fills the shadow until it follows the collection, and compares both.
async fn fill(clusters: &Clusters, run: &Run, how: &How, state: State) -> Result<(u64, State)> {
    let plan = Spec::of(run.record())?.reshard;
    let key = input::parse_document(&plan.key, "the shard key")?;
    let (cluster, ns) = (clusters.source.clone(), plan.ns);
    let reporter = Some(run.reporter().clone());
    let mut copying = begin(clusters, run, how, AWAIT_MAX, state).await?;
    let watched = vec![Watched::of(cluster, ns)];
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
            copying.copy_bulk(&options(how, AWAIT_MAX, route.clone())).await?;
            measure(run, route.as_deref());
        }
        // The stream tells twice a second how far it is: while indexes are built it gets this far, and
        // what came meanwhile is looked at as it comes.
        let since = copying.source_time().await?;
        if !copying.state.is_indexed {
            run.enter("index").await?;
            let taken_away = shadow::taken_away(&copying.definitions[0], &key);
            copying.build_indexes(taken_away).await?;
        }
        run.enter("recover").await?;
        copying.catch_up(since).await?;
        let Some(mode) = &how.verify else { return Ok(0) };
        run.enter("verify").await?;
        let route = route_of(run.record(), &clusters.destination).await?;
        check::check(&mut copying, mode, route).await
    };
    match Box::pin(filled).await {
        Ok(verified) => Ok((verified, copying.end().await?)),
        Err(error) => {
            copying.quiesce().await;
            Err(error)
        }
    }
}

async fn finish(
    cluster: &Endpoint,
    run: &Run,
    spec: &Spec,
    began: Instant,
    verified: u64,
    done: std::result::Result<Committed, Slipped>,
) -> Result<Outcome> {
    let ns = &spec.reshard.ns;
    let restore = || balance::set_off(cluster, ns, spec.known.was_off);
    retry_transient("give the collection back to the balancer", &Control::default(), restore)
        .await?;
    if let Ok(done) = &done {
        for (name, value) in [("write_block_ms", done.block_ms), ("rename_ms", done.rename_ms)] {
            let value = f64::from(u32::try_from(value).unwrap_or(u32::MAX));
            run.reporter().emit(Body::Measurement { name: name.into(), value, unit: "ms".into() });
        }
    }
    let of = |figure: fn(&Committed) -> u64| done.as_ref().ok().map(figure);
    Ok(Outcome {
        job: run.record().id.clone(),
        engine: Engine::Shadow,
        write_block_ms: of(|done| done.block_ms),
        drain_ms: of(|done| done.drain_ms),
        rename_ms: of(|done| done.rename_ms),
        verified,
        last_verified: of(|done| done.last_verified),
        slipped: done.map_or_else(|slipped| slipped, |done| done.slipped),
        seconds: f64::from(u32::try_from(ms(began)).unwrap_or(u32::MAX)) / 1_000.0,
    })
}

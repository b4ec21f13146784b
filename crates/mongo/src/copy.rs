//! The phases of a copy job: prepare, copy, index, follow.
//!
//! 1. *prepare*: read the source's cluster time T0; create and slice the collections; persist slices, T0, the
//!    horizon.
//! 2. *copy*: this process, and every other process that leases slices, copies the slices, while the coordinator
//!    applies the source's changes to the documents that are copied already.
//! 3. *index*: build the indexes once the bulk is copied. Unique indexes are built at a settled point: at any other
//!    moment the destination may hold two documents of different times with the same value.
//! 4. *follow*: apply changes until the job is cut over.
//!
//! Every step is idempotent. If a process dies, its successor resumes from the checkpoint ([`State`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::Timestamp;
use futures_util::FutureExt;
use imago_job::control::Stop;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_job::run::{Ending, Run};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::copy::preflight::{Plan, Planned};
pub use crate::copy::prepare::SLICE_BYTES;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::replicate::bulk_reader::{Counters, Worker};
use crate::replicate::coordinator::Coordinator;
use crate::replicate::monitor::Applied;
use crate::replicate::pace::{self, PaceGuard, SparedCluster};
use crate::replicate::pair::Pair;
use crate::replicate::route::Route;
pub use crate::server::clusters::Clusters;
use crate::server::collection::Definition;
use crate::server::timing::{WRITE_TIME_MAX, retry_transient};
use crate::state::journal::MongoJournal;
use crate::state::leases::Leases;

mod begin;
mod catalog;
mod checkpoints;
mod claim;
mod create;
pub mod cutover;
mod differences;
mod follow;
mod forecast;
mod functions;
mod predictions;
pub mod preflight;
mod prepare;
pub mod repair;
mod report;
mod retention;
mod state;
mod structure;
mod worker;

pub use catalog::{CatalogChanges, CatalogDiff, Gone, GoneCollection, Joined, news};
use catalog::{CatalogWatch, reconcile, recover};
use checkpoints::CheckpointSaver;
pub use claim::{claim, describe_state, owner_timing, take_over};
pub use create::{FollowedCollections, create};
use follow::FollowOutcome;
pub use predictions::COPY_S;
pub(crate) use predictions::{predict_reshard, realize_end};
use report::CopyProgress;
pub use retention::restore_retention;
use state::note;
pub use state::{Commit, CutOver, Job, ReverseJob, SourceBlock, State, state_of};
pub(crate) use state::{save, save_final};
pub use worker::run_worker;

/// The kind under which the journal records a copy job.
pub const KIND: &str = "copy";

/// The condition that ends a run, unless the run is interrupted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopWhen {
    /// The run ends when the destination has caught up with the source for the first time.
    CaughtUp,
    /// The run follows the source until it is interrupted, or another process takes the job over.
    HandedOver,
}

/// The limits of one process's run of a copy job, and the condition that ends it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of slices that this process copies at the same time.
    pub workers: usize,
    /// The condition that ends the run.
    pub stop_when: StopWhen,
    /// The name of this process in the job's record.
    pub process: String,
    /// Longest time that the server waits for a change before it sends an empty batch of the change stream.
    pub await_max: Duration,
    /// Target size of a slice, in bytes of documents, for collections that are not cut into slices yet.
    pub slice_bytes: u64,
    /// The route by which documents are copied from shard to shard without the router; `None` unless a job reshards.
    pub route: Option<Arc<Route>>,
}

/// Most collections that one operation inspects at the same time: each inspection takes some round trips.
const INSPECTIONS_MAX: usize = 16;

/// Returns the plan of the copy job in `record`, with the collections that have joined or ended since it was made.
///
/// # Errors
/// Fails if the record is not one of a copy.
pub fn plan_of(record: &Record) -> Result<Plan> {
    plan_with(record, &state_of(record)?)
}

/// Returns the plan in `record` with the changes in `state`, which may be newer than the state in the record.
fn plan_with(record: &Record, state: &State) -> Result<Plan> {
    let plan: Plan = serde_json::from_value(record.spec.clone())
        .map_err(|e| Error::malformed("the job's plan", e))?;
    Ok(plan.changed_by(state))
}

/// The reason that this process stopped working at a copy job that can be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The destination has caught up. No process follows the source now.
    CaughtUp,
    /// Another process took the job over.
    HandedOver,
}

/// Claims a copy job that [`create()`] made or that a process left, and coordinates it until `options.stop_when` holds.
///
/// # Errors
/// Fails as [`claim()`] does, and with the error that ended the copy, which the job's record holds too.
#[crate::boxed]
pub async fn coordinate(
    clusters: &Clusters,
    id: &JobId,
    options: &Options,
    events: &Events,
    interrupted: &CancellationToken,
) -> Result<RunOutcome> {
    for attempt in 1.. {
        let claimed = claim(clusters, id, &options.process, events, interrupted).await?;
        match run_once(clusters, claimed, options, attempt < RESTARTS_MAX).await {
            Ok(Ended::CaughtUp) => return Ok(RunOutcome::CaughtUp),
            Ok(Ended::Restart) => tokio::time::sleep(RESTART_PAUSE).await,
            Err(Error::Stopped(Stop::HandedOver)) => return Ok(RunOutcome::HandedOver),
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last attempt returns")
}

/// Most runs of one job by one process. A run that fails because the source's catalog changed is followed by another.
const RESTARTS_MAX: u32 = 100;
/// Pause between a run that failed because the source's catalog changed and the next one.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// The outcome of a run that ended without an error.
enum Ended {
    CaughtUp,
    /// The source's catalog changed during the run, so the job is to be run again from its saved state.
    Restart,
}

/// Coordinates a claimed copy job until it is done, interrupted or failed, and records the outcome in its record.
///
/// # Errors
/// Returns the error that ended the copy; the job's record holds it too.
#[crate::boxed]
pub async fn run(clusters: &Clusters, run: Run, options: &Options) -> Result<()> {
    run_once(clusters, run, options, false).await.map(|_| ())
}

async fn run_once(
    clusters: &Clusters,
    run: Run,
    options: &Options,
    may_restart: bool,
) -> Result<Ended> {
    let mut ended = work(clusters, &run, options).boxed().await.map(|()| Ended::CaughtUp);
    if let Err(error) = &ended
        && may_restart
    {
        match recover(clusters, &run, error).await {
            Ok(false) => {}
            Ok(true) => ended = Ok(Ended::Restart),
            Err(exact @ Error::Disrupted { .. }) => ended = Err(exact),
            Err(error) => tracing::warn!(%error, "the source's catalog could not be compared"),
        }
    }
    if let Err(Error::Stopped(Stop::Cancelled)) = &ended {
        let journal = MongoJournal::new(clusters.destination.clone());
        let record = journal.load(&run.record().id).await?;
        restore_retention(&clusters.destination, &record, run.reporter()).await?;
    }
    let ending = match &ended {
        // The job can be resumed, or cut over.
        Ok(_) => Ending::Stopped(Stop::Interrupted),
        Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
        Err(error) => Ending::Failed(error.to_string()),
    };
    run.end(ending).await?;
    ended
}

async fn work(clusters: &Clusters, run: &Run, options: &Options) -> Result<()> {
    let mut state = state_of(run.record())?;
    if plan_with(run.record(), &state)?.is_all_gone() {
        state = reconcile(clusters, run, state).await?;
    }
    loop {
        let mut copy = complete(clusters, run, options, state).boxed().await?;
        let followed = async {
            run.enter("follow").await?;
            copy.follow(options.stop_when).await
        };
        match followed.await {
            Ok(FollowOutcome::CaughtUp) => return copy.end().await.map(|_| ()),
            Ok(FollowOutcome::CatalogChanged) => {
                state = reconcile(clusters, run, copy.end().await?).await?;
            }
            Err(error) => {
                copy.quiesce().await;
                return Err(error);
            }
        }
    }
}

/// Copies the bulk and the indexes of all collections, also of those that join meanwhile, and returns the copy job.
///
/// # Errors
/// Returns the error that ends the job.
pub(crate) async fn complete<'a>(
    clusters: &'a Clusters,
    run: &'a Run,
    options: &Options,
    mut state: State,
) -> Result<CopyJob<'a>> {
    loop {
        let mut copy = CopyJob::begin_at(clusters, run, options, state).boxed().await?;
        match copy.fill(options).await {
            Ok(true) => return Ok(copy),
            // The loop ends, because at most `JOINED_MAX` collections join a job.
            Ok(false) => state = reconcile(clusters, run, copy.end().await?).await?,
            Err(error) => {
                copy.quiesce().await;
                return Err(error);
            }
        }
    }
}

/// A copy job that this process coordinates.
pub struct CopyJob<'a> {
    clusters: &'a Clusters,
    run: &'a Run,
    /// The plan, with the collections that have joined the job or ended at the source since it was made.
    pub plan: Plan,
    /// The job's state, which is saved as the checkpoint of its record.
    pub state: State,
    catalog: CatalogWatch,
    /// False if the source is a single secondary, which may lack the last acknowledged writes.
    has_last_writes: bool,
    /// The handles at the source and destination of each collection, by its number in the plan.
    pub pairs: Arc<Vec<Pair>>,
    /// The source's definition of each collection, by its number in the plan.
    pub(crate) definitions: Arc<Vec<Definition>>,
    leases: Leases,
    counters: Arc<Counters>,
    workers: JoinSet<Result<()>>,
    /// Reads the source's changes and applies them to the destination.
    pub coordinator: Coordinator,
    /// The route by which documents are copied from shard to shard without the router; `None` if the router is used.
    route: Option<Arc<Route>>,
    progress: CopyProgress,
    checkpoints: CheckpointSaver,
    /// The source's cluster time up to which changes are applied, in seconds since 1970, for its oplog's monitor.
    applied: Applied,
    _watches: Vec<AbortOnDropHandle<()>>,
}

impl CopyJob<'_> {
    /// Copies the bulk and builds the indexes, unless that is done already. Returns false if the job's collections,
    /// views or functions have to change: the caller then ends this coordinator and starts another one.
    ///
    /// # Errors
    /// Returns the error that ends the job.
    async fn fill(&mut self, options: &Options) -> Result<bool> {
        let _pace = (!self.coordinator.is_copied()).then(|| self.spare_clients());
        if !self.coordinator.is_copied() {
            self.run.enter("copy").await?;
            self.copy_bulk(options).await?;
        }
        if !self.state.is_indexed {
            self.run.enter("index").await?;
            self.build_indexes(None).await?;
        }
        Ok(!self.is_catalog_stale().await?)
    }

    /// Limits the bulk to a pace that clients of both clusters hardly notice, until the returned guard is dropped.
    fn spare_clients(&self) -> PaceGuard {
        let of = |side: fn(&Planned) -> &Namespace| {
            self.plan.collections.iter().map(side).cloned().collect::<Vec<Namespace>>()
        };
        let source = SparedCluster {
            cluster: self.clusters.source.clone(),
            reads: of(|planned| &planned.from),
            writes: Vec::new(),
        };
        let destination = SparedCluster {
            cluster: self.clusters.destination.clone(),
            reads: Vec::new(),
            writes: of(|planned| &planned.to),
        };
        let reporter = Some(self.run.reporter().clone());
        pace::watch(vec![source, destination], self.run.control().clone(), reporter)
    }

    /// Copies slices until this process and the other processes of the job have copied all of them.
    ///
    /// # Errors
    /// Returns the error that ends the job.
    pub async fn copy_bulk(&mut self, options: &Options) -> Result<()> {
        self.route.clone_from(&options.route);
        let worker = Worker {
            pairs: Arc::clone(&self.pairs),
            definitions: Arc::clone(&self.definitions),
            leases: self.leases.clone(),
            control: self.run.control().clone(),
            counters: Arc::clone(&self.counters),
            route: options.route.clone(),
        };
        self.predict_bytes();
        for _ in 0..options.workers {
            let worker = worker.clone();
            self.workers.spawn(async move { worker.run().await });
        }
        while !self.coordinator.is_copied() {
            self.step().await?;
            while let Some(ended) = self.workers.try_join_next() {
                ended.expect("a worker neither panics nor is aborted")?;
            }
        }
        self.realize_bytes();
        Ok(())
    }

    /// Runs one step of the coordinator, follows indexes and options, and reports and saves the state if that is due.
    ///
    /// # Errors
    /// Returns the error that ends the job.
    #[crate::boxed]
    pub async fn step(&mut self) -> Result<()> {
        self.coordinator.step().await?;
        self.lose_ended().await?;
        self.inspect_catalog().await?;
        if self.state.is_indexed {
            for (ns, what) in self.coordinator.take_structure() {
                self.follow_structure(ns, &what).await?;
            }
        }
        if self.progress.is_due() {
            self.report();
        }
        if self.checkpoints.is_due().await? && self.note_checkpoint()? {
            self.checkpoints.begin(self.run, &self.state);
        }
        Ok(())
    }

    /// Copies the coordinator's checkpoint into `state`. Returns false if there is none yet, or if a successor that
    /// resumes there would miss the end of a collection, or a change of indexes or options.
    fn note_checkpoint(&mut self) -> Result<bool> {
        if self.coordinator.has_ended()
            || (self.state.is_indexed && self.coordinator.has_structure())
        {
            return Ok(false);
        }
        let Some(checkpoint) = self.coordinator.checkpoint() else { return Ok(false) };
        note(&mut self.state, &checkpoint)?;
        self.applied.store(checkpoint.time.time, Ordering::Relaxed);
        Ok(true)
    }

    /// Returns the source's current cluster time.
    ///
    /// # Errors
    /// Fails if the source stays unavailable, or the job is stopped.
    pub async fn source_time(&self) -> Result<Timestamp> {
        let ask = || self.clusters.source.cluster_time();
        retry_transient("ask for the source's time", self.run.control(), ask).await
    }

    /// Makes the source's idle shards report their cluster time, without which the change stream advances only later.
    #[crate::boxed]
    pub async fn heartbeat(&self) {
        if let Err(error) = self.clusters.source.heartbeat().await {
            tracing::debug!(%error, "the source's shards were not nudged");
        }
    }

    /// Returns the control by which the job is paused, cancelled and throttled.
    #[must_use]
    pub fn control(&self) -> imago_job::control::Control {
        self.run.control().clone()
    }

    /// Waits for the save in progress, and saves the present checkpoint in the job's record.
    ///
    /// # Errors
    /// Fails if the job was taken over, or the destination stays unavailable.
    #[crate::boxed]
    pub async fn save(&mut self) -> Result<()> {
        self.checkpoints.finish().await?;
        self.note_checkpoint()?;
        save(self.run, &self.state).await?;
        self.checkpoints.restart();
        Ok(())
    }

    /// Stops the job's work in this process, and returns once none of its writes can still be in progress, so that a
    /// successor may start at once. If a server does not reply, it ends each write by itself after [`WRITE_TIME_MAX`].
    pub async fn quiesce(&mut self) {
        self.run.control().stop(Stop::Interrupted);
        let ended = async {
            while self.workers.join_next().await.is_some() {}
            self.coordinator.quiesce().await;
        };
        let bound = WRITE_TIME_MAX + Duration::from_secs(1);
        if tokio::time::timeout(bound, ended).await.is_err() {
            tracing::debug!("writes were left to the server's own limit");
        }
    }

    /// Ends the coordinator, saves its last checkpoint, and returns the job's state.
    ///
    /// # Errors
    /// Fails if a round in progress failed, or the job was taken over.
    pub async fn end(mut self) -> Result<State> {
        self.report();
        self.checkpoints.finish().await?;
        // The last checkpoint may be past the event that ended a collection: a resume would miss that event.
        self.lose_ended().await?;
        let misses_structure = self.state.is_indexed && self.coordinator.has_structure();
        if let Some(checkpoint) = self.coordinator.end().await?.filter(|_| !misses_structure) {
            note(&mut self.state, &checkpoint)?;
            save(self.run, &self.state).await?;
        }
        Ok(self.state)
    }
}

//! A copy as a job: prepare, copy, index, follow.
//!
//! 1. *prepare*: take the source's time T0; create the collections; cut them into slices; persist
//!    the slices, the horizon T0, and T0 itself.
//! 2. *copy*: slices are copied by this process and any other that leases them, while the coordinator
//!    applies the source's changes to what is copied already.
//! 3. *index*: indexes are built when the bulk is there. Unique ones at a settled point: at any
//!    other moment the copy may hold two documents of different times with the same value.
//! 4. *follow*: changes are applied until the job is cut over.
//!
//! Every step may be done twice: a process that dies anywhere is followed by one that goes on from
//! the checkpoint ([`State`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::Timestamp;
use futures_util::FutureExt;
use imago_job::control::Stop;
use imago_job::eta::Meter;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::{Limits, Record};
use imago_job::reporter::Events;
use imago_job::run::{Ending, Run};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::copy::preflight::{Plan, Planned};
pub use crate::copy::prepare::SLICE_BYTES;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::replicate::apply::Pair;
use crate::replicate::bulk_reader::{Counters, Worker};
use crate::replicate::coordinator::Coordinator;
use crate::replicate::monitor::Applied;
use crate::replicate::pace::{self, Watched, Watching};
use crate::replicate::route::Route;
pub use crate::server::clusters::Clusters;
use crate::server::collection::Definition;
use crate::server::timing::WRITE_TIME_MAX;
use crate::server::timing::retry_transient;
use crate::state::journal::MongoJournal;
use crate::state::leases::Leases;

mod begin;
mod catalog;
mod claim;
pub mod cutover;
mod follow;
mod functions;
pub mod preflight;
mod prepare;
pub mod repair;
mod report;
mod state;
mod structure;
mod worker;

use catalog::take_in;
pub use catalog::{CatalogChanges, Gone, GoneCollection, Joined, News, news};
pub use claim::{claim, owner_timing, take_over};
use follow::Followed;
use state::note;
pub use state::{Commit, CutOver, Job, SourceBlock, State, WayBack, state_of};
pub(crate) use state::{save, save_at_last};
pub use worker::help;

/// The kind of a copy's record.
pub const KIND: &str = "copy";

/// The end of a run that is not interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The destination has caught up with the source for the first time.
    CaughtUp,
    /// Never: it follows until it is interrupted or handed over.
    HandedOver,
}

/// The limits and the end of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slices that this process copies at the same time.
    pub workers: usize,
    /// The condition that ends the run.
    pub until: Until,
    /// The name of this process, for the job's record.
    pub process: String,
    /// Longest wait of the change stream for a change before it reports its position.
    pub await_max: Duration,
    /// About how large a slice of a collection that is yet to be cut is, in bytes of documents.
    pub slice_bytes: u64,
    /// The way past the router, of a job that changes one collection's shape.
    pub route: Option<Arc<Route>>,
}

const REPORT_EVERY: Duration = Duration::from_millis(250);
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Keeps a planned job; nothing else is written.
///
/// # Errors
/// Fails if the destination refuses.
pub async fn create(clusters: &Clusters, plan: &Plan, limits: Limits) -> Result<JobId> {
    let journal = MongoJournal::new(clusters.destination.clone());
    refuse_shared(&journal, plan).await?;
    let spec = serde_json::to_value(plan).map_err(|e| Error::malformed("the plan", e))?;
    let mut record = Record::new(KIND, spec, journal.now_ms().await?);
    record.limits = limits;
    let state = serde_json::to_value(State::default());
    record.checkpoint = state.map_err(|e| Error::malformed("the job's state", e))?;
    journal.create(&record).await?;
    Ok(record.id)
}

/// Refuses to copy into a collection that another job copies into: each would undo what the other did.
async fn refuse_shared(journal: &MongoJournal, plan: &Plan) -> Result<()> {
    for record in journal.list().await? {
        if record.kind != KIND || record.state.is_final() {
            continue;
        }
        let other = plan_of(&record)?;
        let into = |planned: &&Planned| {
            other.collections.iter().any(|of| of.gone.is_none() && of.to == planned.to)
        };
        if let Some(shared) = plan.collections.iter().find(into) {
            let (id, state) = (&record.id, record.state.word());
            return Err(Error::precondition(
                format!("job {id}, which is {state}, copies into {} already", shared.to),
                format!(
                    "let it go on with `imago job resume {id}`, give it up with `imago job cancel {id}`, \
                     or choose another name with --ns a.b=c.d"
                ),
            ));
        }
    }
    Ok(())
}

/// The plan of a job, with the collections that came and went since.
///
/// # Errors
/// Fails if the record is not one of a copy.
pub fn plan_of(record: &Record) -> Result<Plan> {
    plan_with(record, &state_of(record)?)
}

/// The plan of a job whose state is newer than its record.
fn plan_with(record: &Record, state: &State) -> Result<Plan> {
    let plan: Plan = serde_json::from_value(record.spec.clone())
        .map_err(|e| Error::malformed("the job's plan", e))?;
    Ok(plan.changed_by(state))
}

/// The reason for which a process left a copy that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It has caught up; no process follows the source now.
    CaughtUp,
    /// Another process took it over.
    HandedOver,
}

/// Claims a copy and leads it: the one way to work at a job that [`create`] made or a process left.
///
/// # Errors
/// As [`claim`]; the error that ended the copy, which its record has too.
pub async fn lead(
    clusters: &Clusters,
    id: &JobId,
    options: &Options,
    events: &Events,
    interrupted: &CancellationToken,
) -> Result<Left> {
    let claimed = claim(clusters, id, &options.process, events, interrupted).await?;
    match run(clusters, claimed, options).await {
        Ok(()) => Ok(Left::CaughtUp),
        Err(Error::Stopped(Stop::HandedOver)) => Ok(Left::HandedOver),
        Err(error) => Err(error),
    }
}

/// Works at a claimed copy until it is done, interrupted or failed, and says so in its record.
///
/// # Errors
/// The error that ended it; the record has it too.
pub async fn run(clusters: &Clusters, run: Run, options: &Options) -> Result<()> {
    let ended = work(clusters, &run, options).boxed().await;
    let ending = match &ended {
        // Caught up: it can be resumed, or cut over.
        Ok(()) => Ending::Stopped(Stop::Interrupted),
        Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
        Err(error) => Ending::Failed(error.to_string()),
    };
    run.end(ending).await?;
    ended
}

async fn work(clusters: &Clusters, run: &Run, options: &Options) -> Result<()> {
    let mut state = state_of(run.record())?;
    loop {
        let mut copy = complete(clusters, run, options, state).boxed().await?;
        let followed = async {
            run.enter("follow").await?;
            copy.follow(options.until).await
        };
        match followed.await {
            Ok(Followed::CaughtUp) => return copy.end().await.map(|_| ()),
            Ok(Followed::CatalogChanged) => {
                state = take_in(clusters, run, copy.end().await?).await?;
            }
            Err(error) => {
                copy.quiesce().await;
                return Err(error);
            }
        }
    }
}

/// A copy whose bulk and indexes are there, of all collections that the source has of it by now.
///
/// # Errors
/// The error that ends the job.
pub(crate) async fn complete<'a>(
    clusters: &'a Clusters,
    run: &'a Run,
    options: &Options,
    mut state: State,
) -> Result<Copying<'a>> {
    loop {
        let mut copy = Copying::begin_at(clusters, run, options, state).boxed().await?;
        match copy.fill(options).await {
            Ok(true) => return Ok(copy),
            // No more join than a job may have.
            Ok(false) => state = take_in(clusters, run, copy.end().await?).await?,
            Err(error) => {
                copy.quiesce().await;
                return Err(error);
            }
        }
    }
}

/// A copy that this process leads.
pub struct Copying<'a> {
    clusters: &'a Clusters,
    run: &'a Run,
    /// The plan.
    pub plan: Plan,
    /// The record's state.
    pub state: State,
    /// Differences between `state` and the source's catalog, as of the last look.
    news: News,
    /// A look at the catalog that is under way.
    looking: Option<AbortOnDropHandle<Result<News>>>,
    looked: Instant,
    look_took: Duration,
    /// Collections that are left out, as far as the operator was told.
    told: HashSet<Namespace>,
    /// The collections.
    pub pairs: Arc<Vec<Pair>>,
    pub(crate) definitions: Arc<Vec<Definition>>,
    leases: Leases,
    counters: Arc<Counters>,
    workers: JoinSet<Result<()>>,
    /// The coordinator.
    pub coordinator: Coordinator,
    /// The way of the bulk, while it is copied past a router.
    route: Option<Arc<Route>>,
    total: (u64, u64),
    copied_before: (u64, u64),
    applied_before: u64,
    meter: Meter,
    reported: Instant,
    saved: Instant,
    /// A save of the checkpoint that is under way: the coordinator does not wait for it.
    saving: Option<AbortOnDropHandle<Result<()>>>,
    began: Instant,
    applied: Applied,
    _watches: Vec<AbortOnDropHandle<()>>,
}

impl Copying<'_> {
    /// Copies the bulk and builds the indexes, where that is not done. False when the source has
    /// collections by then that are to join: they do behind the end of this coordinator.
    ///
    /// # Errors
    /// The error that ends the job.
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
        Ok(!self.has_news().await?)
    }

    /// Keeps the bulk at a pace that clients of either cluster hardly feel, until the returned
    /// watch is dropped.
    fn spare_clients(&self) -> Watching {
        let of = |side: fn(&Planned) -> &Namespace| {
            self.plan.collections.iter().map(side).cloned().collect::<Vec<Namespace>>()
        };
        let source = Watched {
            cluster: self.clusters.source.clone(),
            reads: of(|planned| &planned.from),
            writes: Vec::new(),
        };
        let destination = Watched {
            cluster: self.clusters.destination.clone(),
            reads: Vec::new(),
            writes: of(|planned| &planned.to),
        };
        let reporter = Some(self.run.reporter().clone());
        pace::watch(vec![source, destination], self.run.control().clone(), reporter)
    }

    /// Copies slices until all are copied, by this process or others.
    ///
    /// # Errors
    /// The error that ends the job.
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
        Ok(())
    }

    /// One step of the coordinator, with its other duties: structure, reports, the checkpoint.
    ///
    /// # Errors
    /// The error that ends the job.
    pub async fn step(&mut self) -> Result<()> {
        self.coordinator.step().await?;
        self.lose_ended().await?;
        self.look_at_catalog().await;
        if self.state.is_indexed {
            for (ns, what) in self.coordinator.take_structure() {
                self.follow_structure(ns, &what).await?;
            }
        }
        if self.reported.elapsed() > REPORT_EVERY {
            self.report();
        }
        if self.saving.as_ref().is_some_and(AbortOnDropHandle::is_finished) {
            self.end_save().await?;
        }
        if self.saving.is_none() && self.saved.elapsed() > SAVE_EVERY {
            self.begin_save()?;
        }
        Ok(())
    }

    /// Saves beside the coordinator: a save waits for the destination's majority, and changes should not.
    fn begin_save(&mut self) -> Result<()> {
        self.saved = Instant::now();
        if !self.note_checkpoint()? {
            return Ok(());
        }
        let (run, state) = (self.run.clone(), self.state.clone());
        let saving = tokio::spawn(async move { save(&run, &state).await });
        self.saving = Some(AbortOnDropHandle::new(saving));
        Ok(())
    }

    /// Waits for the save under way, if there is one: an older state must not reach the record
    /// after a newer one.
    async fn end_save(&mut self) -> Result<()> {
        match self.saving.take() {
            Some(saving) => saving.await.expect("a save neither panics nor is aborted"),
            None => Ok(()),
        }
    }

    /// Takes the coordinator's checkpoint over into the state; false when there is none yet, or when a
    /// successor that begins there would miss a change of indexes or options.
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

    /// The source's time now.
    ///
    /// # Errors
    /// Fails if the source stays away, or the job is stopped.
    pub async fn source_time(&self) -> Result<Timestamp> {
        let ask = || self.clusters.source.cluster_time();
        retry_transient("ask for the source's time", self.run.control(), ask).await
    }

    /// Has the source's quiet shards tell their time: without it the stream gets there too, only
    /// later.
    pub async fn heartbeat(&self) {
        if let Err(error) = self.clusters.source.heartbeat().await {
            tracing::debug!(%error, "the source's shards were not nudged");
        }
    }

    /// Pause, cancel, throttle.
    #[must_use]
    pub fn control(&self) -> imago_job::control::Control {
        self.run.control().clone()
    }

    /// Keeps the checkpoint.
    ///
    /// # Errors
    /// Fails if the job was taken over, or the destination stays away.
    pub async fn save(&mut self) -> Result<()> {
        self.end_save().await?;
        self.note_checkpoint()?;
        save(self.run, &self.state).await?;
        self.saved = Instant::now();
        Ok(())
    }

    /// Ends everything that this process still does at the copy, and returns when none of its
    /// writes can be under way any more: its successor may begin at once. A server that does not
    /// answer ends each write by itself, after [`WRITE_TIME_MAX`].
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

    /// Ends the coordinator, keeps its last checkpoint, and returns the job's state.
    ///
    /// # Errors
    /// Fails if a round in progress failed, or the job was taken over.
    pub async fn end(mut self) -> Result<State> {
        self.report();
        self.end_save().await?;
        // The last checkpoint may be past the event that ended a collection: a resume would miss it.
        self.lose_ended().await?;
        let misses_structure = self.state.is_indexed && self.coordinator.has_structure();
        if let Some(checkpoint) = self.coordinator.end().await?.filter(|_| !misses_structure) {
            note(&mut self.state, &checkpoint)?;
            save(self.run, &self.state).await?;
        }
        Ok(self.state)
    }
}

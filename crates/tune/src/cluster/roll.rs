//! The parts of a roll that are the same for all databases. A roll is a job that applies a new configuration to the
//! nodes of a cluster, one step after the other; the steps themselves are the database's ([`Roll::execute`]).
//!
//! Invariants:
//! - A step begins only when an inspection of the cluster finds no obstacle to it ([`settled`]).
//! - A job that left a node stopped, or with half of a change, is resumed and not cancelled ([`cancel`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_job::clock;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_job::run::Run;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::costs::NodeRollTime;
use super::error::{Error, Result};
use super::job::{self, Job, Lock};
use super::roll_time::{LEARNS_FROM, ROLL_S, roll_time};

/// Time allowed for a cluster to become healthy before and after a step: many hours of hints, or a full
/// resynchronization of a replica, take long.
const SETTLE_BOUND: Duration = Duration::from_secs(1_800);
/// Time for which an obstacle to a step must last before it is reported.
const QUIET: Duration = Duration::from_secs(5);

/// A roll of one database: a connection to the cluster, and the changes to make there.
pub(crate) trait Roll {
    /// Kind of the rolls' jobs, in the journal.
    const KIND: &'static str;
    /// Specification of a roll, stored in the job's record.
    type Spec: Serialize + DeserializeOwned;
    /// Persistent state of a roll, stored in the job's record.
    type Checkpoint: Checkpoint;
    /// Store of the jobs' records.
    type Journal: Journal + Clone + 'static;
    /// Result of a completed roll.
    type Outcome;

    /// Returns the specification of this roll.
    fn spec(&self) -> &Self::Spec;

    /// Returns the lock on the cluster's configuration; `journal` has the roll's job.
    fn lock<'a>(&'a self, journal: &'a Self::Journal) -> &'a impl Lock;

    /// Time that a node takes, in seconds, if the cluster has not shown it yet: a change in the running node, and a restart.
    const ASSUMED_S: (f64, f64);

    /// Returns the effect of the roll on the cluster's nodes, by which its time is predicted.
    fn extent(&self) -> Extent;

    /// Returns the effect of an earlier roll on the cluster's nodes, by its specification.
    fn extent_of(spec: Self::Spec, took: &[NodeRollTime]) -> Extent;

    /// Executes the roll from its checkpoint to its end, as the process that has claimed the job (`run`).
    async fn execute(
        &self,
        run: &Run,
        journal: &Self::Journal,
        checkpoint: Self::Checkpoint,
    ) -> Result<Self::Outcome>;
}

/// The effect of a roll on a cluster's nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// True if the nodes restart.
    pub(crate) restarts: bool,
    /// True if all nodes restart at once.
    pub(crate) is_at_once: bool,
    /// Time for which nodes are compared or waited for besides, in seconds.
    pub(crate) fixed_s: f64,
}

/// Persistent state of a roll, from which another process can resume it.
pub(crate) trait Checkpoint: Default + Serialize + DeserializeOwned {
    /// Returns true if nodes may be stopped or half changed, so that the job must be resumed before it can end.
    fn leaves_nodes(&self) -> bool;

    /// Returns the duration of each node's change so far.
    fn node_roll_times(self) -> Vec<NodeRollTime>;
}

/// The process that is to execute a roll.
pub(crate) struct Executor<'a> {
    /// Name of the process, in the journal.
    pub(crate) process: &'a str,
    /// Receiver of the roll's events.
    pub(crate) events: &'a Events,
    /// Token whose cancellation interrupts the roll; another process may then resume it.
    pub(crate) interrupted: CancellationToken,
}

impl Executor<'_> {
    /// Executes a roll's job until it ends; `is_new` is true if no part of the job has been executed yet.
    async fn execute<R: Roll>(
        self,
        roll: &R,
        journal: &R::Journal,
        id: &JobId,
        is_new: bool,
    ) -> Result<R::Outcome> {
        let Self { process, events, interrupted } = self;
        let shared = Arc::new(journal.clone());
        let job = Job { journal: shared, id, process, events, interrupted, is_new };
        let work = async |run: &Run| {
            let checkpoint = job::checkpoint(&run.record().checkpoint)?;
            if is_new {
                predict(roll, run, journal).await;
            }
            let executed = roll.execute(run, journal, checkpoint).await;
            if executed.is_ok() {
                run.realize(ROLL_S, |at_ms| clock::now_ms().saturating_sub(at_ms) as f64 / 1_000.0);
            }
            executed
        };
        job.work(roll.lock(journal), work).await
    }

    /// Creates the job of a roll in the journal and executes it.
    pub(crate) async fn begin<R: Roll>(self, roll: &R, journal: &R::Journal) -> Result<R::Outcome> {
        let spec = serde_json::to_value(roll.spec()).expect("texts and numbers");
        let record = Record::new(R::KIND, spec, clock::wall()());
        journal.create(&record).await?;
        self.execute(roll, journal, &record.id, true).await
    }

    /// Executes a job from its checkpoint, after its last process has died or was interrupted.
    pub(crate) async fn resume<R: Roll>(
        self,
        roll: &R,
        journal: &R::Journal,
        id: &JobId,
    ) -> Result<R::Outcome> {
        self.execute(roll, journal, id, false).await
    }
}

/// Predicts the time of a roll by earlier ones of the journal, and records it in the job. Without a reply of the journal there is
/// no earlier one.
async fn predict<R: Roll>(roll: &R, run: &Run, journal: &R::Journal) {
    let extent = roll.extent();
    let mut records = journal.list().await.unwrap_or_default();
    records.sort_by_key(|record| std::cmp::Reverse(record.created_at_ms));
    let past: Vec<f64> = records.iter().filter_map(|one| node_s::<R>(one, extent)).collect();
    let assumed_s = if extent.restarts { R::ASSUMED_S.1 } else { R::ASSUMED_S.0 };
    let predicted = roll_time(extent.nodes, &past, assumed_s, extent.fixed_s);
    run.predict(ROLL_S, predicted, clock::now_ms());
    let what = format!(
        "the roll takes {:.1} s ({:.1} to {:.1} s)",
        predicted.expected, predicted.low, predicted.high
    );
    let why = match past.len() {
        0 => "the cluster has had none of this kind: that is what nodes took elsewhere".to_owned(),
        count => format!("by the last {} of this kind here", count.min(LEARNS_FROM)),
    };
    run.reporter().decision(what, &why);
}

/// Returns the time that an earlier roll took for each of its nodes, in seconds; `None` if it did not end, or had another effect
/// on nodes than `extent`.
fn node_s<R: Roll>(record: &Record, extent: Extent) -> Option<f64> {
    let took = node_roll_times::<R>(record);
    let spec = serde_json::from_value(record.spec.clone()).ok()?;
    let own = R::extent_of(spec, &took);
    let is_like = (own.restarts, own.is_at_once) == (extent.restarts, extent.is_at_once);
    let roll = record.predictions.iter().find(|one| one.name == ROLL_S)?;
    let seconds = roll.realized.filter(|_| is_like && !took.is_empty())?;
    Some((seconds - own.fixed_s).max(0.0) / took.len() as f64)
}

/// Returns the specification of the roll with this ID in the journal.
pub(crate) async fn spec<R: Roll>(journal: &R::Journal, id: &JobId) -> Result<R::Spec> {
    let record = journal.load(id).await?;
    if record.kind != R::KIND {
        return Err(Error::Usage(format!("job {id} is no roll but a {}", record.kind)));
    }
    serde_json::from_value(record.spec)
        .map_err(|error| Error::Usage(format!("the specification of job {id} is invalid: {error}")))
}

/// Returns the duration of each node's change in a roll so far, from the job's record; empty if the job is not such a
/// roll, or of an incompatible version.
pub(crate) fn node_roll_times<R: Roll>(record: &Record) -> Vec<NodeRollTime> {
    let checkpoint = job::checkpoint::<R::Checkpoint>(&record.checkpoint);
    let checkpoint = checkpoint.ok().filter(|_| record.kind == R::KIND);
    checkpoint.map_or_else(Vec::new, Checkpoint::node_roll_times)
}

/// Cancels the job of a roll that no process executes any more, unless it left nodes to restore. Returns true if the
/// job has ended.
pub(crate) async fn cancel<R: Roll>(
    journal: &R::Journal,
    lock: &impl Lock,
    id: &JobId,
    process: &str,
) -> Result<bool> {
    let leaves_nodes = |saved: &_| Ok(job::checkpoint::<R::Checkpoint>(saved)?.leaves_nodes());
    job::cancel(journal, lock, id, process, leaves_nodes).await
}

/// Returns the error of a roll whose cluster has obstacles to its first step.
pub(crate) fn not_settled(obstacles: &[String], help: &'static str) -> Error {
    Error::precondition(format!("the cluster is not settled: {}", obstacles.join("; ")), help)
}

/// What an inspection of a cluster found before or after a step of a roll.
pub(crate) enum Inspection<T> {
    /// No obstacle to a step, and the state of the cluster.
    Settled(T),
    /// Obstacles to a step, which may disappear.
    Obstacles(String),
}

/// Repeats an inspection every `every` until it finds no obstacle, and returns the cluster's state at that time. The
/// wait can be interrupted only before a step (`is_before_step`), not after one.
pub(crate) async fn settled<T>(
    run: &Run,
    is_before_step: bool,
    every: Duration,
    mut inspect: impl AsyncFnMut() -> Result<Inspection<T>>,
) -> Result<T> {
    let began = Instant::now();
    let mut reported = String::new();
    loop {
        let obstacles = match inspect().await? {
            Inspection::Settled(state) => return Ok(state),
            Inspection::Obstacles(obstacles) => obstacles,
        };
        if began.elapsed() > SETTLE_BOUND {
            let within = SETTLE_BOUND.as_secs();
            return Err(Error::failed(
                format!("the cluster did not settle within {within} s: {obstacles}"),
                "mend that, and begin another roll: nodes that have the new configuration are left as they are",
            ));
        }
        // Obstacles that disappear within a few seconds are not reported.
        if obstacles != reported && began.elapsed() > QUIET {
            run.reporter().warning("not_settled", obstacles.clone(), "the roll waits for it");
            reported = obstacles;
        }
        if is_before_step {
            run.control().sleep(every).await.map_err(Error::Stopped)?;
        } else {
            tokio::time::sleep(every).await;
        }
    }
}

//! The execution of the job of a Cassandra roll, from its claim to its end, by one process after another.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_job::run::Run;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::ClusterFile;
use super::super::Uri;
use super::super::compaction::{self, Compaction};
use super::super::error::{Error, Result, failed};
use super::super::journal::CassandraJournal;
use super::super::obstacles::Obstacles;
use super::super::ring::Cluster;
use super::NodeRollTime;
use super::canary::Canary;
use super::step::Step;
use super::{Change, KIND, Outcome, Roller, Spec, check};
use crate::cluster::job::Lock;
use crate::cluster::roll::{self, Executor, Extent, Inspection, Roll};

/// Maximum time that a new roll waits for nodes to get the writes that they have missed: on a busy cluster some are missed
/// at any time, and delivered within seconds.
const MISSED_WRITES_BOUND: Duration = Duration::from_secs(60);
/// Delay between two inspections of a cluster that is not healthy, and between two checks whether the job is to stop.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Persistent state of a Cassandra roll, from which another process can resume it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Checkpoint {
    /// Host IDs of the nodes that have the new configuration.
    done: BTreeSet<Uuid>,
    /// Host IDs of the nodes that may be stopped at this moment.
    under_way: BTreeSet<Uuid>,
    /// Settings before the roll, by the host ID of each node whose change has begun and by the setting's name; None:
    /// the file did not have the setting.
    pub(super) before: BTreeMap<Uuid, BTreeMap<String, Option<String>>>,
    /// Durations of the change of each node that was changed, by the node's host ID.
    took: BTreeMap<Uuid, NodeRollTime>,
    /// Compactions before the roll, by the name of each table whose alteration has begun.
    compaction_before: BTreeMap<String, Compaction>,
    /// Progress of the canary (the node that is changed first and compared); None before the canary was measured, and
    /// in a roll without a canary.
    pub(super) canary: Option<Canary>,
}

impl Checkpoint {
    /// Returns the checkpoint as JSON, for the job's record.
    pub(super) fn value(&self) -> Json {
        serde_json::to_value(self).expect("texts and numbers")
    }
}

impl roll::Checkpoint for Checkpoint {
    fn leaves_nodes(&self) -> bool {
        !self.under_way.is_empty()
    }

    fn node_roll_times(self) -> Vec<NodeRollTime> {
        self.took.into_values().collect()
    }
}

/// The execution of a roll's job by one process.
pub(super) struct Work<'a> {
    /// The cluster and the changes of the roll.
    pub(super) roller: &'a Roller,
    /// The claim of this process on the job.
    pub(super) run: &'a Run,
    /// Journal that stores the job and its actions.
    pub(super) journal: &'a CassandraJournal,
    /// State of the roll, which is saved after each change of it.
    pub(super) checkpoint: Checkpoint,
}

impl Roller {
    /// Creates the roll's job and executes it; `process` is the name of the process that claims the job, and
    /// `interrupted` is cancelled to interrupt the job.
    ///
    /// # Errors
    /// Fails if a precondition does not hold (no node was changed then), or during the roll: the message reports the
    /// state.
    #[crate::boxed(?Send)]
    pub async fn begin(
        &self,
        process: &str,
        events: &Events,
        interrupted: CancellationToken,
    ) -> Result<Outcome> {
        let began = Instant::now();
        let mut preview = self.preview().await?;
        while !preview.obstacles.is_empty()
            && preview.are_obstacles_transient
            && began.elapsed() < MISSED_WRITES_BOUND
            && !interrupted.is_cancelled()
        {
            tokio::time::sleep(LOOK_EVERY).await;
            preview = self.preview().await?;
        }
        self.canary_can_be_compared(&preview)?;
        if !preview.obstacles.is_empty() {
            let help = "a roll begins only when every node sees all others up, with one schema and without missed writes";
            return Err(roll::not_settled(&preview.obstacles, help));
        }
        let journal = CassandraJournal::open(&self.file.uri).await?;
        Executor { process, events, interrupted }.begin(self, &journal).await
    }
}

impl Roll for Roller {
    const KIND: &'static str = KIND;
    type Spec = Spec;
    type Checkpoint = Checkpoint;
    type Journal = CassandraJournal;
    type Outcome = Outcome;

    // A change in a running node took 1.1 to 1.3 s, and the checks about as long.
    const ASSUMED_S: (f64, f64) = (2.0, 60.0);

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn extent(&self) -> Extent {
        let Spec { is_at_once, canary_s, .. } = self.spec;
        let restarts = self.restarts();
        // The canary is compared before its change, and as long after it.
        let fixed_s = 2.0 * canary_s as f64;
        Extent {
            nodes: self.file.nodes.len(),
            restarts,
            is_at_once: is_at_once && restarts,
            fixed_s,
        }
    }

    fn extent_of(spec: Spec, took: &[NodeRollTime]) -> Extent {
        let restarts = took.iter().any(|node| node.away_s > 0.0);
        let fixed_s = 2.0 * spec.canary_s as f64;
        Extent { nodes: took.len(), restarts, is_at_once: spec.is_at_once && restarts, fixed_s }
    }

    fn lock<'a>(&'a self, journal: &'a CassandraJournal) -> &'a impl Lock {
        journal
    }

    async fn execute(
        &self,
        run: &Run,
        journal: &CassandraJournal,
        checkpoint: Checkpoint,
    ) -> Result<Outcome> {
        Work { roller: self, run, journal, checkpoint }.roll().await
    }
}

impl Lock for CassandraJournal {
    const IF_LEFT: &'static str = "the next roll takes the lock over";

    async fn take(&self, job: &JobId) -> Result<()> {
        self.lock(job).await
    }

    async fn give_up(&self, job: &JobId) -> Result<()> {
        self.unlock(job).await
    }
}

impl Work<'_> {
    /// Executes the roll from its checkpoint to its end.
    async fn roll(mut self) -> Result<Outcome> {
        let began = Instant::now();
        let cluster = self.roller.cluster()?;
        let number = |id: &Uuid| cluster.members.iter().position(|one| one.id == *id);
        // Nodes that a dead process left in an unknown state come first, even if the job is to be cancelled.
        let left: BTreeSet<usize> = self.checkpoint.under_way.iter().filter_map(number).collect();
        let canary: BTreeSet<usize> =
            self.checkpoint.before.keys().find_map(number).into_iter().collect();
        if let Some(Canary::Refused(why)) = self.checkpoint.canary.clone() {
            return Err(self.revert(&cluster, canary, &why).await);
        }
        if !left.is_empty() {
            self.take(&cluster, &left, None).await?;
        }
        if let Some(Canary::Before(_)) = self.checkpoint.canary {
            match canary.first() {
                Some(number) => {
                    let name = cluster.members[*number].access.name.clone();
                    self.measure_after(&cluster, &canary, &name).await?;
                }
                // The canary was only measured, not changed.
                None => self.checkpoint.canary = None,
            }
        }
        // Another roll may have changed the other nodes since.
        self.checkpoint.done.retain(|id| number(id).is_some_and(|number| left.contains(&number)));
        let steps = self.roller.steps(&cluster)?;
        // A file may have been edited since the roll was requested, or since its last process died.
        check::check_startable(&cluster, &self.roller.changes).await?;
        self.run.enter("roll").await?;
        // A table is altered on all nodes at once, and so only after the canary.
        if !self.has_pending_canary() {
            self.alter_tables().await?;
        }
        for step in steps {
            let is_done =
                |number: &usize| self.checkpoint.done.contains(&cluster.members[*number].id);
            let step: BTreeSet<usize> = step.into_iter().filter(|one| !is_done(one)).collect();
            if step.is_empty() {
                continue;
            }
            self.run.control().checkpoint().await.map_err(Error::Stopped)?;
            let cluster = self.settled(&step).await?;
            let canary = self.canary(&cluster, &step);
            if let Some(name) = canary
                && self.checkpoint.canary.is_none()
            {
                self.measure_before(name).await?;
            }
            self.take(&cluster, &step, None).await?;
            if let Some(name) = canary {
                self.measure_after(&cluster, &step, name).await?;
                self.alter_tables().await?;
            }
        }
        let name = |id: &Uuid| number(id).map(|at| cluster.members[at].access.name.clone());
        let took = self.checkpoint.took.iter();
        // A canary of compactions only is in `done`, but has no settings that other nodes lack.
        let changed = self.checkpoint.done.iter().filter(|_| !self.roller.changes.is_empty());
        Ok(Outcome {
            job: self.run.record().id.clone(),
            nodes: changed.filter_map(name).collect(),
            tables: self.roller.spec.compaction.keys().cloned().collect(),
            took: took.filter_map(|(id, took)| Some((name(id)?, *took))).collect(),
            elapsed_s: began.elapsed().as_secs_f64(),
        })
    }

    /// Alters each table of the roll to its new compaction.
    async fn alter_tables(&mut self) -> Result<()> {
        for (table, to) in &self.roller.spec.compaction {
            self.alter(table, to).await?;
        }
        Ok(())
    }

    /// Alters a table (`keyspace.table`) to the compaction `to`, and saves the table's previous compaction before.
    async fn alter(&mut self, table: &str, to: &Compaction) -> Result<()> {
        self.run.control().checkpoint().await.map_err(Error::Stopped)?;
        let session = &self.roller.session;
        let before = compaction::present(session, table).await?;
        self.checkpoint.compaction_before.entry(table.to_owned()).or_insert(before);
        self.run.save(self.checkpoint.value()).await?;
        let what = format!("{table}: compaction becomes {to}");
        let why = "all nodes change it at once, and what is there is rewritten as it is compacted";
        self.journal.note(&self.run.record().id, &what, why).await?;
        if compaction::alter(session, table, to).await? {
            self.run.reporter().decision(what, why);
        }
        Ok(())
    }

    /// Changes the nodes with these indices to the roll's configuration, or by `changes` if given.
    pub(super) async fn take(
        &mut self,
        cluster: &Cluster,
        numbers: &BTreeSet<usize>,
        changes: Option<&[Change]>,
    ) -> Result<()> {
        let steps: Vec<Step<'_>> = numbers
            .iter()
            .map(|number| Step {
                cluster,
                uri: &self.roller.file.uri,
                changes: changes.unwrap_or(&self.roller.changes),
                restarts: self.roller.restarts(),
                is_at_once: self.roller.spec.is_at_once,
                run: self.run,
                journal: self.journal,
                number: *number,
                others: numbers.iter().copied().filter(|other| other != number).collect(),
            })
            .collect();
        for step in &steps {
            let id = cluster.members[step.number].id;
            if let Entry::Vacant(unknown) = self.checkpoint.before.entry(id) {
                unknown.insert(step.before().await?);
            }
        }
        let ids = numbers.iter().map(|number| cluster.members[*number].id);
        self.checkpoint.under_way = ids.collect();
        // A job that is being cancelled saves this, too, if its nodes must be restored first.
        self.run.save_final(self.checkpoint.value()).await?;
        let ended = join_all(steps.iter().map(Step::take)).await;
        let mut wrong = None;
        for (step, ended) in steps.iter().zip(ended) {
            let id = cluster.members[step.number].id;
            match ended {
                Ok(took) => {
                    self.checkpoint.done.insert(id);
                    if let Some(took) = took {
                        self.checkpoint.took.insert(id, took);
                    }
                }
                Err(error) => {
                    wrong.get_or_insert(error);
                }
            }
        }
        if wrong.is_none() && numbers.len() > 1 {
            // Each step has ignored the other nodes.
            wrong = self.check_gossip_agrees(cluster).await.err();
        }
        if wrong.is_none() {
            self.checkpoint.under_way.clear();
        } else {
            let done = &self.checkpoint.done;
            self.checkpoint.under_way.retain(|id| !done.contains(id));
        }
        let saved = self.run.save_final(self.checkpoint.value()).await;
        match wrong {
            Some(error) => Err(error),
            None => Ok(saved?),
        }
    }

    /// Waits until no node reports an obstacle, such as a node that it sees down.
    async fn check_gossip_agrees(&self, cluster: &Cluster) -> Result<()> {
        roll::settled(self.run, false, LOOK_EVERY, async || {
            let obstacles = cluster.obstacles(&self.roller.file.uri, &BTreeSet::new(), true).await;
            Ok(inspection(&obstacles, ()))
        })
        .await
    }

    /// Waits until no obstacle to a step of these nodes is left, and returns the cluster's state at that time.
    async fn settled(&self, step: &BTreeSet<usize>) -> Result<Cluster> {
        roll::settled(self.run, true, LOOK_EVERY, async || {
            // The ring may have changed since the last step.
            let refreshed = self.roller.session.refresh_metadata().await;
            refreshed.map_err(failed("looking at the ring"))?;
            let cluster = self.roller.cluster()?;
            let stops = self.roller.restarts();
            if stops
                && !self.roller.spec.is_at_once
                && let Some(demand) = cluster.ring.broken_by(step)
            {
                return Err(Error::failed(
                    format!("the ring has changed: {} would lose too many replicas", demand.name),
                    "begin another roll, which plans its steps anew",
                ));
            }
            let obstacles = cluster.obstacles(&self.roller.file.uri, &BTreeSet::new(), stops).await;
            Ok(inspection(&obstacles, cluster))
        })
        .await
    }
}

/// Returns the obstacles, or the cluster's state if there are none.
fn inspection<T>(obstacles: &Obstacles, state: T) -> Inspection<T> {
    if obstacles.is_empty() {
        return Inspection::Settled(state);
    }
    Inspection::Obstacles(obstacles.to_string())
}

/// Resumes the job of a roll whose process has died or was interrupted, on behalf of `process`.
///
/// # Errors
/// Fails if there is no such job, if another process executes it, or if the roll fails.
#[crate::boxed(?Send)]
pub async fn resume(
    file: ClusterFile,
    id: &JobId,
    process: &str,
    events: &Events,
    interrupted: CancellationToken,
) -> Result<Outcome> {
    let journal = CassandraJournal::open(&file.uri).await?;
    let spec = roll::spec::<Roller>(&journal, id).await?;
    let roller = Roller::connect(file, spec).await?;
    Executor { process, events, interrupted }.resume(&roller, &journal, id).await
}

/// Returns the duration of each node's change in a Cassandra roll, from the job's record; empty if the job is not
/// such a roll, or of an incompatible version.
#[must_use]
pub fn node_roll_times(record: &Record) -> Vec<NodeRollTime> {
    roll::node_roll_times::<Roller>(record)
}

/// Cancels the job of a roll that no process executes any more. A job that left nodes to restore is not cancelled:
/// [`resume`] it. Returns true if the job has ended.
///
/// # Errors
/// Fails if the journal cannot be reached, or if the job's checkpoint cannot be read.
#[crate::boxed]
pub async fn cancel(uri: &Uri, id: &JobId, process: &str) -> Result<bool> {
    let journal = CassandraJournal::open(uri).await?;
    roll::cancel::<Roller>(&journal, &journal, id, process).await
}

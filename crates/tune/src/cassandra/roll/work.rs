//! The work at a roll's job, from its claim to its end, and by one process after another.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use imago_job::clock;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
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
use super::super::ring::Cluster;
use super::Took;
use super::canary::Canary;
use super::step::Step;
use super::{Change, KIND, Outcome, Roller, Spec};
use crate::cluster::job::{self, Job, Lock, checkpoint};

/// For the cluster to settle before a step, and behind the last one: hints of many hours take long.
const SETTLE_BOUND: Duration = Duration::from_secs(1_800);
/// Interval between two looks at the cluster while it settles.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The state from which another process goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Checkpoint {
    /// The nodes that have the new configuration.
    done: BTreeSet<Uuid>,
    /// The nodes that may be stopped at this moment.
    under_way: BTreeSet<Uuid>,
    /// The values of before, of each node that was changed.
    pub(super) before: BTreeMap<Uuid, BTreeMap<String, Option<String>>>,
    /// How long each node took.
    took: BTreeMap<Uuid, Took>,
    /// The compactions of before, of each table that was changed.
    compaction_before: BTreeMap<String, Compaction>,
    /// How far the canary has come; none before it, or without one.
    pub(super) canary: Option<Canary>,
}

impl Checkpoint {
    pub(super) fn value(&self) -> Json {
        serde_json::to_value(self).expect("texts and numbers")
    }
}

/// One process's work at a job.
pub(super) struct Work<'a> {
    pub(super) roller: &'a Roller,
    pub(super) run: &'a Run,
    pub(super) journal: &'a CassandraJournal,
    pub(super) checkpoint: Checkpoint,
}

impl Roller {
    /// Begins a job and does it.
    ///
    /// # Errors
    /// Something speaks against it, and nothing was touched; or it failed on the way: the message says where it stands.
    pub async fn begin(
        &self,
        process: &str,
        events: &Events,
        interrupted: CancellationToken,
    ) -> Result<Outcome> {
        let preview = self.preview().await?;
        self.canary_can_be_compared(&preview)?;
        if !preview.obstacles.is_empty() {
            return Err(Error::precondition(
                format!("the cluster is not settled: {}", preview.obstacles.join("; ")),
                "a roll begins only when every node sees all others up, with one schema and without missed writes",
            ));
        }
        let journal = CassandraJournal::open(&self.file.uri).await?;
        let spec = serde_json::to_value(&self.spec).expect("texts and numbers");
        let record = Record::new(KIND, spec, clock::wall()());
        journal.create(&record).await?;
        self.work(&journal, &record.id, process, events, interrupted, true).await
    }

    /// Works at a job until it ends.
    async fn work(
        &self,
        journal: &CassandraJournal,
        id: &JobId,
        process: &str,
        events: &Events,
        interrupted: CancellationToken,
        is_new: bool,
    ) -> Result<Outcome> {
        let shared = Arc::new(journal.clone());
        let job = Job { journal: shared, id, process, events, interrupted, is_new };
        let work = async |run: &Run| {
            let checkpoint = checkpoint(&run.record().checkpoint)?;
            Work { roller: self, run, journal, checkpoint }.roll().await
        };
        job.work(journal, work).await
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
    async fn roll(mut self) -> Result<Outcome> {
        let began = Instant::now();
        let cluster = self.roller.cluster()?;
        let number = |id: &Uuid| cluster.members.iter().position(|one| one.id == *id);
        // What a dead process left comes first, in any state, also when the job is to end.
        let left: BTreeSet<usize> = self.checkpoint.under_way.iter().filter_map(number).collect();
        let canary: BTreeSet<usize> =
            self.checkpoint.before.keys().find_map(number).into_iter().collect();
        if let Some(Canary::Refused(why)) = self.checkpoint.canary.clone() {
            return Err(self.put_back(&cluster, canary, &why).await);
        }
        if !left.is_empty() {
            self.take(&cluster, &left, None).await?;
        }
        if let Some(Canary::Before(_)) = self.checkpoint.canary {
            match canary.first() {
                Some(number) => {
                    let name = cluster.members[*number].access.name.clone();
                    self.look_behind(&cluster, &canary, &name).await?;
                }
                // It was only looked at.
                None => self.checkpoint.canary = None,
            }
        }
        // Another roll may have changed the others since.
        self.checkpoint.done.retain(|id| number(id).is_some_and(|number| left.contains(&number)));
        let steps = self.roller.steps(&cluster)?;
        self.run.enter("roll").await?;
        // A table is altered in all nodes at once: behind the canary.
        if !self.has_canary_before_it() {
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
                self.look_before(name).await?;
            }
            self.take(&cluster, &step, None).await?;
            if let Some(name) = canary {
                self.look_behind(&cluster, &step, name).await?;
                self.alter_tables().await?;
            }
        }
        let name = |id: &Uuid| number(id).map(|at| cluster.members[at].access.name.clone());
        let took = self.checkpoint.took.iter();
        // A canary of tables alone is done, and has nothing that others have not.
        let changed = self.checkpoint.done.iter().filter(|_| !self.roller.changes.is_empty());
        Ok(Outcome {
            job: self.run.record().id.clone(),
            nodes: changed.filter_map(name).collect(),
            tables: self.roller.spec.compaction.keys().cloned().collect(),
            took: took.filter_map(|(id, took)| Some((name(id)?, *took))).collect(),
            elapsed_s: began.elapsed().as_secs_f64(),
        })
    }

    async fn alter_tables(&mut self) -> Result<()> {
        for (table, to) in &self.roller.spec.compaction {
            self.alter(table, to).await?;
        }
        Ok(())
    }

    /// Gives a table another compaction.
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

    /// Gives some nodes the new configuration, or another one.
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
        // It is asked for by a job that is to end, too, if its nodes have to come back first.
        self.run.save_at_last(self.checkpoint.value()).await?;
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
            // Each was waited for without the others.
            wrong = self.all_see_each_other(cluster).await.err();
        }
        if wrong.is_none() {
            self.checkpoint.under_way.clear();
        } else {
            let done = &self.checkpoint.done;
            self.checkpoint.under_way.retain(|id| !done.contains(id));
        }
        let saved = self.run.save_at_last(self.checkpoint.value()).await;
        match wrong {
            Some(error) => Err(error),
            None => Ok(saved?),
        }
    }

    async fn all_see_each_other(&self, cluster: &Cluster) -> Result<()> {
        let began = Instant::now();
        loop {
            let obstacles = cluster.obstacles(&self.roller.file.uri, &BTreeSet::new(), true).await;
            if obstacles.is_empty() {
                return Ok(());
            }
            if began.elapsed() > SETTLE_BOUND {
                return Err(unsettled(&obstacles));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until nothing speaks against a step, and returns the cluster as it is then.
    async fn settled(&self, step: &BTreeSet<usize>) -> Result<Cluster> {
        let began = Instant::now();
        let mut said = String::new();
        loop {
            // It may have changed since the last step.
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
            if obstacles.is_empty() {
                return Ok(cluster);
            }
            if began.elapsed() > SETTLE_BOUND {
                return Err(unsettled(&obstacles));
            }
            let now = obstacles.join("; ");
            if now != said {
                let help = "the next step waits for it";
                self.run.reporter().warning("not_settled", now.clone(), help);
                said = now;
            }
            self.run.control().sleep(LOOK_EVERY).await.map_err(Error::Stopped)?;
        }
    }
}

fn unsettled(obstacles: &[String]) -> Error {
    let within = SETTLE_BOUND.as_secs();
    Error::failed(
        format!("the cluster did not settle within {within} s: {}", obstacles.join("; ")),
        "mend that, and begin another roll: nodes that have the new configuration are left as they are",
    )
}

/// Goes on with a job whose process has died or was interrupted.
///
/// # Errors
/// There is no such job, another process works at it, or it failed on the way.
pub async fn resume(
    file: ClusterFile,
    id: &JobId,
    process: &str,
    events: &Events,
    interrupted: CancellationToken,
) -> Result<Outcome> {
    let journal = CassandraJournal::open(&file.uri).await?;
    let record = journal.load(id).await?;
    if record.kind != KIND {
        return Err(Error::Usage(format!("job {id} is no roll but a {}", record.kind)));
    }
    let spec: Spec = serde_json::from_value(record.spec).map_err(|error| {
        Error::Usage(format!("what job {id} was asked for cannot be read: {error}"))
    })?;
    let roller = Roller::connect(file, spec).await?;
    roller.work(&journal, id, process, events, interrupted, false).await
}

/// How long each node took in a roll that is kept; nothing if that was no roll, or of another version.
#[must_use]
pub fn took(record: &Record) -> Vec<Took> {
    let is_roll = record.kind == KIND;
    let checkpoint = checkpoint::<Checkpoint>(&record.checkpoint).ok().filter(|_| is_roll);
    checkpoint.map_or_else(Vec::new, |checkpoint| checkpoint.took.into_values().collect())
}

/// Ends a job at which no process works any more, unless it left nodes that have to come back first: that is for
/// [`resume`]. True if it has ended.
///
/// # Errors
/// There is no such job, it has ended, or the journal cannot be reached.
pub async fn cancel(uri: &Uri, id: &JobId, process: &str) -> Result<bool> {
    let journal = CassandraJournal::open(uri).await?;
    let leaves_nodes = |saved: &Json| Ok(!checkpoint::<Checkpoint>(saved)?.under_way.is_empty());
    job::cancel(&journal, &journal, id, process, leaves_nodes).await
}

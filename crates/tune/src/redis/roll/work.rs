//! The execution of the job of a Redis roll, from its claim to its end, by one process after another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use imago_job::clock;
use imago_job::file::FileJournal;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_job::run::Run;
use imago_plan::tune::succession::{self, Step};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::super::connection::Node;
use super::super::knobs::Class;
use super::super::replication::Replication;
use super::super::snapshot::Snapshot;
use super::super::{ClusterFile, Uri, lock};
use super::{Change, FailOver, KIND, NodeRollTime, Outcome, Roller, Spec};
use crate::cluster::error::chain;
use crate::cluster::job::{Action, Lock, checkpoint, needs_lock};
use crate::cluster::roll::{self, Executor, Extent, Inspection, Roll};
use crate::cluster::{Error, Result};

/// Delay between two inspections of a cluster that is not healthy.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Timeout of a node's reply while it sets values or writes its file.
const SET_WAIT: Duration = Duration::from_secs(20);
/// Time allowed for one attempt of a failover (the server gives up after five seconds), maximum number of attempts,
/// and delay between two polls.
const FAIL_OVER_BOUND: Duration = Duration::from_secs(10);
const FAIL_OVER_TRIES: u32 = 3;
const FAIL_OVER_POLL: Duration = Duration::from_millis(5);

/// Persistent state of a Redis roll, from which another process can resume it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Checkpoint {
    /// Names of the nodes whose live settings are set and written to the node's file.
    live: BTreeSet<String>,
    /// Name of the node that may be stopped at this moment; None if all nodes run.
    pub(super) under_way: Option<String>,
    /// Durations of the change of each node that was changed, by the node's name.
    pub(super) took: BTreeMap<String, NodeRollTime>,
    /// Failovers that the roll has completed.
    fail_overs: Vec<FailOver>,
    /// Actions of the roll with their reasons, a few for each node.
    pub(super) actions: Vec<Action>,
}

/// The execution of a roll's job by one process.
pub(super) struct Work<'a> {
    /// The cluster and the changes of the roll.
    pub(super) roller: &'a Roller,
    /// The claim of this process on the job.
    pub(super) run: &'a Run,
    /// State of the roll, which is saved after each change of it.
    pub(super) checkpoint: Checkpoint,
}

/// Opens the journal of the jobs that concern a cluster file, in a folder next to the file.
///
/// # Errors
/// Fails if the folder cannot be created.
pub fn jobs(cluster_file: &Path) -> Result<FileJournal> {
    Ok(FileJournal::open(cluster_file.with_extension("jobs"))?)
}

/// Returns the actions of a roll from its job's record, in chronological order.
///
/// # Errors
/// Fails if the job's checkpoint cannot be read.
pub fn actions(record: &Record) -> Result<Vec<Action>> {
    Ok(checkpoint::<Checkpoint>(&record.checkpoint)?.actions)
}

impl roll::Checkpoint for Checkpoint {
    fn leaves_nodes(&self) -> bool {
        self.under_way.is_some()
    }

    fn node_roll_times(self) -> Vec<NodeRollTime> {
        self.took.into_values().collect()
    }
}

/// Returns the duration of each node's change in a Redis roll so far, from the job's record; empty if the job is not
/// such a roll, or of an incompatible version.
#[must_use]
pub fn node_roll_times(record: &Record) -> Vec<NodeRollTime> {
    roll::node_roll_times::<Roller>(record)
}

/// Cancels the job of a roll that no process executes any more. A job that left a node to restore is not cancelled:
/// [`resume`] it. Returns true if the job has ended.
///
/// # Errors
/// Fails if the job's checkpoint cannot be read, or if the node that stores the lock does not answer.
#[crate::boxed]
pub async fn cancel(journal: &FileJournal, uri: &Uri, id: &JobId, process: &str) -> Result<bool> {
    roll::cancel::<Roller>(journal, uri, id, process).await
}

impl Roller {
    /// Creates the roll's job and executes it. The job is stored next to the path `cluster_file`; `process` is the
    /// name of the process that claims it, and `interrupted` is cancelled to interrupt it.
    ///
    /// # Errors
    /// Fails if a precondition does not hold (no node was changed then), or during the roll: the message reports the
    /// state.
    #[crate::boxed(?Send)]
    pub async fn begin(
        &self,
        cluster_file: &Path,
        process: &str,
        events: &Events,
        interrupted: CancellationToken,
    ) -> Result<Outcome> {
        let preview = self.preview().await?;
        if !preview.obstacles.is_empty() {
            let help = "a roll begins only when all nodes are up, and replicas have what their masters have";
            return Err(roll::not_settled(&preview.obstacles, help));
        }
        let journal = jobs(cluster_file)?;
        // The unfinished job's lock may have expired; without this check its changes could be overwritten in part.
        let is_unfinished = |record: &Record| record.kind == KIND && needs_lock(record);
        if let Some(other) = journal.list().await?.into_iter().find(is_unfinished) {
            let id = &other.id;
            return Err(Error::precondition(
                format!("job {id} has begun to change the configuration and has not ended"),
                format!(
                    "go on with it (`imago tune roll --resume {id}`), or give it up (`imago tune cancel {id}`)"
                ),
            ));
        }
        Executor { process, events, interrupted }.begin(self, &journal).await
    }
}

impl Roll for Roller {
    const KIND: &'static str = KIND;
    type Spec = Spec;
    type Checkpoint = Checkpoint;
    type Journal = FileJournal;
    type Outcome = Outcome;

    // Six nodes on one machine took 7 s by restarts.
    const ASSUMED_S: (f64, f64) = (0.1, 1.5);

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn extent(&self) -> Extent {
        let (nodes, restarts) = (self.file.nodes.len(), self.restarts());
        Extent { nodes, restarts, is_at_once: false, fixed_s: 0.0 }
    }

    fn extent_of(_: Spec, took: &[NodeRollTime]) -> Extent {
        let restarts = took.iter().any(|node| node.away_s > 0.0);
        Extent { nodes: took.len(), restarts, is_at_once: false, fixed_s: 0.0 }
    }

    fn lock<'a>(&'a self, _: &'a FileJournal) -> &'a impl Lock {
        &self.file.uri
    }

    async fn execute(&self, run: &Run, _: &FileJournal, checkpoint: Checkpoint) -> Result<Outcome> {
        Work { roller: self, run, checkpoint }.roll().await
    }
}

impl Lock for Uri {
    const IF_LEFT: &'static str = "the lock ends after ten minutes";

    async fn take(&self, job: &JobId) -> Result<()> {
        match lock::CONFIGURATION.take(self, job.as_str()).await? {
            Some(other) => Err(lock::locked_by(&other)),
            None => Ok(()),
        }
    }

    async fn give_up(&self, job: &JobId) -> Result<()> {
        lock::CONFIGURATION.give_up(self, job.as_str()).await
    }
}

impl Work<'_> {
    /// Executes the roll from its checkpoint to its end.
    async fn roll(mut self) -> Result<Outcome> {
        let began = Instant::now();
        // A node that a dead process left in an unknown state comes first.
        if let Some(name) = self.checkpoint.under_way.clone() {
            let nodes = &self.roller.file.nodes;
            let number = nodes.iter().position(|node| node.name == name).ok_or_else(|| {
                Error::Usage(format!(
                    "{name}, which may be stopped, is not in the cluster file any more"
                ))
            })?;
            self.restart(number).await?;
        }
        // A file may have been edited since the roll was requested, or since its last process died.
        self.roller.check_survives_restart(&self.roller.snapshot().await).await?;
        if self.roller.of_class(Class::Live).next().is_some() {
            self.run.enter("live").await?;
            for number in 0..self.roller.file.nodes.len() {
                self.go_on().await?;
                self.apply(number).await?;
            }
        }
        if self.roller.restarts() {
            self.run.enter("restart").await?;
            while let Some(step) = self.next().await? {
                self.go_on().await?;
                match step {
                    Step::Restart(number) => self.restart(number).await?,
                    Step::FailOver { from, to } => self.fail_over(from, to).await?,
                }
            }
        }
        let Checkpoint { took, fail_overs, .. } = self.checkpoint;
        Ok(Outcome {
            job: self.run.record().id.clone(),
            nodes: self.roller.file.nodes.iter().map(|node| node.name.clone()).collect(),
            took,
            fail_overs,
            elapsed_s: began.elapsed().as_secs_f64(),
        })
    }

    /// Waits while the job is paused, and renews the lock on the configuration.
    async fn go_on(&self) -> Result<()> {
        self.run.control().checkpoint().await.map_err(Error::Stopped)?;
        self.roller.file.uri.take(&self.run.record().id).await
    }

    /// Saves the checkpoint in the job's record.
    pub(super) async fn save(&self) -> Result<()> {
        let checkpoint = serde_json::to_value(&self.checkpoint).expect("texts and numbers");
        // A job that is being cancelled saves this, too, if a node must be restored first.
        Ok(self.run.save_final(checkpoint).await?)
    }

    /// Reports an action on a node with its reason, and adds it to the checkpoint, which the next save persists.
    pub(super) fn say(&mut self, node: &str, what: &str, why: &str) {
        let what = format!("{node}: {what}");
        let at_ms = i64::try_from(clock::now_ms()).unwrap_or(i64::MAX);
        self.checkpoint.actions.push(Action { at_ms, what: what.clone(), why: why.to_owned() });
        self.run.reporter().decision(what, why);
    }

    /// Sets the live settings of the node with the index `number`, reads them back, and makes the node write them to
    /// its file.
    async fn apply(&mut self, number: usize) -> Result<()> {
        let roller = self.roller;
        let node = &roller.file.nodes[number];
        if self.checkpoint.live.contains(&node.name) {
            return Ok(());
        }
        let began = Instant::now();
        let at = Node::connect(&node.address.to_string(), &roller.file.uri, SET_WAIT).await?;
        let changes: Vec<_> = roller.of_class(Class::Live).collect();
        let mut words = vec!["CONFIG", "SET"];
        for change in &changes {
            words.extend([change.knob.name, &change.value]);
            let what = format!("{} becomes \"{}\"", change.knob.name, change.value);
            self.say(&node.name, &what, "it can be set while the server runs");
        }
        self.save().await?;
        let mut before = vec!["CONFIG".to_owned(), "SET".to_owned()];
        for change in &changes {
            let told: BTreeMap<String, String> =
                at.ask(&["CONFIG", "GET", change.knob.name]).await?;
            before.extend(told.into_iter().flat_map(|(name, value)| [name, value]));
        }
        let id = &self.run.record().id;
        node.back_up_file(&node.configuration, id).await?;
        if let Err(error) = at.try_ask::<()>(&words).await {
            // Without a reply, any of the values may be set.
            let back = match error.is_io_error() {
                true => at.ask::<()>(&before.iter().map(String::as_str).collect::<Vec<_>>()).await,
                false => Ok(()),
            };
            if back.is_ok() {
                node.forget_file(&node.configuration, id).await?;
            }
            return Err(Error::failed(
                format!("{} refuses the new values: {error}", node.name),
                "its own are as before; nodes before it have the new ones: roll again with other values",
            ));
        }
        if let Err(why) = self.write(number, &at, &changes).await {
            return Err(self.undo(number, &at, &before, &why).await);
        }
        node.forget_file(&node.configuration, &self.run.record().id).await?;
        let whole_s = began.elapsed().as_secs_f64();
        self.checkpoint.took.insert(node.name.clone(), NodeRollTime { away_s: 0.0, whole_s });
        self.checkpoint.live.insert(node.name.clone());
        self.save().await
    }

    /// Reads the live settings of a node back, makes the node write them to its file, and checks that it would start
    /// with the file.
    async fn write(&self, number: usize, at: &Node, changes: &[&Change]) -> Result<()> {
        let node = &self.roller.file.nodes[number];
        for change in changes {
            let name = change.knob.name;
            let told: BTreeMap<String, String> = at.ask(&["CONFIG", "GET", name]).await?;
            let told = told.get(name).map(String::as_str).unwrap_or_default();
            if !change.knob.value(told).is_ok_and(|value| value.to_string() == change.value) {
                return Err(Error::failed(
                    format!(
                        "{}: {name} is \"{told}\" after it was set to \"{}\"",
                        node.name, change.value
                    ),
                    "set it by hand, and see what the server says",
                ));
            }
        }
        at.try_ask::<()>(&["CONFIG", "REWRITE"]).await.map_err(|error| {
            Error::failed(
                format!("{} cannot write its file: {error}", node.name),
                "may it write there, and is there room?",
            )
        })?;
        self.roller.was_written(number, changes).await
    }

    /// Restores a node's live settings and file as they were before; `before` has the words of the command that sets
    /// the old values. Returns the error that reports the outcome and the reason `why`.
    async fn undo(&mut self, number: usize, at: &Node, before: &[String], why: &Error) -> Error {
        let node = &self.roller.file.nodes[number];
        self.say(&node.name, "gets its old values and its old file back", &chain(why));
        let back = async {
            let words: Vec<&str> = before.iter().map(String::as_str).collect();
            at.ask::<()>(&words).await?;
            let id = &self.run.record().id;
            node.restore_file(&node.configuration, id).await?;
            node.forget_file(&node.configuration, id).await?;
            self.save().await
        };
        let now = match back.await {
            Ok(()) => "it has its old values and its old file again".to_owned(),
            Err(error) => format!(
                "and it could not be given its old values and its old file back: {}",
                chain(&error)
            ),
        };
        Error::failed(
            format!("{} does not keep the new values: {}; {now}", node.name, chain(why)),
            "nodes before it have the new values: correct its file or its folder, and roll again",
        )
    }

    /// Returns the next restart or failover as soon as no obstacle to it is left; None if all nodes are done.
    async fn next(&self) -> Result<Option<Step>> {
        let (_, nodes) = self.settled(true).await?;
        let next = succession::next(&nodes, self.roller.spec.allowed());
        next.map_err(|refusal| self.roller.refused(refusal))
    }

    /// Waits until no obstacle to a step is left and returns the state of all nodes. The wait can be interrupted only
    /// if it is before a step (`before`), not after one.
    pub(super) async fn settled(
        &self,
        before: bool,
    ) -> Result<(Snapshot<'_>, Vec<succession::Node>)> {
        let roller = self.roller;
        roll::settled(self.run, before, LOOK_EVERY, async || {
            // The node that stores the lock may be the one that is down.
            let held =
                lock::CONFIGURATION.take(&roller.file.uri, self.run.record().id.as_str()).await;
            if let Ok(Some(other)) = held {
                return Err(lock::locked_by(&other));
            }
            let snapshot = roller.snapshot().await;
            let mut obstacles = snapshot.obstacles();
            let strangers = snapshot.strangers();
            obstacles.extend(strangers.iter().map(|at| format!("there is a new node at {at}")));
            match roller.nodes(&snapshot).filter(|_| obstacles.is_empty()) {
                Some(nodes) => Ok(Inspection::Settled((snapshot, nodes))),
                None => Ok(Inspection::Obstacles(obstacles.join("; "))),
            }
        })
        .await
    }

    /// Makes the replica of index `to`, which was just in sync, take over from its master of index `from`.
    async fn fail_over(&mut self, from: usize, to: usize) -> Result<()> {
        let roller = self.roller;
        let (old, new) = (&roller.file.nodes[from], &roller.file.nodes[to]);
        let uri = &roller.file.uri;
        let at = Node::connect(&new.address.to_string(), uri, SET_WAIT).await?;
        let what = format!("takes the place of {}", old.name);
        self.say(&new.name, &what, "a master is restarted only when another node serves its keys");
        self.save().await?;
        let began = Instant::now();
        for _ in 0..FAIL_OVER_TRIES {
            at.ask::<()>(&["CLUSTER", "FAILOVER"]).await?;
            let asked = Instant::now();
            while asked.elapsed() < FAIL_OVER_BOUND {
                let told: String = at.ask(&["INFO", "replication"]).await?;
                if matches!(Replication::parse(&told), Some(Replication::Master { .. })) {
                    let took_ms = began.elapsed().as_secs_f64() * 1_000.0;
                    let (from, to) = (old.name.clone(), new.name.clone());
                    self.checkpoint.fail_overs.push(FailOver { from, to, took_ms });
                    return self.save().await;
                }
                tokio::time::sleep(FAIL_OVER_POLL).await;
            }
        }
        Err(Error::failed(
            format!("{} did not take the place of {}", new.name, old.name),
            "the cluster is as it was; see the replica's log, and roll again",
        ))
    }
}

/// Resumes the job of a roll whose process has died or was interrupted, on behalf of `process`; the job is stored
/// next to the path `cluster_file`.
///
/// # Errors
/// Fails if there is no such job, if another process executes it, or if the roll fails.
#[crate::boxed(?Send)]
pub async fn resume(
    file: ClusterFile,
    cluster_file: &Path,
    id: &JobId,
    process: &str,
    events: &Events,
    interrupted: CancellationToken,
) -> Result<Outcome> {
    let journal = jobs(cluster_file)?;
    let roller = Roller::new(file, roll::spec::<Roller>(&journal, id).await?)?;
    Executor { process, events, interrupted }.resume(&roller, &journal, id).await
}

//! A roll: a new configuration for all nodes, while clients are served.
//!
//! Settings that are live are applied to one node after the other. The others need a restart: nodes are restarted in
//! steps, each a set of nodes of which no range of any keyspace needs another replica ([`imago_plan::tune::availability`]),
//! whole racks where that is so. Before each step all nodes are looked at again, and the step begins only if every node
//! sees every other one up and settled, all have the same schema, and none keeps writes that another one has missed. A
//! node is over only when all that holds with it: it is up 6 to 19 s before its peers have sent it what it missed.
//!
//! Invariants:
//! - The nodes that are stopped at any moment are those of one step, and the journal names them before the first is.
//! - The new configuration is whole on the node's disk before the node stops, and the old one is kept beside it.
//! - A node that does not come back with the new one gets the old one back, and the roll ends.
//! - One job at a time changes a cluster's configuration (the lock), one process works at it (the claim), and every step
//!   of the work may be done again: a process that goes on with a dead one's job looks at what each node has.

mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use imago_job::clock;
use imago_job::control::Stop;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_job::run::{Ending, OwnerTiming, Run};
use scylla::client::session::Session;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cluster_file::ClusterFile;
use super::connection;
use super::error::{Error, Result};
use super::journal::CassandraJournal;
use super::knobs::{self, Class, Knob, Value};
use super::ring::{self, Cluster, chain};
use super::{Consistency, settings_file};
use step::Step;

/// The kind of these jobs.
pub const KIND: &str = "roll";
/// For the cluster to settle before a step: hints of many hours take long.
const SETTLE_BOUND: Duration = Duration::from_secs(1_800);
/// Interval between two looks at the cluster while it settles.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is asked for. A job's record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The settings, each with its new value; nothing: its default.
    pub changes: BTreeMap<String, Option<String>>,
    /// The consistency level that clients need, by its name.
    pub consistency: String,
    /// Failures that have to be withstood meanwhile.
    pub tolerate: usize,
    /// True: all nodes at once, though clients are not served meanwhile.
    pub is_at_once: bool,
}

/// A change of one setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) knob: &'static Knob,
    pub(super) value: Option<Value>,
}

impl Spec {
    /// The changes, checked.
    ///
    /// # Errors
    /// There is no such setting, or it takes no such value.
    pub(super) fn parsed(&self) -> Result<Vec<Change>> {
        if self.changes.is_empty() {
            return Err(Error::Usage("no setting is to be changed".into()));
        }
        let change = |(name, text): (&String, &Option<String>)| {
            let knob = knobs::find(name)?;
            let value = text.as_deref().map(|text| knob.value(text)).transpose()?;
            if value.is_none() && knob.default.is_none() && matches!(knob.class, Class::Live { .. })
            {
                let why = "its default follows the machine: name a value";
                return Err(Error::Usage(format!(
                    "{name} cannot be set to its default live; {why}"
                )));
            }
            Ok(Change { knob, value })
        };
        self.changes.iter().map(change).collect()
    }
}

/// The state from which another process goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Checkpoint {
    /// The nodes that have the new configuration.
    done: BTreeSet<Uuid>,
    /// The nodes that may be stopped at this moment.
    under_way: BTreeSet<Uuid>,
    /// The values of before, of each node that was changed.
    before: BTreeMap<Uuid, BTreeMap<String, Option<String>>>,
    /// How long each node was not fully there, in seconds (T_r of SOPHIA, §4.4).
    seconds: BTreeMap<Uuid, f64>,
}

/// What a roll would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// True if nodes are restarted.
    pub restarts: bool,
    /// The nodes that are stopped together, step by step.
    pub steps: Vec<Vec<String>>,
    /// The nodes.
    pub nodes: Vec<NodePreview>,
    /// What speaks against beginning now.
    pub obstacles: Vec<String>,
}

/// A node, and what a roll would change there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodePreview {
    /// Its name.
    pub name: String,
    /// Its address for clients.
    pub address: String,
    /// Its data centre and rack.
    pub rack: String,
    /// The settings that its file has otherwise.
    pub changes: Vec<ValueChange>,
}

/// A setting of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueChange {
    /// Its name.
    pub setting: String,
    /// The value in the file; nothing: the default.
    pub from: Option<String>,
    /// The new value; nothing: the default.
    pub to: Option<String>,
    /// `live` or `restart`.
    pub class: &'static str,
}

/// What came of a roll.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// The nodes that have the new configuration.
    pub nodes: Vec<String>,
    /// How long each of them was not fully there, in seconds.
    pub seconds: BTreeMap<String, f64>,
    /// From the first step to the last, in seconds.
    pub elapsed_s: f64,
}

/// A cluster whose configuration can be changed.
pub struct Roller {
    file: ClusterFile,
    session: Session,
    consistency: Consistency,
    spec: Spec,
    changes: Vec<Change>,
}

impl Roller {
    /// Connects, and checks what is asked for.
    ///
    /// # Errors
    /// The request makes no sense, or the cluster does not let us in.
    pub async fn connect(file: ClusterFile, spec: Spec) -> Result<Self> {
        let changes = spec.parsed()?;
        let consistency = connection::consistency(&spec.consistency)
            .ok_or_else(|| Error::Usage(format!("there is no level {}", spec.consistency)))?;
        let session = connection::connect(&file.uri, Consistency::Quorum).await?;
        Ok(Self { file, session, consistency, spec, changes })
    }

    fn restarts(&self) -> bool {
        self.changes.iter().any(|change| change.knob.class == Class::Restart)
    }

    fn cluster(&self) -> Result<Cluster> {
        ring::cluster(&self.session, &self.file, self.consistency, self.spec.tolerate)
    }

    /// The nodes that are stopped together, step by step.
    fn steps(&self, cluster: &Cluster) -> Result<Vec<BTreeSet<usize>>> {
        let all = 0..cluster.members.len();
        if !self.restarts() {
            return Ok(all.map(|number| BTreeSet::from([number])).collect());
        }
        if self.spec.is_at_once {
            return Ok(vec![all.collect()]);
        }
        cluster.ring.steps().map_err(|refusal| {
            let name = &cluster.members[refusal.node].access.name;
            Error::precondition(
                format!("{name} cannot be stopped at consistency {}: {refusal}", self.spec.consistency),
                "raise the replication of that keyspace, or roll for a lower --consistency or --tolerate; --at-once does \
                 it without serving clients meanwhile",
            )
        })
    }

    /// What the roll would do. Changes nothing.
    ///
    /// # Errors
    /// It may not be done at all: a range would be left with too few replicas, or the cluster file is wrong.
    pub async fn preview(&self) -> Result<Preview> {
        let cluster = self.cluster()?;
        let steps = self.steps(&cluster)?;
        let name = |number: &usize| cluster.members[*number].access.name.clone();
        let files =
            join_all(cluster.members.iter().map(|one| one.access.read_configuration())).await;
        let mut nodes = Vec::new();
        for (member, file) in cluster.members.iter().zip(files) {
            let file = file?;
            let mut changes = Vec::new();
            for Change { knob, value } in &self.changes {
                let from = settings_file::read(&file, knob.name)?;
                let to = value.as_ref().map(ToString::to_string);
                if from != to {
                    let (setting, class) = (knob.name.to_owned(), knob.class.name());
                    changes.push(ValueChange { setting, from, to, class });
                }
            }
            nodes.push(NodePreview {
                name: member.access.name.clone(),
                address: member.access.address.to_string(),
                rack: format!("{} {}", member.rack.0, member.rack.1),
                changes,
            });
        }
        Ok(Preview {
            restarts: self.restarts(),
            steps: steps.iter().map(|step| step.iter().map(name).collect()).collect(),
            nodes,
            obstacles: cluster.obstacles(&self.file.uri, &BTreeSet::new()).await,
        })
    }

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
        if !preview.obstacles.is_empty() {
            return Err(Error::precondition(
                format!("the cluster is not settled: {}", preview.obstacles.join("; ")),
                "a roll begins only when every node sees all others up, with one schema and without missed writes",
            ));
        }
        let journal = CassandraJournal::open(&self.file.uri).await?;
        let spec = serde_json::to_value(&self.spec).expect("texts and numbers");
        let record = Record::new(KIND, spec, clock::wall()());
        journal.lock(&record.id).await?;
        journal.create(&record).await?;
        self.work(journal, &record.id, process, events, interrupted).await
    }

    /// Works at a job until it ends.
    async fn work(
        &self,
        journal: CassandraJournal,
        id: &JobId,
        process: &str,
        events: &Events,
        interrupted: CancellationToken,
    ) -> Result<Outcome> {
        let timing = OwnerTiming::default();
        let shared = Arc::new(journal.clone());
        let run = Run::begin(shared, id, process, timing, events, interrupted).await?;
        let rolled = self.roll(&run).await;
        let ending = match &rolled {
            Ok(_) => Ending::Done,
            Err(Error::Stopped(stop)) => Ending::Stopped(stop.clone()),
            Err(error) => Ending::Failed(chain(error)),
        };
        let is_over = !matches!(
            ending,
            Ending::Stopped(
                Stop::Interrupted | Stop::HandedOver | Stop::TakenOver(_) | Stop::JournalLost(_)
            )
        );
        run.end(ending).await?;
        if is_over {
            journal.unlock(id).await?;
        }
        rolled
    }

    async fn roll(&self, run: &Run) -> Result<Outcome> {
        let began = Instant::now();
        let saved = run.record().checkpoint.clone();
        let mut checkpoint: Checkpoint = match saved {
            serde_json::Value::Null => Checkpoint::default(),
            saved => serde_json::from_value(saved).map_err(|error| {
                Error::Usage(format!("the job's state cannot be read: {error}"))
            })?,
        };
        let cluster = self.cluster()?;
        let number = |id: &Uuid| cluster.members.iter().position(|one| one.id == *id);
        // What a dead process left comes first, in whatever state it is.
        let left: BTreeSet<usize> = checkpoint.under_way.iter().filter_map(number).collect();
        let mut steps = self.steps(&cluster)?;
        if !left.is_empty() {
            steps.insert(0, left);
        }
        run.enter("roll").await?;
        for step in steps {
            let is_done = |number: &usize| checkpoint.done.contains(&cluster.members[*number].id);
            let step: BTreeSet<usize> = step.into_iter().filter(|one| !is_done(one)).collect();
            if step.is_empty() {
                continue;
            }
            run.control().checkpoint().await.map_err(Error::Stopped)?;
            self.take_step(run, &step, &mut checkpoint).await?;
        }
        let name = |id: &Uuid| number(id).map(|at| cluster.members[at].access.name.clone());
        Ok(Outcome {
            job: run.record().id.clone(),
            nodes: checkpoint.done.iter().filter_map(name).collect(),
            seconds: checkpoint
                .seconds
                .iter()
                .filter_map(|(id, seconds)| Some((name(id)?, *seconds)))
                .collect(),
            elapsed_s: began.elapsed().as_secs_f64(),
        })
    }

    /// Gives some nodes the new configuration, when nothing speaks against it.
    async fn take_step(
        &self,
        run: &Run,
        step: &BTreeSet<usize>,
        checkpoint: &mut Checkpoint,
    ) -> Result<()> {
        let cluster = self.settled(run, step, checkpoint).await?;
        checkpoint.under_way = step.iter().map(|number| cluster.members[*number].id).collect();
        save(run, checkpoint).await?;
        let ended = join_all(step.iter().map(|number| {
            let others = step.iter().copied().filter(|other| other != number).collect();
            let step = Step {
                cluster: &cluster,
                uri: &self.file.uri,
                changes: &self.changes,
                restarts: self.restarts(),
                reporter: run.reporter(),
                number: *number,
                others,
            };
            async move { step.take().await }
        }))
        .await;
        let mut failed = None;
        for (number, ended) in step.iter().zip(ended) {
            let id = cluster.members[*number].id;
            match ended {
                Ok(taken) => {
                    checkpoint.under_way.remove(&id);
                    checkpoint.done.insert(id);
                    checkpoint.before.entry(id).or_insert(taken.before);
                    checkpoint.seconds.insert(id, taken.elapsed.as_secs_f64());
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        let state = serde_json::to_value(&*checkpoint).expect("texts and numbers");
        run.save_at_last(state).await?;
        failed.map_or(Ok(()), Err)
    }

    /// Waits until nothing speaks against a step, and returns the cluster as it is then.
    async fn settled(
        &self,
        run: &Run,
        step: &BTreeSet<usize>,
        checkpoint: &Checkpoint,
    ) -> Result<Cluster> {
        let began = Instant::now();
        let mut said = String::new();
        loop {
            // It may have changed since the last step.
            self.session
                .refresh_metadata()
                .await
                .map_err(super::error::failed("looking at the ring"))?;
            let cluster = self.cluster()?;
            if !self.restarts() {
                return Ok(cluster);
            }
            let is_left =
                |number: &usize| checkpoint.under_way.contains(&cluster.members[*number].id);
            let left: BTreeSet<usize> = step.iter().copied().filter(is_left).collect();
            if !self.spec.is_at_once
                && let Some(demand) = cluster.ring.broken_by(step)
            {
                return Err(Error::failed(
                    format!("the ring has changed: {} would lose too many replicas", demand.name),
                    "begin another roll, which plans its steps anew",
                ));
            }
            let obstacles = cluster.obstacles(&self.file.uri, &left).await;
            if obstacles.is_empty() {
                return Ok(cluster);
            }
            let now = obstacles.join("; ");
            if began.elapsed() > SETTLE_BOUND {
                return Err(Error::failed(
                    format!(
                        "the cluster did not settle within {} s: {now}",
                        SETTLE_BOUND.as_secs()
                    ),
                    "mend that, and begin another roll: nodes that have the new configuration are left as they are",
                ));
            }
            if now != said {
                run.reporter().warning("not_settled", now.clone(), "the next step waits for it");
                said = now;
            }
            run.control().sleep(LOOK_EVERY).await.map_err(Error::Stopped)?;
        }
    }
}

async fn save(run: &Run, checkpoint: &Checkpoint) -> Result<()> {
    let state = serde_json::to_value(checkpoint).expect("texts and numbers");
    Ok(run.save(state).await?)
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
    journal.lock(id).await?;
    let roller = Roller::connect(file, spec).await?;
    roller.work(journal, id, process, events, interrupted).await
}

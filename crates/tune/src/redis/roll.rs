//! A roll: a new configuration for all nodes of a Redis Cluster, or for a server, while clients are served.
//!
//! Settings that are live are set at one node after the other, read back, and written into the node's file by the node
//! itself. The others need a restart: replicas are restarted first, each with its new file; then a replica that has what
//! its master has takes the master's place (`CLUSTER FAILOVER`: the master holds its clients until the replica has all), and
//! the old master is restarted as a replica. Before each step all nodes are looked at again ([`imago_plan::tune::succession`]
//! decides the next one).
//!
//! Invariants:
//! - A master that serves is not stopped, unless that is asked for by name; a place is handed over only to a replica that is
//!   in step and has the new configuration.
//! - One node at a time is stopped, and the journal names it before it is.
//! - The new file is whole on the node's disk before the node stops, and the old one is kept beside it.
//! - A node that does not come back with the new file gets the old one back, and the roll ends.
//! - One job at a time changes a cluster's configuration (the lock), one process works at it (the claim in the journal, a
//!   folder beside the cluster file), and every step may be taken again.

mod restart;
mod work;

use std::collections::BTreeMap;

use imago_job::id::JobId;
use imago_plan::tune::succession::{self, Allowed, Refusal, Step};
use serde::{Deserialize, Serialize};

use super::knobs::{self, Class, Knob};
use super::look::Look;
use super::{ClusterFile, Redis, settings_file};
pub use crate::cluster::costs::Took;
use crate::cluster::{Error, Result, ValueChange};
use crate::configurations::{self, Configuration};

pub use work::{actions, cancel, jobs, resume, took};

/// The kind of these jobs.
pub const KIND: &str = "redis_roll";

/// What is asked for. A job's record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The settings, each with its new value; nothing: its default.
    pub changes: BTreeMap<String, Option<String>>,
    /// Failures that each shard has to withstand while one of its nodes is away.
    pub tolerate: usize,
    /// True: a master without a replica is restarted, though its keys are not served meanwhile.
    pub unserved: bool,
    /// True if a controller rolls: the next one finishes what a dead one has begun.
    #[serde(default)]
    pub is_of_controller: bool,
}

/// A change of one setting.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    knob: &'static Knob,
    /// As the server tells it.
    value: String,
    is_default: bool,
}

impl Spec {
    /// The roll that gives a cluster one of the configurations.
    #[must_use]
    pub fn of(all: &[Configuration], number: usize, tolerate: usize) -> Self {
        let changes = configurations::settings(all, number);
        Self { changes, tolerate, unserved: false, is_of_controller: false }
    }

    /// The roll that brings a cluster from one of the configurations to another, and changes nothing else.
    ///
    /// # Errors
    /// There is no such setting.
    pub fn between(
        all: &[Configuration],
        numbers: (usize, usize),
        tolerate: usize,
    ) -> Result<Self> {
        let changes = configurations::change::<Redis>(all, numbers)?;
        Ok(Self { changes, tolerate, unserved: false, is_of_controller: false })
    }

    /// The changes, checked.
    ///
    /// # Errors
    /// There is no such setting, or it takes no such value.
    fn parsed(&self) -> Result<Vec<Change>> {
        if self.changes.is_empty() {
            return Err(Error::Usage("nothing is to be changed".into()));
        }
        let change = |(name, text): (&String, &Option<String>)| {
            let knob = knobs::find(name)?;
            let value = knob.value(text.as_deref().unwrap_or(knob.default))?.to_string();
            Ok(Change { knob, value, is_default: text.is_none() })
        };
        self.changes.iter().map(change).collect()
    }

    fn allowed(&self) -> Allowed {
        Allowed { tolerate: self.tolerate, unserved: self.unserved }
    }
}

/// What a roll would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// True if nodes are restarted.
    pub restarts: bool,
    /// The steps in which they are, in order, as far as nodes keep their parts.
    pub steps: Vec<String>,
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
    /// Its part: `master`, `replica of NAME`, or `idle`.
    pub part: String,
    /// The settings that it has otherwise.
    pub changes: Vec<ValueChange>,
}

/// A place that was handed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailOver {
    /// The old master.
    pub from: String,
    /// The new one.
    pub to: String,
    /// From the command until the new one served, in milliseconds; it is looked at every few.
    pub took_ms: f64,
}

/// What came of a roll.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// The nodes that have the new configuration.
    pub nodes: Vec<String>,
    /// How long each of them took that was changed.
    pub took: BTreeMap<String, Took>,
    /// The places that were handed over, in order.
    pub fail_overs: Vec<FailOver>,
    /// From the first step to the last, in seconds.
    pub elapsed_s: f64,
}

/// A cluster whose configuration can be changed.
pub struct Roller {
    file: ClusterFile,
    spec: Spec,
    changes: Vec<Change>,
}

impl Roller {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// The request makes no sense.
    pub fn new(file: ClusterFile, spec: Spec) -> Result<Self> {
        let changes = spec.parsed()?;
        Ok(Self { file, spec, changes })
    }

    fn of_class(&self, class: Class) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.knob.class == class)
    }

    fn restarts(&self) -> bool {
        self.of_class(Class::Restart).next().is_some()
    }

    async fn look(&self) -> Look<'_> {
        let settings: Vec<&str> = self.changes.iter().map(|change| change.knob.name).collect();
        Look::at(&self.file.nodes, &self.file.uri, &settings).await
    }

    /// The settings of this class that the node has otherwise.
    fn differences(&self, look: &Look<'_>, number: usize, class: Class) -> Vec<ValueChange> {
        let Ok(facts) = &look.seen[number] else { return Vec::new() };
        let different = |change: &Change| {
            let name = change.knob.name;
            let from = facts.running.get(name)?;
            let has_it =
                change.knob.value(from).is_ok_and(|value| value.to_string() == change.value);
            (!has_it).then(|| ValueChange {
                setting: name.to_owned(),
                from: Some(from.clone()),
                to: (!change.is_default).then(|| change.value.clone()),
                class: change.knob.class.name(),
            })
        };
        self.of_class(class).filter_map(different).collect()
    }

    /// The nodes as the decision of the next step takes them; nothing if not all are known.
    fn nodes(&self, look: &Look<'_>) -> Option<Vec<succession::Node>> {
        let is_settled = look.obstacles().is_empty();
        let node = |number| {
            Some(succession::Node {
                part: look.part(number)?,
                is_in_step: is_settled,
                is_done: self.differences(look, number, Class::Restart).is_empty(),
            })
        };
        (0..self.file.nodes.len()).map(node).collect()
    }

    fn name(&self, number: usize) -> &str {
        &self.file.nodes[number].name
    }

    /// The nodes that have any of the settings otherwise.
    ///
    /// # Errors
    /// A node does not answer, or does not know a setting.
    pub(super) async fn differing(&self) -> Result<usize> {
        let look = self.look().await;
        if let Some(why) = unreachable(&self.file, &look).into_iter().next() {
            return Err(Error::precondition(why, "all nodes are asked what they run with"));
        }
        self.check_known(&look)?;
        let differs = |number: &usize| {
            let of = |class| !self.differences(&look, *number, class).is_empty();
            of(Class::Live) || of(Class::Restart)
        };
        Ok((0..self.file.nodes.len()).filter(differs).count())
    }

    /// Every node that answers knows the settings.
    fn check_known(&self, look: &Look<'_>) -> Result<()> {
        for (node, facts) in self.file.nodes.iter().zip(&look.seen) {
            let Ok(facts) = facts else { continue };
            if let Some(missing) =
                self.changes.iter().find(|change| !facts.running.contains_key(change.knob.name))
            {
                let what = format!("{} knows no setting {}", node.name, missing.knob.name);
                return Err(Error::precondition(what, "is it a server of Redis 7?"));
            }
        }
        Ok(())
    }

    /// What cannot be done at all, however long one waits.
    fn check(&self, look: &Look<'_>) -> Result<()> {
        self.check_known(look)?;
        for (node, facts) in self.file.nodes.iter().zip(&look.seen) {
            let Ok(facts) = facts else { continue };
            let name = &node.name;
            if facts.configuration.is_empty() {
                return Err(Error::precondition(
                    format!("{name} runs without a configuration file"),
                    "start it with one: a change would be lost with its next restart",
                ));
            }
            let limit = self.changes.iter().find(|change| change.knob.name == "maxmemory");
            let limit = limit.and_then(|change| change.value.parse::<u64>().ok());
            if let Some(limit) = limit.filter(|limit| (1..facts.used_memory).contains(limit)) {
                return Err(Error::precondition(
                    format!("{name} uses {} bytes, more than maxmemory {limit}", facts.used_memory),
                    "it would evict keys or refuse writes at once: name a larger value",
                ));
            }
            if self.restarts() && !facts.is_cluster && self.file.nodes.len() > 1 {
                return Err(Error::precondition(
                    format!("{name} is no node of a Redis Cluster, and others stand beside it"),
                    "settings that need a restart are rolled in a Redis Cluster, or at one server; name one node in the file",
                ));
            }
        }
        if let Some(stranger) = look.strangers().first() {
            return Err(Error::precondition(
                format!(
                    "the cluster has a node at {stranger}, which the cluster file does not name"
                ),
                "add it as a [[node]], with the address by which the others know it",
            ));
        }
        if self.restarts()
            && let Some(nodes) = self.nodes(look)
            && let Some(refusal) = succession::refusal(&nodes, self.spec.allowed())
        {
            return Err(self.refused(refusal));
        }
        Ok(())
    }

    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::OutOfStep(number) => Error::precondition(
                format!("{} is not in step", self.name(number)),
                "a roll begins only when all nodes are up, and replicas have what their masters have",
            ),
            Refusal::NoReplica(number) => Error::precondition(
                format!(
                    "{} serves keys and has no replica: they would not be served while it restarts",
                    self.name(number)
                ),
                "give it a replica, or accept that by name: --unserved",
            ),
            Refusal::TooFew { master, replicas } => Error::precondition(
                format!(
                    "{} has {replicas} replicas, of which one is away while it restarts: no {} further failures \
                     could be withstood",
                    self.name(master),
                    self.spec.tolerate
                ),
                "add replicas, or lower --tolerate",
            ),
        }
    }

    /// What the roll would do. Changes nothing.
    ///
    /// # Errors
    /// It may not be done at all: the message says what is in the way.
    pub async fn preview(&self) -> Result<Preview> {
        let look = self.look().await;
        self.check(&look)?;
        let part = |number| match look.part(number) {
            Some(succession::Part::Master) => "master".to_owned(),
            Some(succession::Part::Idle) => "idle".to_owned(),
            Some(succession::Part::Replica(of)) => format!("replica of {}", self.name(of)),
            None => "not known".to_owned(),
        };
        let nodes = self.file.nodes.iter().enumerate().map(|(number, node)| NodePreview {
            name: node.name.clone(),
            address: node.address.to_string(),
            part: part(number),
            changes: [Class::Live, Class::Restart]
                .into_iter()
                .flat_map(|class| self.differences(&look, number, class))
                .collect(),
        });
        let nodes = nodes.collect();
        let steps = self.nodes(&look).map_or_else(Vec::new, |nodes| self.steps(nodes));
        let mut obstacles = look.obstacles();
        if !self.restarts() {
            // Nothing is stopped: that every node answers is enough.
            obstacles = unreachable(&self.file, &look);
        }
        Ok(Preview { restarts: self.restarts(), steps, nodes, obstacles })
    }

    /// The steps of restarts, as far as every node does what it is asked.
    fn steps(&self, mut nodes: Vec<succession::Node>) -> Vec<String> {
        for node in &mut nodes {
            node.is_in_step = true;
        }
        let mut steps = Vec::new();
        while let Ok(Some(step)) = succession::next(&nodes, self.spec.allowed()) {
            steps.push(self.told(step));
            match step {
                Step::Restart(number) => nodes[number].is_done = true,
                Step::FailOver { from, to } => {
                    for node in &mut nodes {
                        if node.part == succession::Part::Replica(from) {
                            node.part = succession::Part::Replica(to);
                        }
                    }
                    nodes[from].part = succession::Part::Replica(to);
                    nodes[to].part = succession::Part::Master;
                }
            }
        }
        steps
    }

    fn told(&self, step: Step) -> String {
        match step {
            Step::Restart(number) => format!("{} restarts", self.name(number)),
            Step::FailOver { from, to } => {
                format!("{} takes the place of {}", self.name(to), self.name(from))
            }
        }
    }

    /// The file's text with the settings that need a restart.
    fn new_text(&self, old: &str) -> String {
        let mut new = old.to_owned();
        for change in self.of_class(Class::Restart) {
            let value = (!change.is_default).then_some(&*change.value);
            let present = settings_file::read(&new, change.knob.name);
            if present != value {
                new = settings_file::write(&new, change.knob.name, value);
            }
        }
        new
    }
}

/// The nodes that do not answer, each with the reason.
fn unreachable(file: &ClusterFile, look: &Look<'_>) -> Vec<String> {
    let of_node =
        |(node, facts): (&crate::cluster::NodeAccess, &std::result::Result<_, String>)| {
            let why = facts.as_ref().err()?;
            Some(format!("{} does not answer: {why}", node.name))
        };
    file.nodes.iter().zip(&look.seen).filter_map(of_node).collect()
}

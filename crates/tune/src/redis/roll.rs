//! A roll: applies a new configuration to all nodes of a Redis Cluster, or to a server, while clients are served.
//!
//! Live settings are set on one node after the other, read back, and written to the node's file by the node itself.
//! Other settings need a restart: replicas are restarted first, each with its new file. Then a replica that is in step
//! takes over from its master (`CLUSTER FAILOVER`: the master blocks its clients until the replica has all data), and
//! the old master is restarted as a replica. Before each step all nodes are inspected ([`imago_plan::tune::succession`]
//! selects the next one).
//!
//! Invariants:
//! - A master with slots is not stopped, unless the option `unserved` allows it; a failover promotes only a replica
//!   that is in step and has the new configuration.
//! - One node at a time is stopped, and the journal names it before.
//! - The configuration of a node's next start is derived from all its files and its command line before anything is
//!   changed, and again after the change; if it is not the requested one, the roll refuses.
//! - The new file is complete on the node's disk before the node stops, and the old one is saved next to it.
//! - A node that does not start with the new file gets the old one back, and the roll ends.
//! - One job at a time changes a cluster's configuration (the lock), one process works on it (the claim in the journal,
//!   a folder next to the cluster file), and every step is idempotent.

mod persist;
mod restart;
mod work;

use std::collections::BTreeMap;

use imago_job::id::JobId;
use imago_plan::tune::succession::{self, Allowed, Refusal, Step};
use serde::{Deserialize, Serialize};

use super::knobs::{self, Class, Knob};
use super::snapshot::Snapshot;
use super::{ClusterFile, Redis, settings_file};
pub use crate::cluster::costs::NodeRollTime;
use crate::cluster::{Error, Result, ValueChange};
use crate::configurations::{self, Configuration};

pub use work::{actions, cancel, jobs, node_roll_times, resume};

/// Kind of the jobs that are rolls of Redis, in the journal.
pub const KIND: &str = "redis_roll";

/// Specification of a roll of Redis, stored in the job's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// New values of the settings to change, by the setting's name; None restores the default.
    pub changes: BTreeMap<String, Option<String>>,
    /// Number of node failures that each shard must survive while one of its nodes restarts.
    pub tolerate: usize,
    /// True if a master without a replica may be restarted, although its keys are not served meanwhile.
    pub unserved: bool,
    /// True if a controller started the roll, so that the next controller resumes it if this one dies.
    #[serde(default)]
    pub is_of_controller: bool,
}

/// A change of one setting to a new value in a roll.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    /// The setting to change.
    knob: &'static Knob,
    /// New value of the setting, in the server's own format.
    value: String,
    /// True if the new value is the default because none was requested.
    is_default: bool,
}

impl Spec {
    /// Builds the roll that applies the configuration of index `number` to a cluster; each shard must survive
    /// `tolerate` failures while one of its nodes restarts.
    #[must_use]
    pub fn of(all: &[Configuration], number: usize, tolerate: usize) -> Self {
        let changes = configurations::settings(all, number);
        Self { changes, tolerate, unserved: false, is_of_controller: false }
    }

    /// Builds the roll that changes a cluster between the configurations whose indices are `numbers` (old and new),
    /// with only the settings that differ; each shard must survive `tolerate` failures meanwhile.
    ///
    /// # Errors
    /// Fails if a setting is unknown.
    pub fn between(
        all: &[Configuration],
        numbers: (usize, usize),
        tolerate: usize,
    ) -> Result<Self> {
        let changes = configurations::change::<Redis>(all, numbers)?;
        Ok(Self { changes, tolerate, unserved: false, is_of_controller: false })
    }

    /// Parses the specified changes, and checks that each setting accepts its new value.
    ///
    /// # Errors
    /// Fails if nothing is to change, if a setting is unknown, or if it does not take the value.
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

/// Dry run of a roll of Redis: the changes that it would make, and the obstacles to its start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// True if the roll would restart nodes.
    pub restarts: bool,
    /// Descriptions of the restarts and failovers in order, provided that the roles of nodes do not change otherwise.
    pub steps: Vec<String>,
    /// All nodes of the cluster file, with the changes that the roll would make there.
    pub nodes: Vec<NodePreview>,
    /// Reasons why the roll cannot start now; empty if it can.
    pub obstacles: Vec<String>,
}

/// A Redis node, and the changes that a roll would make there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodePreview {
    /// Name of the node in the cluster file.
    pub name: String,
    /// Address at which the node accepts clients, `IP:port`.
    pub address: String,
    /// Role of the node: `master`, `replica of NAME`, `idle` (a node without slots), or `not known`.
    pub part: String,
    /// Settings whose running value on the node differs from the new one.
    pub changes: Vec<ValueChange>,
}

/// A failover that a roll has completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailOver {
    /// Name of the node that was the master before the failover.
    pub from: String,
    /// Name of the replica that is the master since the failover.
    pub to: String,
    /// Time from before the first `CLUSTER FAILOVER` until the replica reported itself a master, in ms, as observed
    /// by polling.
    pub took_ms: f64,
}

/// Result of a completed roll of Redis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// ID of the roll's job.
    pub job: JobId,
    /// Names of the nodes with the new configuration.
    pub nodes: Vec<String>,
    /// Durations of the change of each node that was changed, by the node's name.
    pub took: BTreeMap<String, NodeRollTime>,
    /// Failovers of the roll, in order.
    pub fail_overs: Vec<FailOver>,
    /// Time for which the last process of the job worked on the roll, in seconds.
    pub elapsed_s: f64,
}

/// A cluster of Redis, and the checked changes of a roll there.
pub struct Roller {
    file: ClusterFile,
    spec: Spec,
    changes: Vec<Change>,
}

impl Roller {
    /// Checks the specification of a roll, without contacting the cluster.
    ///
    /// # Errors
    /// Fails if the specification is invalid.
    pub fn new(file: ClusterFile, spec: Spec) -> Result<Self> {
        let changes = spec.parsed()?;
        Ok(Self { file, spec, changes })
    }

    /// Returns the changes that are applied in this way.
    fn of_class(&self, class: Class) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.knob.class == class)
    }

    /// Returns true if the roll changes a setting that needs a restart.
    fn restarts(&self) -> bool {
        self.of_class(Class::Restart).next().is_some()
    }

    async fn snapshot(&self) -> Snapshot<'_> {
        let settings: Vec<&str> = self.changes.iter().map(|change| change.knob.name).collect();
        Snapshot::at(&self.file.nodes, &self.file.uri, &settings).await
    }

    /// Returns the settings of this class whose running value on the node of index `number` differs from the new one.
    fn differences(
        &self,
        snapshot: &Snapshot<'_>,
        number: usize,
        class: Class,
    ) -> Vec<ValueChange> {
        let Ok(facts) = &snapshot.facts[number] else { return Vec::new() };
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

    /// Returns the nodes as input for the selection of the next step; None if the role of a node is unknown.
    fn nodes(&self, snapshot: &Snapshot<'_>) -> Option<Vec<succession::Node>> {
        let is_settled = snapshot.obstacles().is_empty();
        let node = |number| {
            Some(succession::Node {
                part: snapshot.part(number)?,
                is_in_step: is_settled,
                is_done: self.differences(snapshot, number, Class::Restart).is_empty(),
            })
        };
        (0..self.file.nodes.len()).map(node).collect()
    }

    fn name(&self, number: usize) -> &str {
        &self.file.nodes[number].name
    }

    /// Returns the number of nodes that run with another value of any of the settings to change.
    ///
    /// # Errors
    /// Fails if a node does not answer, or does not know a setting.
    pub(super) async fn differing(&self) -> Result<usize> {
        let snapshot = self.snapshot().await;
        if let Some(why) = unreachable(&self.file, &snapshot).into_iter().next() {
            return Err(Error::precondition(why, "all nodes are asked what they run with"));
        }
        self.check_known(&snapshot)?;
        let differs = |number: &usize| {
            let of = |class| !self.differences(&snapshot, *number, class).is_empty();
            of(Class::Live) || of(Class::Restart)
        };
        Ok((0..self.file.nodes.len()).filter(differs).count())
    }

    /// Checks that every node that answers knows the settings to change.
    fn check_known(&self, snapshot: &Snapshot<'_>) -> Result<()> {
        for (node, facts) in self.file.nodes.iter().zip(&snapshot.facts) {
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

    /// Checks that no obstacle exists that does not disappear with time.
    fn check(&self, snapshot: &Snapshot<'_>) -> Result<()> {
        self.check_known(snapshot)?;
        for (node, facts) in self.file.nodes.iter().zip(&snapshot.facts) {
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
        if let Some(stranger) = snapshot.strangers().first() {
            return Err(Error::precondition(
                format!(
                    "the cluster has a node at {stranger}, which the cluster file does not name"
                ),
                "add it as a [[node]], with the address by which the others know it",
            ));
        }
        if self.restarts()
            && let Some(nodes) = self.nodes(snapshot)
            && let Some(refusal) = succession::refusal(&nodes, self.spec.allowed())
        {
            return Err(self.refused(refusal));
        }
        Ok(())
    }

    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::OutOfStep(number) => Error::precondition(
                format!("{} is not in sync", self.name(number)),
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

    /// Returns the changes that the roll would make, and the reasons why it cannot start. Changes nothing.
    ///
    /// # Errors
    /// Fails if the roll is impossible; the message has the reason.
    #[crate::boxed]
    pub async fn preview(&self) -> Result<Preview> {
        let snapshot = self.snapshot().await;
        self.check(&snapshot)?;
        self.check_survives_restart(&snapshot).await?;
        let part = |number| match snapshot.part(number) {
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
                .flat_map(|class| self.differences(&snapshot, number, class))
                .collect(),
        });
        let nodes = nodes.collect();
        let steps = self.nodes(&snapshot).map_or_else(Vec::new, |nodes| self.steps(nodes));
        let mut obstacles = snapshot.obstacles();
        if !self.restarts() {
            // No node is stopped: it is sufficient that every node answers.
            obstacles = unreachable(&self.file, &snapshot);
        }
        Ok(Preview { restarts: self.restarts(), steps, nodes, obstacles })
    }

    /// Simulates the restarts of these nodes, and returns descriptions of the steps.
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

    /// Describes a step in words.
    fn told(&self, step: Step) -> String {
        match step {
            Step::Restart(number) => format!("{} restarts", self.name(number)),
            Step::FailOver { from, to } => {
                format!("{} takes the place of {}", self.name(to), self.name(from))
            }
        }
    }

    /// Returns the text of a node's file (now `old`) with the new values of the settings that need a restart.
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

/// Returns the nodes that did not answer in this snapshot, each with the reason.
fn unreachable(file: &ClusterFile, snapshot: &Snapshot<'_>) -> Vec<String> {
    let of_node =
        |(node, facts): (&crate::cluster::NodeAccess, &std::result::Result<_, String>)| {
            let why = facts.as_ref().err()?;
            Some(format!("{} does not answer: {why}", node.name))
        };
    file.nodes.iter().zip(&snapshot.facts).filter_map(of_node).collect()
}

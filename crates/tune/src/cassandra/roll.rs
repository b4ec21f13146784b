//! A roll: a new configuration for all nodes, while clients are served.
//!
//! Settings that are live are applied to one node after the other. The others need a restart: nodes are restarted in
//! steps, each a set of nodes of which no range of any keyspace needs another replica ([`imago_plan::tune::availability`]),
//! whole racks where that is so. Before each step all nodes are looked at again, and the step begins only if every node
//! sees every other one up and settled, all have the same schema, and none keeps writes that another one has missed. A
//! node is over only when all that holds with it: it is up 6 to 19 s before its peers have sent it what it missed.
//!
//! Invariants:
//! - A canary is one node, changed before all others and before any table is altered.
//! - The nodes that are stopped at any moment are those of one step, and the journal names them before the first is.
//! - The new configuration is whole on the node's disk before the node stops, and the old one is kept beside it.
//! - A node that does not come back with the new one gets the old one back, and the roll ends.
//! - One job at a time changes a cluster's configuration (the lock), one process works at it (the claim), and every step
//!   of the work may be done again: a process that goes on with a dead one's job looks at what each node has.

mod canary;
mod files;
mod step;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use imago_job::id::JobId;
use imago_plan::tune::availability::Unsafe;
use scylla::client::session::Session;
use serde::{Deserialize, Serialize};

use super::compaction::{self, Compaction};
use super::connection;
use super::error::{Error, Result};
use super::knobs::{self, Class, Knob, Value};
use super::ring::{self, Cluster};
use super::{Cassandra, ClusterFile, Consistency};
pub use crate::cluster::ValueChange;
pub use crate::cluster::costs::Took;
use crate::configurations::{self, Configuration};
use files::Files;
pub use work::{cancel, resume, took};

/// The kind of these jobs.
pub const KIND: &str = "roll";
/// What is asked for. A job's record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The settings, each with its new value; nothing: its default.
    pub changes: BTreeMap<String, Option<String>>,
    /// The tables that get another compaction.
    #[serde(default)]
    pub compaction: BTreeMap<String, Compaction>,
    /// The consistency level that clients need, by its name.
    pub consistency: String,
    /// Failures that have to be withstood meanwhile.
    pub tolerate: usize,
    /// True: all nodes at once, though clients are not served meanwhile.
    pub is_at_once: bool,
    /// For how long the first node is compared with the others before the roll goes on; zero: not at all.
    #[serde(default)]
    pub canary_s: u64,
    /// True if a controller rolls: the next one finishes what a dead one has begun.
    #[serde(default)]
    pub is_of_controller: bool,
}

/// A change of one setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) knob: &'static Knob,
    pub(super) value: Option<Value>,
}

impl Change {
    /// True if a file that has this value, or none, has it already: a setting at its default need not be written.
    pub(super) fn is_in(&self, file: Option<&str>) -> bool {
        let default = self.knob.default.map(str::to_owned);
        let wanted = self.value.as_ref().map(ToString::to_string).or_else(|| default.clone());
        file.map(str::to_owned).or(default) == wanted
    }
}

impl Spec {
    /// The roll that gives a cluster one of the configurations, and a table its compaction, with all nodes at once.
    #[must_use]
    pub fn of(all: &[Configuration], number: usize, table: &str) -> Self {
        let compaction = all[number].compaction.iter().map(|one| (table.to_owned(), one.clone()));
        Self {
            changes: configurations::settings(all, number),
            compaction: compaction.collect(),
            consistency: "quorum".into(),
            tolerate: 0,
            is_at_once: true,
            canary_s: 0,
            is_of_controller: false,
        }
    }

    /// The roll that brings a cluster from one of the configurations to another, and changes nothing else.
    ///
    /// # Errors
    /// There is no such setting.
    pub fn between(all: &[Configuration], (from, to): (usize, usize), table: &str) -> Result<Self> {
        let mut spec = Self::of(all, to, table);
        spec.changes = configurations::change::<Cassandra>(all, (from, to))?;
        if all[from].compaction == all[to].compaction {
            spec.compaction.clear();
        }
        Ok(spec)
    }

    /// The changes, checked.
    ///
    /// # Errors
    /// There is no such setting, or it takes no such value.
    pub(super) fn parsed(&self) -> Result<Vec<Change>> {
        if self.changes.is_empty() && self.compaction.is_empty() {
            return Err(Error::Usage("nothing is to be changed".into()));
        }
        self.compaction.keys().try_for_each(|table| compaction::split(table).map(drop))?;
        configurations::check::<Cassandra>(&self.changes)?;
        let change = |(name, text): (&String, &Option<String>)| {
            let knob = knobs::find(name)?;
            let value = text.as_deref().map(|text| knob.value(text)).transpose()?;
            Ok(Change { knob, value })
        };
        self.changes.iter().map(change).collect()
    }
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
    /// The tables that have another compaction.
    pub tables: Vec<TablePreview>,
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

/// A table whose compaction would change, in all nodes at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TablePreview {
    /// Its name.
    pub table: String,
    /// What it has.
    pub from: Compaction,
    /// What it gets.
    pub to: Compaction,
}

/// What came of a roll.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The job.
    pub job: JobId,
    /// The nodes that have the new configuration.
    pub nodes: Vec<String>,
    /// The tables that have the new compaction.
    pub tables: Vec<String>,
    /// How long each of them took that was changed.
    pub took: BTreeMap<String, Took>,
    /// From the first step to the last, in seconds.
    pub elapsed_s: f64,
}

/// Says which node cannot be stopped, for which range.
pub(super) fn refused(cluster: &Cluster, refusal: &Unsafe, consistency: &str) -> Error {
    let name = &cluster.members[refusal.node].access.name;
    Error::precondition(
        format!("{name} cannot be stopped at consistency {consistency}: {refusal}"),
        "raise the replication of that keyspace, or roll for a lower --consistency or --tolerate; --at-once does \
         it without serving clients meanwhile",
    )
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

    /// The nodes that are changed together, step by step. A canary is the first one, alone.
    fn steps(&self, cluster: &Cluster) -> Result<Vec<BTreeSet<usize>>> {
        let mut steps = self.steps_of_all(cluster)?;
        if self.spec.canary_s == 0 {
            return Ok(steps);
        }
        if steps.is_empty() {
            return Ok(vec![BTreeSet::from([0])]);
        }
        if let Some(canary) = steps[0].first().copied().filter(|_| steps[0].len() > 1) {
            steps[0].remove(&canary);
            steps.insert(0, BTreeSet::from([canary]));
        }
        Ok(steps)
    }

    fn steps_of_all(&self, cluster: &Cluster) -> Result<Vec<BTreeSet<usize>>> {
        let all = 0..cluster.members.len();
        if self.changes.is_empty() {
            return Ok(Vec::new());
        }
        if !self.restarts() {
            return Ok(all.map(|number| BTreeSet::from([number])).collect());
        }
        if self.spec.is_at_once {
            return Ok(vec![all.collect()]);
        }
        let steps = cluster.ring.steps();
        steps.map_err(|refusal| refused(cluster, &refusal, &self.spec.consistency))
    }

    /// What the roll would do. Changes nothing.
    ///
    /// # Errors
    /// It may not be done at all: a range would be left with too few replicas, or the cluster file is wrong.
    pub async fn preview(&self) -> Result<Preview> {
        let cluster = self.cluster()?;
        let steps = self.steps(&cluster)?;
        let name = |number: &usize| cluster.members[*number].access.name.clone();
        let changes = &self.changes;
        let reads = cluster
            .members
            .iter()
            .map(|member| async { Files { node: &member.access, changes }.values().await });
        let values: Vec<_> = iter(reads).buffered(ring::LOOKS_AT_ONCE).try_collect().await?;
        let mut nodes = Vec::new();
        for (member, mut values) in cluster.members.iter().zip(values) {
            let mut changes = Vec::new();
            for change @ Change { knob, value } in &self.changes {
                let from = values.remove(knob.name).flatten();
                let to = value.as_ref().map(ToString::to_string);
                if !change.is_in(from.as_deref()) {
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
        let mut tables = Vec::new();
        for (table, to) in &self.spec.compaction {
            let from = compaction::present(&self.session, table).await?;
            if !to.is_in(&from) {
                tables.push(TablePreview { table: table.clone(), from, to: to.clone() });
            }
        }
        Ok(Preview {
            tables,
            restarts: self.restarts(),
            steps: steps.iter().map(|step| step.iter().map(name).collect()).collect(),
            nodes,
            obstacles: cluster.obstacles(&self.file.uri, &BTreeSet::new(), self.restarts()).await,
        })
    }
}

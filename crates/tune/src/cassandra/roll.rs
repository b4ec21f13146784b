//! A roll: applies a new configuration to all nodes of a Cassandra cluster while clients are served.
//!
//! Live settings are applied to one node after the other. Other settings need a restart: nodes are restarted in steps.
//! A step is a set of nodes that can be stopped together without the loss of a required replica in any range of any
//! keyspace ([`imago_plan::tune::availability`]): whole racks where that is possible. Before each step all nodes are
//! inspected. The step begins only if every node sees every other one up and in the state normal, all have the same
//! schema, and none stores hints for another one. A step ends only when the same conditions hold with the restarted
//! nodes: a node is up 6 to 19 s before its peers have sent it the writes that it missed.
//!
//! Invariants:
//! - A canary is one node, changed before all others and before any table is altered.
//! - The nodes that are stopped at any moment belong to one step, and the journal names them before the first one
//!   stops.
//! - Every node's files are read and parsed completely, in their present and their new form, before the first node
//!   changes.
//! - The new configuration is complete on the node's disk before the node stops, and the old one is saved next to it.
//! - A node that does not start with the new configuration gets the old one back, and the roll ends.
//! - One job at a time changes a cluster's configuration (the lock), one process works on it (the claim), and every
//!   step is idempotent: a process that resumes the job of a dead one inspects the state of each node.

mod canary;
mod check;
mod compare_canary;
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
use super::ring::{self, Cluster, Waits};
use super::{Cassandra, ClusterFile, Consistency};
pub use crate::cluster::ValueChange;
pub use crate::cluster::costs::NodeRollTime;
use crate::configurations::{self, Configuration};
use files::Files;
pub use work::{cancel, node_roll_times, resume};

/// Kind of the jobs that are rolls of a Cassandra cluster, in the journal.
pub const KIND: &str = "roll";
/// Specification of a roll of a Cassandra cluster, stored in the job's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// New values of the settings to change, by the setting's name; None restores the default.
    pub changes: BTreeMap<String, Option<String>>,
    /// New compactions of tables, by the table's name (`keyspace.table`).
    #[serde(default)]
    pub compaction: BTreeMap<String, Compaction>,
    /// Name of the consistency level that clients need during the roll.
    pub consistency: String,
    /// Number of node failures, in addition to the stopped nodes, that must be survived during the roll.
    pub tolerate: usize,
    /// True if all nodes restart at once, so that clients are not served meanwhile.
    pub is_at_once: bool,
    /// Time for which the canary (the first node) is compared with the others, in seconds before its change and again
    /// after it; zero: no canary.
    #[serde(default)]
    pub canary_s: u64,
    /// True if a controller started the roll, so that the next controller resumes it if this one dies.
    #[serde(default)]
    pub is_of_controller: bool,
}

/// A change of one setting to a new value in a roll.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    /// The setting to change.
    pub(super) knob: &'static Knob,
    /// New value of the setting; None restores the default.
    pub(super) value: Option<Value>,
}

impl Change {
    /// Returns true if a file with the value `file` (None: absent) needs no change: a setting at its default need not
    /// be written.
    pub(super) fn is_in(&self, file: Option<&str>) -> bool {
        let default = self.knob.default.map(str::to_owned);
        let wanted = self.value.as_ref().map(ToString::to_string).or_else(|| default.clone());
        file.map(str::to_owned).or(default) == wanted
    }
}

impl Spec {
    /// Builds the roll that applies the configuration of index `number` to a cluster, and its compaction to `table`
    /// (`keyspace.table`); all nodes restart at once.
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

    /// Builds the roll that changes a cluster from the configuration of index `from` to that of index `to`, with only
    /// the settings that differ; the compaction is that of `table` (`keyspace.table`).
    ///
    /// # Errors
    /// Fails if a setting is unknown.
    pub fn between(all: &[Configuration], (from, to): (usize, usize), table: &str) -> Result<Self> {
        let mut spec = Self::of(all, to, table);
        spec.changes = configurations::change::<Cassandra>(all, (from, to))?;
        if all[from].compaction == all[to].compaction {
            spec.compaction.clear();
        }
        Ok(spec)
    }

    /// Parses the specified changes, and checks that each setting accepts its new value.
    ///
    /// # Errors
    /// Fails if nothing is to change, if a setting is unknown, or if it does not take the value.
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

/// Dry run of a roll of a Cassandra cluster: the changes that it would make, and the obstacles to its start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// True if the roll would restart nodes.
    pub restarts: bool,
    /// Names of the nodes of each step, in order; the nodes of a step are changed, and if necessary stopped,
    /// together.
    pub steps: Vec<Vec<String>>,
    /// All nodes of the cluster, with the changes that the roll would make there.
    pub nodes: Vec<NodePreview>,
    /// Tables whose compaction the roll would change.
    pub tables: Vec<TablePreview>,
    /// Reasons why the roll cannot start now; empty if it can.
    pub obstacles: Vec<String>,
    /// True if all obstacles disappear by themselves.
    #[serde(skip)]
    are_obstacles_transient: bool,
}

/// A Cassandra node, and the changes that a roll would make there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodePreview {
    /// Name of the node in the cluster file.
    pub name: String,
    /// Address at which the node accepts clients, `IP:port`.
    pub address: String,
    /// Names of the node's data center and rack, with a blank in between.
    pub rack: String,
    /// Settings whose value in the node's files differs from the new one.
    pub changes: Vec<ValueChange>,
}

/// A table whose compaction would change, on all nodes at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TablePreview {
    /// Name of the table whose compaction would change, `keyspace.table`.
    pub table: String,
    /// Compaction that the table has now.
    pub from: Compaction,
    /// Compaction that the table would have after the roll.
    pub to: Compaction,
}

/// Result of a completed roll of a Cassandra cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// ID of the roll's job.
    pub job: JobId,
    /// Names of the nodes that have the new settings; empty if only compactions were changed.
    pub nodes: Vec<String>,
    /// Names of the tables that have the new compaction.
    pub tables: Vec<String>,
    /// Durations of the change of each node that was changed, by the node's name.
    pub took: BTreeMap<String, NodeRollTime>,
    /// Time for which the last process of the job worked on the roll, in seconds.
    pub elapsed_s: f64,
}

/// Converts a refusal of the planner to an error that names the node that cannot be stopped, and the token range.
pub(super) fn refused(cluster: &Cluster, refusal: &Unsafe, consistency: &str) -> Error {
    let name = &cluster.members[refusal.node].access.name;
    Error::precondition(
        format!("{name} cannot be stopped at consistency {consistency}: {refusal}"),
        "raise the replication of that keyspace, or roll for a lower --consistency or --tolerate; --at-once does \
         it without serving clients meanwhile",
    )
}

/// A connection to a Cassandra cluster, and the checked changes of a roll there.
pub struct Roller {
    file: ClusterFile,
    session: Session,
    consistency: Consistency,
    spec: Spec,
    changes: Vec<Change>,
    waits: Waits,
}

impl Roller {
    /// Connects to the cluster of the file, and checks the roll's specification.
    ///
    /// # Errors
    /// Fails if the specification is invalid, or if the connection is refused.
    #[crate::boxed]
    pub async fn connect(file: ClusterFile, spec: Spec) -> Result<Self> {
        let changes = spec.parsed()?;
        let consistency = connection::consistency(&spec.consistency)
            .ok_or_else(|| Error::Usage(format!("there is no level {}", spec.consistency)))?;
        let session = connection::connect(&file.uri, Consistency::Quorum).await?;
        let waits = Waits::default();
        Ok(Self { file, session, consistency, spec, changes, waits })
    }

    /// Returns true if the roll changes a setting that needs a restart.
    fn restarts(&self) -> bool {
        self.changes.iter().any(|change| change.knob.class == Class::Restart)
    }

    /// Returns the cluster's nodes and token ranges as the driver's metadata describes them.
    fn cluster(&self) -> Result<Cluster> {
        let (consistency, tolerate) = (self.consistency, self.spec.tolerate);
        let cluster = ring::cluster(&self.session, &self.file, consistency, tolerate)?;
        Ok(Cluster { waits: self.waits.clone(), ..cluster })
    }

    /// Returns the indices of the nodes of each step, which are changed together. A canary is a step of its own, the
    /// first one.
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

    /// Returns the indices of the nodes of each step, without regard to a canary.
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

    /// Returns the changes that the roll would make, and the reasons why it cannot start. Changes nothing.
    ///
    /// # Errors
    /// Fails if the roll is impossible: a range would have too few replicas, or the cluster file is wrong.
    #[crate::boxed(?Send)]
    pub async fn preview(&self) -> Result<Preview> {
        let cluster = self.cluster()?;
        let steps = self.steps(&cluster)?;
        let name = |number: &usize| cluster.members[*number].access.name.clone();
        let changes = &self.changes;
        check::check_startable(&cluster, changes).await?;
        let reads = cluster
            .members
            .iter()
            .map(|member| async { Files { node: &member.access, changes }.values().await });
        let values: Vec<_> = iter(reads).buffered(ring::INSPECTIONS_AT_ONCE).try_collect().await?;
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
        let obstacles = cluster.obstacles(&self.file.uri, &BTreeSet::new(), self.restarts()).await;
        Ok(Preview {
            tables,
            restarts: self.restarts(),
            steps: steps.iter().map(|step| step.iter().map(name).collect()).collect(),
            nodes,
            are_obstacles_transient: obstacles.are_transient(),
            obstacles: obstacles.texts(),
        })
    }
}

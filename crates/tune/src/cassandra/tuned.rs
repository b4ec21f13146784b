//! A Cassandra cluster under the control of the control loop ([`crate::controller`]).

use std::time::Duration;

use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_job::reporter::Events;
use tokio_util::sync::CancellationToken;

use super::error::Result;
use super::journal::CassandraJournal;
use super::observe::Observer;
use super::roll::{self, Roller, Spec};
use super::{Cassandra, ClusterFile, knobs};
use crate::cluster::costs::NodeRollTime;
use crate::cluster::observation::Observation;
use crate::configurations::Configuration;
use crate::controller::cluster::{Cluster, Differences, Observe, Present, Rolled};
use crate::controller::{self, Event, Request, Summary};

/// A Cassandra cluster to tune, and the options of its rolls.
#[derive(Clone, Debug)]
pub struct TunedCluster {
    /// Connection string of the cluster, and access to its nodes.
    pub file: ClusterFile,
    /// Candidate configurations, in the order of their measurements.
    pub configurations: Vec<Configuration>,
    /// Keyspace and name of the table whose load and compaction are tuned.
    pub table: (String, String),
    /// Name of the consistency level that clients need during a roll.
    pub consistency: String,
    /// Number of node failures, in addition to the stopped nodes, that must be survived during a roll.
    pub tolerate: usize,
    /// Time for which the first node of a roll is compared with the others, before its change and again after it;
    /// zero: it is not compared.
    pub canary: Duration,
}

/// Tunes a Cassandra cluster until `cancel` is cancelled or the requested duration has passed, and returns the
/// totals. `process` is the name under which the controller holds its lease, and `say` receives its events.
///
/// # Errors
/// Fails if the cluster cannot be observed, if another controller has the lease, or if the trace cannot be written. A
/// failed roll is no such error: it is reported, persisted, and not retried for a day.
#[crate::boxed(?Send)]
pub async fn run(
    cluster: &TunedCluster,
    request: &Request,
    process: &str,
    events: &Events,
    cancel: CancellationToken,
    say: &(dyn Fn(&Event) + Sync),
) -> Result<Summary> {
    controller::run(cluster, request, process, events, cancel, say).await
}

impl TunedCluster {
    /// Describes a cluster whose clients read and write at quorum, without a canary; `table` is the keyspace and name
    /// of the tuned table.
    #[must_use]
    pub fn new(
        file: ClusterFile,
        configurations: Vec<Configuration>,
        table: (String, String),
    ) -> Self {
        let (consistency, canary) = ("quorum".into(), Duration::ZERO);
        Self { file, configurations, table, consistency, tolerate: 0, canary }
    }

    /// Returns the tuned table's name as rolls use it, `keyspace.table`.
    fn table(&self) -> String {
        format!("{}.{}", self.table.0, self.table.1)
    }

    /// Builds the roll that applies the configuration of index `number` to the cluster while it serves.
    fn spec_of(&self, number: usize) -> Spec {
        Spec {
            consistency: self.consistency.clone(),
            tolerate: self.tolerate,
            is_at_once: false,
            ..Spec::of(&self.configurations, number, &self.table())
        }
    }
}

impl Observe for Observer {
    async fn observe(&mut self) -> Observation {
        Self::observe(self).await
    }
}

impl Cluster for TunedCluster {
    type Database = Cassandra;
    type Log = CassandraJournal;
    type Observer = Observer;
    const LATENCY_WITHIN: f64 = 1.0;
    /// The nodes' histograms forget half of their content in a minute.
    const LATENCY_COVERS_S: f64 = 120.0;

    fn configurations(&self) -> &[Configuration] {
        &self.configurations
    }

    fn check(&self) -> Result<()> {
        (0..self.configurations.len())
            .try_for_each(|number| self.spec_of(number).parsed().map(drop))
    }

    async fn log(&self) -> Result<CassandraJournal> {
        CassandraJournal::open(&self.file.uri).await
    }

    async fn observer(&self) -> Result<Observer> {
        Observer::begin(&self.file, Some(self.table.clone())).await
    }

    async fn rolls(&self) -> Result<Vec<Record>> {
        let mut all = self.log().await?.list().await?;
        all.retain(|record| record.kind == roll::KIND);
        Ok(all)
    }

    fn node_roll_times(roll: &Record) -> Vec<NodeRollTime> {
        roll::node_roll_times(roll)
    }

    async fn resume(
        &self,
        roll: &JobId,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<()> {
        roll::resume(self.file.clone(), roll, process, events, cancel).await.map(drop)
    }

    fn can_take_turns(&self, (from, to): (usize, usize)) -> Result<bool> {
        knobs::can_take_turns(&self.configurations[from], &self.configurations[to])
    }

    async fn present(&self) -> Result<Present> {
        let mut differences = Differences::default();
        for (number, configuration) in self.configurations.iter().enumerate() {
            let roller = Roller::connect(self.file.clone(), self.spec_of(number)).await?;
            let preview = roller.preview().await?;
            let nodes = preview.nodes.iter().filter(|node| !node.changes.is_empty()).count();
            if nodes == 0 && preview.tables.is_empty() {
                let at_once = preview.steps.iter().map(Vec::len).max().unwrap_or(1);
                let at_once = if preview.restarts { at_once } else { 1 };
                return Ok(Present { configuration: number, at_once });
            }
            let tables =
                if preview.tables.is_empty() { "" } else { ", and the table's compaction" };
            differences.add(&configuration.name, nodes, tables);
        }
        Err(differences.none())
    }

    async fn change(
        &self,
        numbers: (usize, usize),
        is_undoing: bool,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<Rolled> {
        // A return to the previous configuration needs no proof that it is better.
        let canary_s = if is_undoing { 0 } else { self.canary.as_secs() };
        let spec = Spec {
            consistency: self.consistency.clone(),
            tolerate: self.tolerate,
            is_at_once: false,
            canary_s,
            is_of_controller: true,
            ..Spec::between(&self.configurations, numbers, &self.table())?
        };
        let roller = Roller::connect(self.file.clone(), spec).await?;
        let outcome = roller.begin(process, events, cancel).await?;
        Ok(Rolled {
            job: outcome.job.to_string(),
            elapsed_s: outcome.elapsed_s,
            node_times: outcome.took.into_values().collect(),
        })
    }
}

//! A Redis Cluster, or a server, under the control of the control loop ([`crate::controller`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_job::reporter::Events;
use imago_plan::tune::roll::Costs;
use tokio_util::sync::CancellationToken;

use super::connection::Node;
use super::decisions::RedisDecisions;
use super::observe::Observer;
use super::roll::{self, Roller, Spec};
use super::{ClusterFile, Redis, knobs};
use crate::cluster::costs::{NodeRollTime, learned};
use crate::cluster::observation::Observation;
use crate::cluster::{Error, Result};
use crate::configurations::Configuration;
use crate::controller::cluster::{Cluster, Differences, Observe, Present, Rolled};
use crate::controller::{self, Event, Request, Summary};

/// Timeout of a node's reply when its latency tracking is checked.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// A Redis Cluster or server to tune, and the options of its rolls.
#[derive(Clone, Debug)]
pub struct TunedCluster {
    /// Connection string of the cluster, and access to its nodes.
    pub file: ClusterFile,
    /// Path of the cluster file; the jobs and decisions of the cluster are stored next to it.
    pub path: PathBuf,
    /// Candidate configurations, in the order of their measurements.
    pub configurations: Vec<Configuration>,
    /// Number of node failures that each shard must survive while one of its nodes restarts.
    pub tolerate: usize,
}

/// Tunes a Redis Cluster or server until `cancel` is cancelled or the requested duration has passed, and returns the
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

/// Estimates the durations and lost capacity of changes in this cluster from its past rolls, which are stored next to
/// `path`; one node at a time restarts.
///
/// # Errors
/// Fails if the jobs cannot be read.
#[crate::boxed]
pub async fn costs(file: &ClusterFile, path: &std::path::Path) -> Result<Costs> {
    let took: Vec<NodeRollTime> =
        rolls(path).await?.iter().flat_map(roll::node_roll_times).collect();
    Ok(learned(guessed(file.nodes.len()), &took))
}

/// Returns assumed durations and lost capacity of changes for a cluster of `nodes` nodes, until past rolls have shown
/// them: six nodes on one machine, with little data, were in sync half a second after their stop.
#[must_use]
pub fn guessed(nodes: usize) -> Costs {
    Costs { restart_s: 5.0, live_s: 0.1, ..Costs::guessed(nodes) }
}

async fn rolls(path: &std::path::Path) -> Result<Vec<Record>> {
    let mut all = roll::jobs(path)?.list().await?;
    all.retain(|record| record.kind == roll::KIND);
    Ok(all)
}

impl Observe for Observer {
    async fn observe(&mut self) -> Observation {
        Self::observe(self).await
    }
}

impl Cluster for TunedCluster {
    type Database = Redis;
    type Log = RedisDecisions;
    type Observer = Observer;
    /// Buckets of latencies differ by a factor of two, and latencies within one are interpolated.
    const LATENCY_WITHIN: f64 = 2.1;
    const LATENCY_COVERS_S: f64 = 0.0;

    fn configurations(&self) -> &[Configuration] {
        &self.configurations
    }

    fn check(&self) -> Result<()> {
        let all = &self.configurations;
        let check =
            |number| Roller::new(self.file.clone(), Spec::of(all, number, self.tolerate)).map(drop);
        (0..all.len()).try_for_each(check)
    }

    async fn log(&self) -> Result<RedisDecisions> {
        RedisDecisions::open(&self.path, self.file.uri.clone())
    }

    async fn observer(&self) -> Result<Observer> {
        for access in &self.file.nodes {
            let at = access.address.to_string();
            let Ok(node) = Node::connect(&at, &self.file.uri, ANSWER_WAIT).await else { continue };
            // If the user may not read the setting, the node's statistics decide.
            let words = ["CONFIG", "GET", "latency-tracking"];
            let Ok(told) = node.try_ask::<BTreeMap<String, String>>(&words).await else { continue };
            if told.get("latency-tracking").is_some_and(|value| value == "no") {
                return Err(Error::precondition(
                    format!("{} does not track latency, by which changes are judged", access.name),
                    "set latency-tracking to yes there (CONFIG SET)",
                ));
            }
        }
        Observer::begin(&self.file).await
    }

    /// Returns the records of all rolls that are stored next to the cluster file `path`.
    async fn rolls(&self) -> Result<Vec<Record>> {
        rolls(&self.path).await
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
        let file = self.file.clone();
        roll::resume(file, &self.path, roll, process, events, cancel).await.map(drop)
    }

    fn can_take_turns(&self, (from, to): (usize, usize)) -> Result<bool> {
        knobs::can_take_turns(&self.configurations[from], &self.configurations[to])
    }

    async fn present(&self) -> Result<Present> {
        let mut differences = Differences::default();
        for (number, configuration) in self.configurations.iter().enumerate() {
            let spec = Spec::of(&self.configurations, number, self.tolerate);
            let nodes = Roller::new(self.file.clone(), spec)?.differing().await?;
            if nodes == 0 {
                return Ok(Present { configuration: number, at_once: 1 });
            }
            differences.add(&configuration.name, nodes, "");
        }
        Err(differences.none())
    }

    async fn change(
        &self,
        numbers: (usize, usize),
        _: bool,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<Rolled> {
        let spec = Spec::between(&self.configurations, numbers, self.tolerate)?;
        let spec = Spec { is_of_controller: true, ..spec };
        let roller = Roller::new(self.file.clone(), spec)?;
        let outcome = roller.begin(&self.path, process, events, cancel).await?;
        Ok(Rolled {
            job: outcome.job.to_string(),
            elapsed_s: outcome.elapsed_s,
            node_times: outcome.took.into_values().collect(),
        })
    }
}

//! A Redis Cluster, or a server, that a controller tunes.

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
use super::{ClusterFile, Redis};
use crate::cluster::costs::{Took, learned};
use crate::cluster::observation::Observation;
use crate::cluster::{Error, Result};
use crate::configurations::Configuration;
use crate::controller::cluster::{Cluster, Differences, Observe, Present, Rolled};
use crate::controller::{self, Event, Request, Summary};

/// For a node to answer one question.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What is tuned.
#[derive(Clone, Debug)]
pub struct TunedCluster {
    /// How the nodes are reached.
    pub file: ClusterFile,
    /// The path of that file: jobs and decisions are kept beside it.
    pub path: PathBuf,
    /// The configurations to choose among, in the order of the measurements.
    pub configurations: Vec<Configuration>,
    /// Failures that each shard has to withstand while one of its nodes is away.
    pub tolerate: usize,
}

/// Tunes a cluster until it is interrupted.
///
/// # Errors
/// The cluster cannot be looked at, another controller decides for it, or the trace cannot be written. A roll that fails
/// is no such error: it is said, kept, and not tried again for a day.
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

/// What changes take in this cluster by the rolls that are kept beside its file; one node at a time is away.
///
/// # Errors
/// The jobs cannot be read.
pub async fn costs(file: &ClusterFile, path: &std::path::Path) -> Result<Costs> {
    let took: Vec<Took> = rolls(path).await?.iter().flat_map(roll::took).collect();
    Ok(learned(guessed(file.nodes.len()), &took))
}

/// A guess for so many nodes, until a roll has shown more: six nodes on one machine were in step half a second behind
/// their stop, with little data.
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
    async fn look(&mut self) -> Observation {
        Self::look(self).await
    }
}

impl Cluster for TunedCluster {
    type Database = Redis;
    type Log = RedisDecisions;
    type Observer = Observer;
    /// Buckets are a factor of two apart, and times within one are guessed.
    const LATENCY_WITHIN: f64 = 2.1;

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
            // A user who may not ask is judged by what the node tells.
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

    async fn rolls(&self) -> Result<Vec<Record>> {
        rolls(&self.path).await
    }

    fn took(roll: &Record) -> Vec<Took> {
        roll::took(roll)
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
            took: outcome.took.into_values().collect(),
        })
    }
}

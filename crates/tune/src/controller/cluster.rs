//! The interface between the control loop and a cluster; each database implements it.

use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::reporter::Events;
use tokio_util::sync::CancellationToken;

use crate::cluster::costs::NodeRollTime;
use crate::cluster::observation::Observation;
use crate::cluster::{Error, Result, Settings};
use crate::configurations::Configuration;
use crate::decisions::DecisionLog;

/// Result of a roll.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rolled {
    pub(crate) job: String,
    pub(crate) elapsed_s: f64,
    /// Durations of each node's change.
    pub(crate) node_times: Vec<NodeRollTime>,
}

/// Present state of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    /// Index of the present configuration.
    pub(crate) configuration: usize,
    /// Number of nodes that may be stopped together.
    pub(crate) at_once: usize,
}

/// Reads the counters of a cluster's nodes.
pub(crate) trait Observe {
    /// Returns the operations since the previous call.
    async fn observe(&mut self) -> Observation;
}

/// A cluster under the control of the loop; see the module's documentation.
pub(crate) trait Cluster {
    type Database: Settings;
    type Log: DecisionLog + Clone;
    type Observer: Observe;
    /// Factor by which a reported latency may differ from the true one.
    const LATENCY_WITHIN: f64;

    /// Returns the candidate configurations, in the order of the measurements.
    fn configurations(&self) -> &[Configuration];

    /// Checks the configurations before the cluster is contacted.
    fn check(&self) -> Result<()>;

    /// Connects to the log of decisions.
    async fn log(&self) -> Result<Self::Log>;

    /// Starts the observation with a first reading.
    async fn observer(&self) -> Result<Self::Observer>;

    /// Returns the jobs of all rolls, started by a controller or by hand.
    async fn rolls(&self) -> Result<Vec<Record>>;

    /// Returns the durations of each node's change in a roll.
    fn node_roll_times(roll: &Record) -> Vec<NodeRollTime>;

    /// Resumes a roll.
    async fn resume(
        &self,
        roll: &JobId,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<()>;

    /// Determines the present configuration; the error lists the differences from each candidate.
    async fn present(&self) -> Result<Present>;

    /// Changes the cluster from one configuration to another, while it serves; `numbers` are both indices.
    async fn change(
        &self,
        numbers: (usize, usize),
        is_undoing: bool,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<Rolled>;
}

/// Differences of a cluster from each configuration, for an error message.
#[derive(Debug, Default)]
pub(crate) struct Differences(Vec<String>);

impl Differences {
    /// Adds a configuration that the cluster does not have, with the number of nodes that differ.
    pub(crate) fn add(&mut self, name: &str, nodes: usize, more: &str) {
        self.0.push(format!("{name} differs on {nodes} nodes{more}"));
    }

    /// Returns the error that the cluster has none of the configurations.
    pub(crate) fn none(self) -> Error {
        Error::precondition(
            format!("the cluster has none of the configurations: {}", self.0.join("; ")),
            "roll one of them out (`imago tune roll`), or add the present one to the file and measure it",
        )
    }
}

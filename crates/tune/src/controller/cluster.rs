//! The interface between the control loop and the cluster that it tunes; each database implements it.

use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::reporter::Events;
use tokio_util::sync::CancellationToken;

use crate::cluster::costs::NodeRollTime;
use crate::cluster::observation::Observation;
use crate::cluster::{Error, Result, Settings};
use crate::configurations::Configuration;
use crate::decisions::DecisionLog;

/// Result of a roll that has completed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rolled {
    /// ID of the roll's job.
    pub(crate) job: String,
    /// Duration of the roll, in seconds.
    pub(crate) elapsed_s: f64,
    /// Durations of the change of each node that the roll has changed.
    pub(crate) node_times: Vec<NodeRollTime>,
}

/// State of a cluster as it was inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    /// Index of the candidate configuration that all nodes have.
    pub(crate) configuration: usize,
    /// Maximum number of nodes that a roll stops together.
    pub(crate) at_once: usize,
}

/// Reader of the counters of a cluster's nodes.
pub(crate) trait Observe {
    /// Reads the counters of all nodes, and returns the operations since the previous call.
    async fn observe(&mut self) -> Observation;
}

/// A cluster that the control loop observes and changes; see the module's documentation.
pub(crate) trait Cluster {
    /// The database, with its settings.
    type Database: Settings;
    /// The store of decisions, of the controllers' lease and of the suspension.
    type Log: DecisionLog + Clone;
    /// The reader of the nodes' counters.
    type Observer: Observe;
    /// Factor by which a latency that an observation reports may differ from the true one.
    const LATENCY_WITHIN: f64;
    /// Time that the latencies of an observation cover, in seconds; zero: the time since the previous observation alone.
    const LATENCY_COVERS_S: f64;

    /// Returns the candidate configurations, in the order of the measurements.
    fn configurations(&self) -> &[Configuration];

    /// Checks that the settings of all candidate configurations are valid, before the cluster is contacted.
    fn check(&self) -> Result<()>;

    /// Opens the log of decisions of this cluster.
    async fn log(&self) -> Result<Self::Log>;

    /// Starts the observation of the cluster with a first reading of the nodes' counters.
    async fn observer(&self) -> Result<Self::Observer>;

    /// Returns the records of all jobs that are rolls of this cluster, started by a controller or by hand.
    async fn rolls(&self) -> Result<Vec<Record>>;

    /// Returns the duration of each node's change in a roll, from the job's record.
    fn node_roll_times(roll: &Record) -> Vec<NodeRollTime>;

    /// Resumes the roll with this job ID, on behalf of `process`, and completes it.
    async fn resume(
        &self,
        roll: &JobId,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<()>;

    /// Returns true if two configurations, given by their indices, can take turns while clients are served: a change of live
    /// settings alone, which holds for data that exist already.
    fn can_take_turns(&self, numbers: (usize, usize)) -> Result<bool>;

    /// Determines the configuration that the cluster has now; the error lists the differences from each candidate.
    async fn present(&self) -> Result<Present>;

    /// Changes the cluster from one configuration to another while it serves; `numbers` are the indices of the old
    /// and the new one. `is_undoing` is true if this reverts an earlier change.
    async fn change(
        &self,
        numbers: (usize, usize),
        is_undoing: bool,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<Rolled>;
}

/// Differences of a cluster from each candidate configuration, for an error message.
#[derive(Debug, Default)]
pub(crate) struct Differences(Vec<String>);

impl Differences {
    /// Adds the candidate configuration `name`, from which `nodes` nodes differ; `more` names further differences.
    pub(crate) fn add(&mut self, name: &str, nodes: usize, more: &str) {
        self.0.push(format!("{name} differs on {nodes} nodes{more}"));
    }

    /// Returns the error that the cluster has none of the candidate configurations.
    pub(crate) fn none(self) -> Error {
        Error::precondition(
            format!("the cluster has none of the configurations: {}", self.0.join("; ")),
            "roll one of them out (`imago tune roll`), or add the present one to the file and measure it",
        )
    }
}

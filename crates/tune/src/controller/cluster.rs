//! A cluster, as the loop that tunes it sees it: one for each database.

use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::reporter::Events;
use tokio_util::sync::CancellationToken;

use crate::cluster::costs::Took;
use crate::cluster::observation::Observation;
use crate::cluster::{Error, Result, Settings};
use crate::configurations::Configuration;
use crate::decisions::DecisionLog;

/// What a roll did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rolled {
    pub(crate) job: String,
    pub(crate) elapsed_s: f64,
    /// How long each node took.
    pub(crate) took: Vec<Took>,
}

/// What a cluster has at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    /// The number of its configuration.
    pub(crate) configuration: usize,
    /// Nodes that may be stopped together.
    pub(crate) at_once: usize,
}

/// Looks at the counters of a cluster's nodes.
pub(crate) trait Observe {
    /// What was counted since the last look.
    async fn look(&mut self) -> Observation;
}

/// See the module's documentation.
pub(crate) trait Cluster {
    type Database: Settings;
    type Log: DecisionLog + Clone;
    type Observer: Observe;
    /// Latencies are told within this factor.
    const LATENCY_WITHIN: f64;

    /// The configurations to choose among, in the order of the measurements.
    fn configurations(&self) -> &[Configuration];

    /// What makes no sense is found before anything is asked.
    fn check(&self) -> Result<()>;

    /// What keeps decisions.
    async fn log(&self) -> Result<Self::Log>;

    /// Looks for the first time.
    async fn observer(&self) -> Result<Self::Observer>;

    /// The rolls that were begun, by a controller or by hand.
    async fn rolls(&self) -> Result<Vec<Record>>;

    /// How long the nodes of a roll took.
    fn took(roll: &Record) -> Vec<Took>;

    /// Goes on with a roll.
    async fn resume(
        &self,
        roll: &JobId,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<()>;

    /// What it has at present; the error says in what it differs from each configuration.
    async fn present(&self) -> Result<Present>;

    /// Brings it from one configuration to another, while it serves.
    async fn change(
        &self,
        numbers: (usize, usize),
        is_undoing: bool,
        process: &str,
        events: &Events,
        cancel: CancellationToken,
    ) -> Result<Rolled>;
}

/// Says in how many nodes a cluster differs from each configuration.
#[derive(Debug, Default)]
pub(crate) struct Differences(Vec<String>);

impl Differences {
    /// Adds a configuration that it does not have.
    pub(crate) fn add(&mut self, name: &str, nodes: usize, more: &str) {
        self.0.push(format!("{name} differs on {nodes} nodes{more}"));
    }

    /// The error if it has none of them.
    pub(crate) fn none(self) -> Error {
        Error::precondition(
            format!("the cluster has none of the configurations: {}", self.0.join("; ")),
            "roll one of them out (`imago tune roll`), or add the present one to the file and measure it",
        )
    }
}

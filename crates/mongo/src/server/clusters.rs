//! The two clusters of a job.

use super::endpoint::Endpoint;

/// The connections to both clusters that a process needs to work at a copy.
#[derive(Clone)]
pub struct Clusters {
    /// The cluster from which documents are read.
    pub source: Endpoint,
    /// The cluster to which the documents are written, and which holds the job's state.
    pub destination: Endpoint,
}

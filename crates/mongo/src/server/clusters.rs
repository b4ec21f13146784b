//! The two clusters of a job.

use super::endpoint::Endpoint;

/// The connections to both clusters that a process needs to work at a copy.
#[derive(Clone)]
pub struct Clusters {
    /// The cluster whose documents are read.
    pub source: Endpoint,
    /// The cluster to which they are written, and which holds the job's state.
    pub destination: Endpoint,
}

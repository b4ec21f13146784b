//! The two clusters of a job.

use super::endpoint::Endpoint;

/// The connections that a process needs to work at a copy.
#[derive(Clone)]
pub struct Clusters {
    /// The cluster whose documents are read.
    pub source: Endpoint,
    /// The cluster that they are written to, and that keeps the job's state.
    pub destination: Endpoint,
}

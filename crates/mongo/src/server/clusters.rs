//! The two clusters of a job.

use super::endpoint::Endpoint;

/// The connections that a process needs to work at a copy.
#[derive(Clone)]
pub struct Clusters {
    /// Where documents are read.
    pub source: Endpoint,
    /// Where they are written, and where the job's state is.
    pub destination: Endpoint,
}

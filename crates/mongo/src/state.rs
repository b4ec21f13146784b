//! The state of jobs, kept in a cluster.

pub mod journal;
pub mod leases;

//! The persisted state of jobs, in the destination cluster.

pub mod journal;
pub mod leases;

//! The persisted state of jobs in the destination cluster: records, slices, leases and horizons.

pub mod journal;
pub mod leases;

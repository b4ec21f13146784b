//! Decisions as pure functions.
//!
//! This crate must not know async, input or output, clocks, random numbers that were not passed in,
//! or any database. Time, samples and keys are parameters, so every decision can be replayed, and
//! tests compare each algorithm with a brute-force oracle.

pub mod apportion;
pub mod backoff;
pub mod batch_size;
pub mod bucket;
pub mod cuts;
pub mod design;
pub mod drain;
pub mod flow;
pub mod geo;
pub mod heat;
pub mod hungarian;
pub mod netsim;
pub mod pace;
pub mod pending_changes;
pub mod placement;
pub mod provision;
pub mod queueing;
pub mod replicas;
pub mod reuse;
pub mod rounds;
pub mod slice_picker;
pub mod tune;
pub mod write_block;

//! Decisions as pure functions.
//!
//! This crate must not know async, input or output, clocks, random numbers that were not passed in,
//! or any database. Time, samples and keys are parameters, so every decision can be replayed, and
//! tests compare each algorithm with a brute-force oracle.
//!
//! One module for each published system, [`shard_key`] for the choice of a key, and [`pacing`] and [`statistics`], which
//! several of them use.

pub mod copy;
pub mod pacing;
pub mod provision;
pub mod reshard;
pub mod shard_key;
pub mod statistics;
pub mod store;
pub mod tune;

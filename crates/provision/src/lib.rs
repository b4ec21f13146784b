//! How many shards, replicas and how much cache a chained job needs: from the keys that it reads, and what a request
//! costs each server, before anything is bought (Wong and others, *Database Caching and Sharding Strategies in Chained MR
//! Jobs*).
//!
//! A chain of MapReduce jobs reads in bursts: each reduce yields the keys that the next map fetches. What such a job reads
//! is a *trace*, what a request costs a *probe*; `imago_plan::provision` has the decision.
//!
//! This crate must not know: the command line, and how servers are started.

pub mod advice;
pub mod chain;
pub mod probe;
pub mod record;
pub mod trace;
pub mod utc;
pub mod wire;

//! Sizing of a cluster for a chained job: how many shards and replicas, and how much cache, the job needs. The inputs
//! are the keys that the job reads and the cost of a request at each server, both measured before hardware is bought
//! (Wong and others, *Database Caching and Sharding Strategies in Chained MR Jobs*).
//!
//! A chain of MapReduce jobs reads in bursts: each reduce yields the keys that the next map fetches. The list of a
//! job's reads is a *trace*; a measurement of the cost of a request is a *probe*. `imago_plan::provision` computes the
//! decision.
//!
//! This crate must not know the command line, nor the way in which servers are started.

pub mod advice;
pub mod chain;
pub mod probe;
pub mod record;
pub mod trace;
pub mod utc;
pub mod wire;

/// Attribute that boxes the future of an async function which other crates call, so that its body is compiled here,
/// once, and not in each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

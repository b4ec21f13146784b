//! Tuning of database clusters (SOPHIA): advises when to change a cluster's configuration, and to which one, from the
//! past workload and from measurements of the configurations.
//!
//! A [`trace`] has the operations that clients requested, and [`measurements`] have the throughput of each
//! configuration for them; [`advice`] combines both by the algorithms of `imago_plan::tune`. A [`tuner`] does the same
//! online, interval by interval, for a cluster that [`controller`] observes and changes.
//!
//! This crate must not know the command line, nor how servers are started.

pub mod advice;
pub mod cassandra;
pub mod cluster;
pub mod configurations;
pub mod controller;
pub mod decision_inputs;
pub mod decisions;
pub mod design;
pub mod dimensions;
pub mod error;
pub mod import;
pub mod lines;
pub mod measurements;
pub mod optima;
pub mod redis;
mod table;
pub mod trace;
pub mod transition_costs;
pub mod tuner;

/// Boxes the future of an async function that other crates call, so that its body is compiled here, once, and not in
/// each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

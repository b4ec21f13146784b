//! Loads of clients, one module for each database, the checks of their histories, and the measurement of configurations
//! under them. `imago load`, `imago tune sample`, the demos and the benchmarks use them.
//!
//! This crate must not know flags, terminals, or how servers are started.

pub mod cassandra;
pub mod mongo;
pub mod redis;
pub mod sample;
mod schema;
pub mod store;

pub use schema::Schema;

/// Attribute that boxes the future of an async function which other crates call, so that its body is compiled here,
/// once, and not in each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

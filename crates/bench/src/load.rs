//! Loads of clients, one module for each database, and the checks of their histories. `imago load`, the demos and the
//! benchmarks use them.

pub mod cassandra;
pub mod mongo;
pub mod redis;
pub mod store;

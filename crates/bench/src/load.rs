//! Loads of clients, one for each database: what `imago load`, the demos and the benchmarks run, and what checks
//! their histories.

pub mod cassandra;
pub mod mongo;
pub mod redis;
pub mod store;

//! The verbs of the command line: one module each, with `Args` (its arguments) and `run` (its implementation).

#[cfg(feature = "bench")]
pub mod bench;
mod cassandra_nodes;
pub mod chain;
pub mod completions;
pub mod copy;
pub mod cutover;
pub mod demo;
pub mod foresight;
pub mod job;
pub mod limit;
pub mod load;
pub mod man;
mod process;
pub mod provision;
pub mod repair;
pub mod reshard;
mod secret;
mod speed;
pub mod store;
pub mod testbed;
pub mod tune;
pub mod verify;
#[cfg(not(feature = "bench"))]
pub mod without_bench;

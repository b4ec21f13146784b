//! Copying, verifying, repairing and switching over live MongoDB collections.
//!
//! What this crate must not know: who starts it and how it is shown. It reports through
//! `imago_job` events and returns typed errors.

pub mod block;
pub mod changes;
pub mod collection;
pub mod converge;
pub mod copy;
pub mod cutover;
mod cutting;
pub mod endpoint;
pub mod error;
pub mod ext_json;
pub mod journal;
pub mod lead;
pub mod leases;
pub mod load;
pub mod monitor;
pub mod namespace;
pub mod order;
pub mod pace;
pub mod preflight;
mod prepare;
pub mod repair;
pub mod reshard;
pub mod route;
pub mod shard;
pub mod snapshot;
mod structure;
pub mod verify;
mod write;

/// The database at the destination that keeps the state of jobs.
pub const STATE_DB: &str = "imago";

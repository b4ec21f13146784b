//! Copies, verifies, repairs, reshards and cuts over live MongoDB collections.
//!
//! The folders are layers; imports point downwards only: `reshard` above `copy`, `verify`, `replicate`, `state`,
//! `server` and `bson`, in this order.
//!
//! This crate must not know its caller or any terminal. It reports through `imago_job` events and returns typed
//! errors.

pub mod bson;
pub mod copy;
pub mod error;
pub mod namespace;
pub mod replicate;
pub mod reshard;
pub mod server;
pub mod state;
pub mod verify;

/// Boxes the future of an async function that other crates call. Its body is then compiled once, in this crate,
/// rather than in each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

/// Name of the database at the destination that contains the persisted state of jobs.
pub const STATE_DB: &str = "imago";

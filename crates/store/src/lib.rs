//! The adaptive store: rows in partitions, each with one master site and any number of replicas. The
//! assignment of partitions to sites (the design) changes while the store serves (Abebe et al., *MorphoSys*,
//! PVLDB 13, 2020).
//!
//! This crate must not know MongoDB, Cassandra and Redis servers, its caller, or any terminal. Its core reads
//! no clock and does no input or output: sites and routers receive events and return actions, so the same
//! code runs in one process, in many, and in a simulation that replays every fault from a seed.

pub mod adapt;
pub mod admin;
pub mod checkpoint;
pub mod client;
pub mod design;
pub mod engine;
#[cfg(test)]
mod fuzz;
pub mod kafka;
pub mod key;
pub mod log;
pub mod output_buffer;
pub mod record;
pub mod reply;
pub mod resp;
pub mod router;
pub mod rows;
pub mod sampler;
pub mod sequencer;
pub mod site;
pub mod subscription;
#[cfg(feature = "shuttle")]
pub mod sync;
#[cfg(not(feature = "shuttle"))]
mod sync;
pub mod transaction;

//! Real servers, started, inject and stopped, and the stand-in router before real shards.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod auth;
mod cassandra;
mod kafka;
mod nothing_stays;
mod pool;
mod redis;
mod redis_cluster;
mod replica_set;
mod router;
mod sharded;

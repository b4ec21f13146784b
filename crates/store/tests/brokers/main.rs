//! A store and its log on a real Kafka.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod kafka;
mod secured;
mod topic;

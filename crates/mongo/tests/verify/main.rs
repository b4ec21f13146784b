//! The order of `_id`s, `verify` and `repair` against real servers.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod differences;
mod disturbed;
mod modes;
mod order;
mod privileges;
mod repair;
mod sharded;
mod structure;
mod world;

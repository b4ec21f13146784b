//! The order of `_id`s, `verify` and `repair` against real servers.

mod differences;
mod modes;
mod order;
mod repair;
mod structure;
mod world;

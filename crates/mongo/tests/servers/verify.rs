//! The order of `_id`s, `verify` and `repair` against real servers.
mod differences;
mod disturbed;
mod modes;
mod order;
mod privileges;
mod repair;
mod sharded;
mod structure;
mod world;

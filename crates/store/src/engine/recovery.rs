//! The start of a store: its log, checkpoints, and the database as of these.

pub(in crate::engine) mod checkpointer;
pub(in crate::engine) mod log_options;

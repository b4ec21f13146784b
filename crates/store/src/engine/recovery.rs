//! What a store begins with: its log, checkpoints, and the database as of these.

pub(in crate::engine) mod checkpointer;
pub(in crate::engine) mod log_options;

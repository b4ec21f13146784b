//! Recovery at the start of a store: its log, its checkpoints, and the database that they contain.

pub(in crate::engine) mod checkpointer;
pub(in crate::engine) mod holds;
pub(in crate::engine) mod log_options;

//! The thread of a site, its mailbox, and its epochs.

pub(crate) mod epoch;
pub(in crate::engine) mod executor;
pub(in crate::engine) mod mailbox;
pub(in crate::engine) mod program;
pub(in crate::engine) mod sampling;

//! Copying, verifying, repairing and switching over live MongoDB collections.
//!
//! What this crate must not know: who starts it and how it is shown. It reports through
//! `imago_job` events and returns typed errors.

pub mod ext_json;
pub mod order;

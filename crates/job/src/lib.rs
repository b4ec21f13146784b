//! The life of a long operation: phases, events, control, and persisted state.
//!
//! What this crate must not know: what the operation does. It carries phases, numbers and words
//! that the operation chose, and never looks into them.

//! Plans of real sharded collections: what they weigh, what they would move, what they find in the
//! way; and that planning writes nothing.

#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod findings;
mod now;
mod weights;
mod world;

//! Plans of real sharded collections: what they weigh, what they would move, what they find in the
//! way; and that planning writes nothing.

mod findings;
mod now;
mod weights;
mod world;

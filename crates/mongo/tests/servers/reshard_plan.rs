//! Plans of real sharded collections: their weights, their movement, their findings; and that
//! planning writes nothing.

mod findings;
mod now;
mod weights;
mod world;

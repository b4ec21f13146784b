//! Operations on one server or cluster: connections, collections, writes, shards, and write blocks.

pub mod block;
pub mod clusters;
pub mod collection;
pub mod endpoint;
pub(crate) mod privileges;
pub mod retention;
pub mod shard;
pub mod shard_key;
pub(crate) mod structure;
pub(crate) mod timing;
pub(crate) mod write;

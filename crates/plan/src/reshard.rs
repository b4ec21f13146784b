//! The decisions of a reshard, a change of a collection's shard key, chunks or shards (Morphus): the server of each
//! new chunk, the connections between servers, the members that take part, and the duration of the write block.

pub mod apportion;
pub mod flow;
pub mod geo;
pub mod hungarian;
pub mod placement;
pub mod write_block;

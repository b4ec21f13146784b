//! What a change of shape decides (Morphus): the server of each new chunk, the connections between servers, the members
//! that take part, and the duration of the write block.

pub mod apportion;
pub mod flow;
pub mod geo;
pub mod hungarian;
pub mod placement;
pub mod write_block;

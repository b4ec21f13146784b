//! The decisions of a live copy (Hydra): which changes may be applied when, how a collection is cut into slices, and
//! which slice a worker copies next.

pub mod pending_changes;
pub mod slice_picker;
pub mod split_points;

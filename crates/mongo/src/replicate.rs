//! From one cluster to another: the bulk is read, changes are followed and applied.

pub mod apply;
pub mod bulk_reader;
pub mod changes;
pub mod coordinator;
pub mod monitor;
pub mod pace;
pub mod route;
pub(crate) mod split_points;

//! Replication from one cluster to another: reads the bulk, follows the changes, and applies them.

pub mod apply;
pub mod bulk_reader;
pub mod changes;
pub mod coordinator;
pub(crate) mod duplicate_ids;
pub mod monitor;
pub mod pace;
pub mod pair;
pub mod route;
pub(crate) mod split_points;

//! Apache Cassandra: how its nodes are reached, asked, and changed.

pub mod classes;
pub mod cluster_file;
pub mod compaction;
pub mod configurations;
pub mod connection;
pub mod controller;
pub mod costs;
pub mod decisions;
pub mod design;
pub mod dimensions;
pub mod error;
pub mod journal;
pub mod knobs;
mod node;
pub mod observe;
pub mod optima;
pub mod ring;
pub mod roll;
pub mod settings_file;
pub mod uri;

pub use error::{Error, Result};
pub use scylla::statement::Consistency;
pub use uri::Uri;

//! Apache Cassandra: how its nodes are reached, asked, and changed.

pub mod connection;
pub mod error;
pub mod knobs;
pub mod settings_file;
pub mod uri;

pub use error::{Error, Result};
pub use scylla::statement::Consistency;
pub use uri::Uri;

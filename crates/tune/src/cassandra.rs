//! Apache Cassandra: connections to its nodes, its settings and statistics, and changes of its configuration.

pub mod background;
pub mod compaction;
pub mod connection;
pub mod costs;
pub mod decisions;
pub mod error;
pub mod journal;
mod jvm_options;
pub mod knobs;
mod nodetool;
pub mod observe;
mod obstacles;
pub mod ring;
pub mod roll;
pub mod settings_file;
pub mod tuned;
mod yaml;

pub use error::{Error, Result};
pub use scylla::statement::Consistency;

use crate::cluster::{self, Database, Setting, Settings};

/// The database Apache Cassandra, as a type parameter of clusters and settings.
#[derive(Clone, Copy, Debug)]
pub enum Cassandra {}

impl Database for Cassandra {
    const NAME: &'static str = "cassandra";
    const SCHEME: &'static str = "cassandra://";
    const PORT: u16 = 9042;
    const PATH: &'static str = "/";
    const HAS_NODETOOL: bool = true;
}

impl Settings for Cassandra {
    const HAS_COMPACTION: bool = true;

    fn all() -> Vec<Setting> {
        knobs::KNOBS.iter().map(knobs::Knob::setting).collect()
    }
}

/// Connection string of a Cassandra cluster.
pub type Uri = cluster::Uri<Cassandra>;
/// Cluster file of a Cassandra cluster: how its nodes are reached.
pub type ClusterFile = cluster::ClusterFile<Cassandra>;

//! Redis: connections to its servers, its settings and statistics, and changes of its configuration.

pub mod background;
pub mod connection;
pub mod decisions;
pub mod fit;
mod histogram;
pub mod knobs;
mod lock;
pub mod observe;
pub mod replication;
pub mod roll;
mod settings_file;
mod snapshot;
mod start;
pub mod topology;
pub mod tuned;

use crate::cluster::{self, Database, Setting, Settings};

/// The database Redis (a single server or a Redis Cluster), as a type parameter of clusters and settings.
#[derive(Clone, Copy, Debug)]
pub enum Redis {}

impl Database for Redis {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "redis://";
    const PORT: u16 = 6379;
    const PATH: &'static str = "/0";
    const HAS_NODETOOL: bool = false;
}

impl Settings for Redis {
    const HAS_COMPACTION: bool = false;

    fn all() -> Vec<Setting> {
        knobs::KNOBS.iter().map(knobs::Knob::setting).collect()
    }
}

/// Connection string of a Redis server or of a Redis Cluster.
pub type Uri = cluster::Uri<Redis>;
/// Cluster file of Redis: how its servers are reached.
pub type ClusterFile = cluster::ClusterFile<Redis>;

//! Redis: how its servers are reached, asked, and changed.

pub mod connection;
pub mod decisions;
pub mod fit;
mod histogram;
pub mod knobs;
mod lock;
mod look;
pub mod observe;
pub mod replication;
pub mod roll;
mod settings_file;
pub mod topology;
pub mod tuned;

use crate::cluster::{self, Database, Setting, Settings};

/// Redis, one server or a Redis Cluster.
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

/// A connection string.
pub type Uri = cluster::Uri<Redis>;
/// How the nodes of a cluster are reached.
pub type ClusterFile = cluster::ClusterFile<Redis>;

//! Clusters of any supported database: access to their nodes, their settings, jobs that change them, and errors.

pub mod compaction;
pub mod costs;
pub mod error;
pub mod file;
pub mod job;
pub mod node;
pub mod observation;
pub(crate) mod roll;
mod roll_time;
pub mod setting;
pub mod uri;
pub mod values;

pub use error::{Error, Result};
pub use file::{ClusterFile, NodeAccess};
pub use setting::{Setting, Settings};
pub use uri::Uri;

use serde::Serialize;

/// A supported database, with the format of its connection strings and cluster files.
pub trait Database {
    /// Name of the database in the field `database` of a cluster file.
    const NAME: &'static str;
    /// Prefix of the database's connection strings, such as `redis://`.
    const SCHEME: &'static str;
    /// Port of a node whose connection string names none.
    const PORT: u16;
    /// Optional suffix of the database's connection strings, after the hosts.
    const PATH: &'static str;
    /// True if a cluster file of this database has to name a `nodetool` (Cassandra's administration tool).
    const HAS_NODETOOL: bool;
}

/// A change of the value that one setting has on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueChange {
    /// Name of the setting whose value changes.
    pub setting: String,
    /// Value before the change, in the node's file (Cassandra) or in the running server (Redis); None: the default
    /// applies.
    pub from: Option<String>,
    /// Value after the change; None: the default applies.
    pub to: Option<String>,
    /// Name of the cost class of the change: `live` or `restart`.
    pub class: &'static str,
}

//! Clusters of any supported database: access to their nodes, their settings, and errors.

pub mod compaction;
pub mod costs;
pub mod error;
pub mod file;
pub mod job;
pub mod node;
pub mod observation;
pub mod setting;
pub mod uri;
pub mod values;

pub use error::{Error, Result};
pub use file::{ClusterFile, NodeAccess};
pub use setting::{Setting, Settings};
pub use uri::Uri;

use serde::Serialize;

/// A supported database: the format of its connection strings and cluster files.
pub trait Database {
    /// Name of the database in a cluster file.
    const NAME: &'static str;
    /// Prefix of its connection strings.
    const SCHEME: &'static str;
    /// Default port of a node.
    const PORT: u16;
    /// Optional suffix of a connection string, after the hosts.
    const PATH: &'static str;
    /// True if a cluster file has to name a `nodetool`.
    const HAS_NODETOOL: bool;
}

/// A change of one setting on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueChange {
    /// Name of the setting.
    pub setting: String,
    /// Present value in the node's file; None: the default.
    pub from: Option<String>,
    /// New value; None: the default.
    pub to: Option<String>,
    /// Cost class: `live` or `restart`.
    pub class: &'static str,
}

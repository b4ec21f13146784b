//! Clusters of any database: how their nodes are named and reached, and what can go wrong with them.

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

/// A database whose clusters are tuned: what its connection strings and cluster files are like.
pub trait Database {
    /// Its name in a cluster file.
    const NAME: &'static str;
    /// What its connection strings begin with.
    const SCHEME: &'static str;
    /// The port of a node unless it is named.
    const PORT: u16;
    /// What may stand behind the hosts of a connection string.
    const PATH: &'static str;
    /// True if a cluster file has to name a `nodetool`.
    const HAS_NODETOOL: bool;
}

/// A setting of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueChange {
    /// Its name.
    pub setting: String,
    /// The value in the file; nothing: the default.
    pub from: Option<String>,
    /// The new value; nothing: the default.
    pub to: Option<String>,
    /// `live` or `restart`.
    pub class: &'static str,
}

//! Specification of a MongoDB cluster, and the description of nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::certificates::Certificates;
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::process::ProcessId;

/// Specification of a MongoDB cluster: a replica set, or shards with a config server and a router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    /// Name of the cluster, which prefixes the names of replica sets and nodes: 1 to 32 lower-case letters, digits
    /// and `-`, beginning with a letter.
    pub name: String,
    /// Number of shards; `None` for a replica set alone.
    pub shards: Option<u32>,
    /// Number of members of the replica set, or of each shard.
    pub members: u32,
    /// True for a cluster with authorization: a key file, an administrator, and an application user that is not root.
    pub auth: bool,
    /// Size of the storage engine's cache of each member, in MiB, at least 256.
    pub cache_mb: u32,
    /// Size to which each member's oplog is truncated within seconds, in MiB; `None` for the server's default.
    pub oplog_mb: Option<u32>,
    /// Time without a reply from the primary after which members elect another one, in ms.
    pub election_timeout_ms: u32,
    /// Further server parameters (`--setParameter`) of each member, as name and value.
    pub parameters: Vec<(String, String)>,
    /// Folder in which the cluster's folder for data and logs is created; `None` for the system's temporary folder.
    pub folder: Option<PathBuf>,
    /// CPU limit of each member that is not a config server, in percent of one processor; `None` for no limit.
    pub cpu_percent: Option<u16>,
    /// True if the servers have a low scheduling priority: other busy processes get ten times as much CPU time.
    pub yields_cpu: bool,
    /// Certificates with which members offer TLS, besides connections without TLS; `None` for no TLS.
    pub tls: Option<Certificates>,
}

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            name: "testbed".into(),
            shards: None,
            members: 1,
            auth: false,
            cache_mb: 256,
            oplog_mb: None,
            election_timeout_ms: 3_000,
            parameters: Vec::new(),
            folder: None,
            cpu_percent: None,
            yields_cpu: false,
            tls: None,
        }
    }
}

impl ClusterSpec {
    /// Returns the specification of a replica set of `members` members.
    #[must_use]
    pub fn replica_set(name: &str, members: u32) -> Self {
        Self { name: name.into(), members, ..Self::default() }
    }

    /// Returns the specification of a sharded cluster of `shards` shards, each a replica set of one member.
    #[must_use]
    pub fn sharded(name: &str, shards: u32) -> Self {
        Self { name: name.into(), shards: Some(shards), ..Self::default() }
    }

    /// Returns this specification with authorization: a key file, an administrator and an application user.
    #[must_use]
    pub fn with_auth(self) -> Self {
        Self { auth: true, ..self }
    }

    /// Returns this specification with the further server parameter `name` (`--setParameter`) on each member.
    #[must_use]
    pub fn with_parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// Checks that a cluster can be started from this specification. The error names the value to change.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Spec(what));
        if !valid_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        if !(1..=7).contains(&self.members) {
            return bad(format!("{} members: a replica set votes with 1 to 7", self.members));
        }
        if let Some(shards) = self.shards.filter(|shards| !(1..=32).contains(shards)) {
            return bad(format!("{shards} shards: it must be 1 to 32 on one machine"));
        }
        if self.cache_mb < 256 {
            return bad(format!("a cache of {} MB: mongod takes at least 256", self.cache_mb));
        }
        if let Some(wrong) = CpuShare::limit_error(self.cpu_percent) {
            return bad(wrong);
        }
        Ok(())
    }
}

/// Returns true if `name` is valid for a testbed: 1 to 32 lower-case letters, digits and `-`, beginning with a
/// letter. It is used in names of files, folders and replica sets.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

/// Role of a node in its testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A member of a replica set with data (a shard, or a replica set without shards).
    Member,
    /// A member of the config server's replica set.
    Config,
    /// The router of a sharded cluster.
    Router,
    /// The only server of a testbed (Redis or Kafka).
    Alone,
    /// A node of a Cassandra or Redis Cluster.
    Node,
}

/// Description of a node of a testbed, and its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Name of the node: `SET-INDEX` for a member of a replica set, `NAME-router`, `NAME-0` for a single server,
    /// `NAME-NUMBER` from 1 for a node of Cassandra or a Redis Cluster.
    pub name: String,
    /// Name of the node's replica set; empty if the node belongs to none.
    pub set: String,
    /// Role of the node in its testbed.
    pub role: Role,
    /// Address on which the node accepts clients.
    #[serde(default = "loopback")]
    pub host: IpAddr,
    /// Port on which the node accepts clients.
    pub port: u16,
    /// Identity of the node's process; `None` while the node is down.
    pub process: Option<ProcessId>,
    /// Path of the node's log file; `None` for the stand-in router, which is a part of the testbed's process.
    pub log: Option<PathBuf>,
}

/// Returns 127.0.0.1, the address of nodes in entries that were written before nodes could have other addresses.
fn loopback() -> IpAddr {
    Ipv4Addr::LOCALHOST.into()
}

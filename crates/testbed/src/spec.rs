//! The specification of a cluster, and its nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::process::ProcessId;

/// The specification of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    /// The cluster's name; replica sets and nodes are named after it. Lower-case letters, digits
    /// and `-`, at most 32, beginning with a letter.
    pub name: String,
    /// The number of shards; `None` for a replica set alone.
    pub shards: Option<u32>,
    /// Members of the replica set, or of each shard.
    pub members: u32,
    /// With a key file, an administrator, and an application user that is not root.
    pub auth: bool,
    /// The storage engine's cache of each member, in MiB.
    pub cache_mb: u32,
    /// The oplog's size in MiB, kept within seconds; `None` leaves it to the server.
    pub oplog_mb: Option<u32>,
    /// Time for which members wait for a silent primary before they elect another, in milliseconds.
    pub election_timeout_ms: u32,
    /// Further server parameters (`--setParameter`) of each member, as name and value.
    pub parameters: Vec<(String, String)>,
    /// The folder below which data and logs are put; the system's temporary folder if `None`.
    pub folder: Option<PathBuf>,
    /// Share of one processor that each member with data may use, in percent; `None` for as much as it gets.
    pub cpu_percent: Option<u16>,
    /// True if its servers take only the processor time that others on the machine leave.
    pub yields_cpu: bool,
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
        }
    }
}

impl ClusterSpec {
    /// A replica set of `members`.
    #[must_use]
    pub fn replica_set(name: &str, members: u32) -> Self {
        Self { name: name.into(), members, ..Self::default() }
    }

    /// A sharded cluster of `shards`, each a replica set of one member.
    #[must_use]
    pub fn sharded(name: &str, shards: u32) -> Self {
        Self { name: name.into(), shards: Some(shards), ..Self::default() }
    }

    /// The same with authorisation.
    #[must_use]
    pub fn with_auth(self) -> Self {
        Self { auth: true, ..self }
    }

    /// The same with a server parameter set on each member.
    #[must_use]
    pub fn with_parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// Checks that such a cluster can be built; the error says what to change.
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
        if let Some(wrong) = CpuShare::wrong(self.cpu_percent) {
            return bad(wrong);
        }
        Ok(())
    }
}

/// True if a cluster may have this name: it becomes a file's, a folder's and a replica set's.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

/// The role of a node in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A member that holds data.
    Member,
    /// A member of the config server's replica set.
    Config,
    /// A router.
    Router,
    /// A server that stands alone.
    Alone,
    /// A node among equals.
    Node,
}

/// One node, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name: `SET-INDEX`, or `NAME-router`; `NAME-0` if it stands alone.
    pub name: String,
    /// The replica set that it belongs to; empty for one that belongs to none.
    pub set: String,
    /// Its role.
    pub role: Role,
    /// The address that it listens on.
    #[serde(default = "loopback")]
    pub host: IpAddr,
    /// The port there.
    pub port: u16,
    /// Its process; `None` while it is down.
    pub process: Option<ProcessId>,
    /// Its log file; `None` for the stand-in router, which is a part of the testbed's process.
    pub log: Option<PathBuf>,
}

/// The address of nodes that were noted before others had another one.
fn loopback() -> IpAddr {
    Ipv4Addr::LOCALHOST.into()
}

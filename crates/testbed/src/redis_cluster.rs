//! A Redis Cluster: masters that share the hash slots, and replicas of each; every node has its own loopback address.

mod forming;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::binary;
use crate::cluster::{NodeInfo, valid_name};
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::port::SharedPorts;
use crate::program::Program;
use crate::redis::{CONFIGURATION, Redis, RedisNode};
use crate::scratch::Scratch;
use crate::server::{Launch, Server};
use crate::servers::Servers;
use crate::single::{Engine, SingleSpec};

pub(crate) use forming::state_of;

/// Specification of a Redis Cluster of a testbed: size and limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisClusterSpec {
    /// Name of the testbed, which prefixes the names of its nodes.
    pub name: String,
    /// Number of masters, at least 3.
    pub masters: u8,
    /// Number of replicas of each master.
    pub replicas: u8,
    /// Limit of each node's memory for data (`maxmemory`), in MiB.
    pub memory_mb: u32,
    /// CPU limit of each node, in percent of one processor; `None` for no limit.
    pub cpu_percent: Option<u16>,
    /// Folder in which the cluster's folder for data and logs is created; `None` for the system's temporary folder.
    pub folder: Option<PathBuf>,
}

impl RedisClusterSpec {
    /// Least number of masters: with fewer no majority remains to agree on a fail-over.
    const MASTERS_MIN: u8 = 3;
    /// Limit of the number of nodes of one cluster, all on this machine.
    const NODES_MAX: u32 = 32;

    /// Returns the specification of a cluster of `masters` masters, each with one replica.
    #[must_use]
    pub fn new(name: &str, masters: u8) -> Self {
        let (name, memory_mb) = (name.into(), SingleSpec::MEMORY_MB);
        Self { name, masters, replicas: 1, memory_mb, cpu_percent: None, folder: None }
    }

    /// Checks that a cluster can be started from this specification. The error names the value to change.
    pub fn check(&self) -> Result<()> {
        if !valid_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        let (masters, least) = (self.masters, Self::MASTERS_MIN);
        let memory_mb_min = Engine::Redis.memory_mb_min();
        let wrong = if masters < least {
            format!("{masters} masters: a Redis Cluster takes at least {least}")
        } else if self.nodes() > Self::NODES_MAX {
            format!("{} nodes: it must be {} at most on one machine", self.nodes(), Self::NODES_MAX)
        } else if self.memory_mb < memory_mb_min {
            format!("{} MB for redis: it takes at least {memory_mb_min}", self.memory_mb)
        } else if let Some(wrong) = CpuShare::limit_error(self.cpu_percent) {
            wrong
        } else {
            return Ok(());
        };
        Err(Error::Spec(wrong))
    }

    fn nodes(&self) -> u32 {
        u32::from(self.masters) * (1 + u32::from(self.replicas))
    }
}

/// A running Redis Cluster; dropping it kills its nodes and removes their data.
#[derive(Debug)]
pub struct RedisCluster {
    // Fields drop in this order: the nodes, then the folder with their data.
    nodes: Servers,
    spec: RedisClusterSpec,
    scratch: Scratch,
    unshared: Option<String>,
}

impl RedisCluster {
    /// Starts the nodes, forms a cluster of them, and waits until each node reports that the cluster is healthy and
    /// every replica is in sync with its master. The first nodes are the masters; the others are assigned as
    /// replicas to the masters in turn.
    pub async fn start(spec: RedisClusterSpec) -> Result<Self> {
        spec.check()?;
        let path = binary::find_redis()?;
        let scratch = Scratch::new(&spec.name, spec.folder.as_deref())?;
        let ports = Arc::new(SharedPorts::reserve()?);
        let (mut nodes, mut addresses, mut unshared) = (Vec::new(), Vec::new(), None);
        for number in 1..=spec.nodes() {
            let host = u8::try_from(number).expect("a checked specification has few nodes");
            let node = RedisNode { host: ports.host(host), ports: Arc::clone(&ports) };
            let name = format!("{}-{number}", spec.name);
            let share = CpuShare::if_requested(&name, spec.cpu_percent, &mut unshared);
            let (path, memory_mb) = (path.clone(), spec.memory_mb);
            let redis = Redis { path, memory_mb, node: Some(node), share };
            let launch = Launch { name, program: Program::Redis(redis) };
            let node = Server::start(launch, scratch.path()).await?;
            addresses.push(node.socket());
            nodes.push(node);
        }
        forming::form(&addresses, ports.peers.number(), usize::from(spec.masters)).await?;
        let nodes = Servers::new(&spec.name, nodes);
        Ok(Self { nodes, spec, scratch, unshared })
    }

    /// Returns the specification of the cluster.
    #[must_use]
    pub fn spec(&self) -> &RedisClusterSpec {
        &self.spec
    }

    /// Returns the connection string of all nodes, `redis://host:port,host:port`.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("redis://{}", self.nodes.addresses())
    }

    /// Returns the reason why CPU limits were requested but are unavailable; `None` if they are in force or were not
    /// requested.
    #[must_use]
    pub fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    /// Returns name, address and process of every node, running or not.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.nodes.infos()
    }

    /// Returns the folder of this cluster, which contains data, configuration and logs of its nodes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the nodes, for fault injection.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.nodes
    }

    /// Makes a replica of the master named `node` take over from it, and returns the replica's name.
    pub(crate) async fn step_down(&self, node: &str) -> Result<String> {
        let address = self.nodes.named(node)?.socket();
        let new = forming::fail_over(node, address).await?;
        let is_new = |node: &&NodeInfo| SocketAddr::from((node.host, node.port)) == new;
        let known = self.nodes().iter().find(is_new).map(|node| node.name.clone());
        Ok(known.unwrap_or_else(|| new.to_string()))
    }
}

/// Returns the path of the configuration file of the Redis server named `node`; `folder` is its testbed's folder.
/// `CONFIG REWRITE` changes the file.
#[must_use]
pub fn redis_configuration_of(folder: &Path, node: &str) -> PathBuf {
    folder.join(node).with_extension("conf").join(CONFIGURATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_started_is_said_before_anything_is() {
        let spec = |masters, replicas, memory_mb| RedisClusterSpec {
            replicas,
            memory_mb,
            ..RedisClusterSpec::new("slots", masters)
        };
        for (spec, named) in [
            (spec(2, 1, 64), "2 masters"),
            (spec(17, 1, 64), "34 nodes"),
            (spec(3, 255, 64), "768 nodes"),
            (spec(3, 1, 4), "4 MB"),
            (RedisClusterSpec { cpu_percent: Some(5), ..spec(3, 1, 8) }, "5 % of a processor"),
        ] {
            assert!(spec.check().unwrap_err().to_string().contains(named), "{named}");
        }
        assert!(spec(3, 0, 8).check().is_ok());
        assert!(spec(16, 1, 8).check().is_ok());
    }
}

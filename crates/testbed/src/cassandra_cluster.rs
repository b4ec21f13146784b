//! A Cassandra cluster: equal nodes, each with its own loopback address.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::binary;
use crate::cassandra::Cassandra;
use crate::cluster::{NodeInfo, valid_name};
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::port::{Port, SharedPorts};
use crate::program::Program;
use crate::scratch::Scratch;
use crate::server::{Launch, Server};
use crate::servers::Servers;

/// Specification of a Cassandra cluster of a testbed: size, racks and limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CassandraSpec {
    /// Name of the testbed, which prefixes the names of its nodes.
    pub name: String,
    /// Number of nodes, 1 to 32.
    pub nodes: u8,
    /// Number of racks, at most as many as nodes; the nodes are assigned to the racks in turn.
    pub racks: u8,
    /// Size of each node's Java heap, in MiB.
    pub heap_mb: u32,
    /// CPU limit of each node, in percent of one processor; `None` for no limit.
    pub cpu_percent: Option<u16>,
    /// Folder in which the cluster's folder for data and logs is created; `None` for the system's temporary folder.
    pub folder: Option<PathBuf>,
}

impl CassandraSpec {
    /// Default size of a node's Java heap, in MiB.
    pub const HEAP_MB: u32 = 512;
    /// Least size of a Java heap with which a node works, in MiB.
    const HEAP_MB_MIN: u32 = 256;
    /// Limit of the number of nodes of one cluster, all on this machine.
    const NODES_MAX: u8 = 32;

    /// Returns the specification of a cluster of `nodes` nodes, all in one rack.
    #[must_use]
    pub fn new(name: &str, nodes: u8) -> Self {
        Self {
            name: name.into(),
            nodes,
            racks: 1,
            heap_mb: Self::HEAP_MB,
            cpu_percent: None,
            folder: None,
        }
    }

    /// Checks that a cluster can be started from this specification. The error names the value to change.
    pub fn check(&self) -> Result<()> {
        let Self { nodes, racks, heap_mb, cpu_percent, .. } = *self;
        if !valid_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        let wrong = if !(1..=Self::NODES_MAX).contains(&nodes) {
            format!("{nodes} nodes: it must be 1 to {} on one machine", Self::NODES_MAX)
        } else if !(1..=nodes).contains(&racks) {
            format!("{racks} racks for {nodes} nodes: each rack needs one at least")
        } else if heap_mb < Self::HEAP_MB_MIN {
            format!("a heap of {heap_mb} MB: Cassandra takes at least {}", Self::HEAP_MB_MIN)
        } else if let Some(wrong) = CpuShare::limit_error(cpu_percent) {
            wrong
        } else {
            return Ok(());
        };
        Err(Error::Spec(wrong))
    }
}

/// Limit of the number of attempts to start one node, the first included. Only a node whose process ends while it
/// joins is started again: a node that joins soon after another one sometimes ends.
const JOIN_TRIES: u32 = 3;

/// A running Cassandra cluster; dropping it kills its nodes and removes their data.
#[derive(Debug)]
pub struct CassandraCluster {
    // Fields drop in this order: the nodes, then the folder with their data.
    nodes: Servers,
    spec: CassandraSpec,
    scratch: Scratch,
    unshared: Option<String>,
}

impl CassandraCluster {
    /// Starts the nodes one after the other, as each must know those before it, and waits until all accept clients.
    #[crate::boxed]
    pub async fn start(spec: CassandraSpec) -> Result<Self> {
        spec.check()?;
        let installed = binary::find_cassandra()?;
        let scratch = Scratch::new(&spec.name, spec.folder.as_deref())?;
        let ports = Arc::new(SharedPorts::reserve()?);
        let (mut nodes, mut unshared) = (Vec::new(), None);
        for number in 1..=spec.nodes {
            let name = format!("{}-{number}", spec.name);
            let mut tries = 1;
            nodes.push(loop {
                let node = Cassandra {
                    installed: installed.clone(),
                    cluster: spec.name.clone(),
                    ports: Arc::clone(&ports),
                    host: ports.host(number),
                    seed: ports.host(1),
                    rack: format!("rack{}", (number - 1) % spec.racks + 1),
                    heap_mb: spec.heap_mb,
                    share: CpuShare::if_requested(&name, spec.cpu_percent, &mut unshared),
                    management: Port::reserve()?,
                };
                let launch = Launch { name: name.clone(), program: Program::Cassandra(node) };
                match Server::start(launch, scratch.path()).await {
                    Err(Error::ServerEnded { status, tail, .. }) if number > 1 && tries < JOIN_TRIES => {
                        tracing::warn!("{name} ended with {status} while it joined, and is started anew: {tail}");
                        tries += 1;
                        // The node has no data yet that other nodes do not have.
                        let data = scratch.path().join(&name);
                        let doing = format!("remove the data folder {}", data.display());
                        std::fs::remove_dir_all(&data).map_err(Error::io(doing))?;
                    }
                    started => break started?,
                }
            });
        }
        let nodes = Servers::new(&spec.name, nodes);
        Ok(Self { nodes, spec, scratch, unshared })
    }

    /// Returns the specification of the cluster.
    #[must_use]
    pub fn spec(&self) -> &CassandraSpec {
        &self.spec
    }

    /// Returns the connection string of all nodes, `cassandra://host:port,host:port`.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("cassandra://{}", self.nodes.addresses())
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

    /// Returns the path of the folder with the configuration of the node named `node` and its `nodetool` script;
    /// `folder` is the cluster's folder ([`Self::folder`]).
    #[must_use]
    pub fn configuration_of(folder: &Path, node: &str) -> PathBuf {
        folder.join(node).with_extension("conf")
    }
}

//! A Cassandra cluster: nodes that are equals, each with a loopback address of its own.

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

/// The specification of a Cassandra cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CassandraSpec {
    /// The testbed's name, after which its nodes are named; as that of another cluster.
    pub name: String,
    /// The number of nodes.
    pub nodes: u8,
    /// The number of racks, to which the nodes belong in turn.
    pub racks: u8,
    /// The heap of each node, in MiB.
    pub heap_mb: u32,
    /// What each node may use of the processors, in percent of one; without it as much as it gets.
    pub cpu_percent: Option<u16>,
    /// The folder below which data and logs are put; the system's temporary folder if `None`.
    pub folder: Option<PathBuf>,
}

impl CassandraSpec {
    /// The default heap, in MiB.
    pub const HEAP_MB: u32 = 512;
    /// The least heap with which a node serves, in MiB.
    const HEAP_MB_MIN: u32 = 256;
    /// The most nodes on one machine.
    const NODES_MAX: u8 = 32;

    /// A cluster of so many nodes, all in one rack.
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

    /// Checks that such a cluster can be started; the error says what to change.
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
        } else if let Some(wrong) = CpuShare::wrong(cpu_percent) {
            wrong
        } else {
            return Ok(());
        };
        Err(Error::Spec(wrong))
    }
}

/// Times that a node is started that ends while it joins: now and then one that joins right behind another one does.
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
    /// Starts the nodes, one after the other, as each has to know of those before it; and waits until all take clients.
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
                    share: CpuShare::asked(&name, spec.cpu_percent, &mut unshared),
                    management: Port::reserve()?,
                };
                let launch = Launch { name: name.clone(), program: Program::Cassandra(node) };
                match Server::start(launch, scratch.path()).await {
                    Err(Error::ServerEnded { status, tail, .. }) if number > 1 && tries < JOIN_TRIES => {
                        tracing::warn!("{name} ended with {status} while it joined, and is started anew: {tail}");
                        tries += 1;
                        // It has no data yet that others have not.
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

    /// Its specification.
    #[must_use]
    pub fn spec(&self) -> &CassandraSpec {
        &self.spec
    }

    /// The connection string, `cassandra://host:port,host:port`.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("cassandra://{}", self.nodes.addresses())
    }

    /// Why nodes have no share of the processors although one was asked for.
    #[must_use]
    pub fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    /// All nodes as they are now.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.nodes.infos()
    }

    /// The folder with data and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Its nodes, to give faults to.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.nodes
    }

    /// The folder with the configuration of a node, and its `nodetool`, below the folder of the cluster.
    #[must_use]
    pub fn configuration_of(folder: &Path, node: &str) -> PathBuf {
        folder.join(node).with_extension("conf")
    }
}

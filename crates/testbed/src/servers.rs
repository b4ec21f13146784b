//! The equal nodes of a cluster, with fault injection by node name.

use crate::cluster::{NodeInfo, Role};
use crate::error::{Error, Result};
use crate::server::Server;

/// The nodes of a cluster; dropping them kills them.
#[derive(Debug)]
pub struct Servers {
    cluster: String,
    servers: Vec<Server>,
}

impl Servers {
    /// Creates the collection of nodes of the cluster with this name.
    pub(crate) fn new(cluster: &str, servers: Vec<Server>) -> Self {
        Self { cluster: cluster.to_owned(), servers }
    }

    /// Returns the current state of all nodes.
    pub(crate) fn infos(&self) -> Vec<NodeInfo> {
        self.servers.iter().map(|server| NodeInfo::of(server, "", Role::Node)).collect()
    }

    /// Returns the nodes' addresses, `host:port,host:port`.
    pub(crate) fn addresses(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(Server::address).collect();
        all.join(",")
    }

    /// Kills a node at once (kill -9). Its address and data remain reserved for it.
    pub fn kill(&self, node: &str) -> Result<()> {
        self.named(node)?.kill()
    }

    /// Asks a node to end (SIGTERM), and waits until it has ended. Its address and data remain reserved for it.
    #[crate::boxed]
    pub async fn terminate(&self, node: &str) -> Result<()> {
        self.named(node)?.terminate().await
    }

    /// Suspends a node (SIGSTOP): its connections stay open and silent.
    pub fn stop(&self, node: &str) -> Result<()> {
        self.named(node)?.stop()
    }

    /// Resumes a suspended node (SIGCONT).
    pub fn resume(&self, node: &str) -> Result<()> {
        self.named(node)?.resume()
    }

    /// Starts a killed node again, and waits until it answers.
    #[crate::boxed]
    pub async fn restart(&self, node: &str) -> Result<()> {
        self.named(node)?.restart().await
    }

    /// Returns the node of this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Server> {
        let found = self.servers.iter().find(|server| server.name() == name);
        found.ok_or_else(|| Error::Unknown {
            cluster: self.cluster.clone(),
            what: "node",
            name: name.to_owned(),
            known: self.servers.iter().map(Server::name).collect::<Vec<_>>().join(", "),
        })
    }
}

//! The nodes of a Cassandra or Redis Cluster, with fault injection by node name.

use crate::cluster::{NodeInfo, Role};
use crate::error::{Error, Result};
use crate::server::Server;

/// The nodes of a Cassandra or Redis Cluster; dropping them kills their processes.
#[derive(Debug)]
pub struct Servers {
    cluster: String,
    servers: Vec<Server>,
}

impl Servers {
    /// Creates the collection of the nodes `servers` of the cluster named `cluster`.
    pub(crate) fn new(cluster: &str, servers: Vec<Server>) -> Self {
        Self { cluster: cluster.to_owned(), servers }
    }

    /// Returns name, address and process of every node, running or not.
    pub(crate) fn infos(&self) -> Vec<NodeInfo> {
        self.servers.iter().map(|server| NodeInfo::of(server, "", Role::Node)).collect()
    }

    /// Returns the addresses of all nodes as `host:port,host:port`.
    pub(crate) fn addresses(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(Server::address).collect();
        all.join(",")
    }

    /// Kills the node named `node` at once (SIGKILL). Its address and data remain reserved for it.
    pub fn kill(&self, node: &str) -> Result<()> {
        self.named(node)?.kill()
    }

    /// Asks the node named `node` to end (SIGTERM), and waits until its process has ended. Its address and data
    /// remain reserved for it.
    #[crate::boxed]
    pub async fn terminate(&self, node: &str) -> Result<()> {
        self.named(node)?.terminate().await
    }

    /// Suspends the node named `node` (SIGSTOP): its connections stay open and silent.
    pub fn stop(&self, node: &str) -> Result<()> {
        self.named(node)?.stop()
    }

    /// Resumes the suspended node named `node` (SIGCONT).
    pub fn resume(&self, node: &str) -> Result<()> {
        self.named(node)?.resume()
    }

    /// Starts the killed node named `node` again, and waits until it accepts clients.
    #[crate::boxed]
    pub async fn restart(&self, node: &str) -> Result<()> {
        self.named(node)?.restart().await
    }

    /// Returns the node named `name`, or an error that lists the names of the cluster's nodes.
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

//! Servers that are nodes among equals: each is killed, stopped and started again by its name.

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
    /// The nodes of the cluster of this name.
    pub(crate) fn new(cluster: &str, servers: Vec<Server>) -> Self {
        Self { cluster: cluster.to_owned(), servers }
    }

    /// All as they are now.
    pub(crate) fn infos(&self) -> Vec<NodeInfo> {
        self.servers.iter().map(|server| NodeInfo::of(server, "", Role::Node)).collect()
    }

    /// Their addresses, `host:port,host:port`.
    pub(crate) fn addresses(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(Server::address).collect();
        all.join(",")
    }

    /// Kills a node at once (kill -9). Its address and data stay its own.
    pub fn kill(&self, node: &str) -> Result<()> {
        self.named(node)?.kill()
    }

    /// Asks a node to end (SIGTERM), and waits until it is gone. Its address and data stay its own.
    pub async fn terminate(&self, node: &str) -> Result<()> {
        self.named(node)?.terminate().await
    }

    /// Stops a node where it is (SIGSTOP): its connections stay open and silent.
    pub fn stop(&self, node: &str) -> Result<()> {
        self.named(node)?.stop()
    }

    /// Lets a node go on after a stop (SIGCONT).
    pub fn resume(&self, node: &str) -> Result<()> {
        self.named(node)?.resume()
    }

    /// Starts a node again after a kill, and waits until it answers.
    pub async fn restart(&self, node: &str) -> Result<()> {
        self.named(node)?.restart().await
    }

    /// The node of this name.
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

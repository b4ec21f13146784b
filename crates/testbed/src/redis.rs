//! A Redis server: its configuration, its command line, and its readiness probe.
//!
//! The server has an append-only file, to which it writes before it replies, so a server that is killed and restarted
//! has everything that it had acknowledged. Its configuration is a file, which `CONFIG REWRITE` changes, and which a
//! restart uses.
//!
//! A node of a cluster has its own address. The node has to announce that address to the others and to connect to
//! them from it, or they take it for another node; and its protected mode has to be off, or replicas are rejected
//! while the cluster reports no problem.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::port::SharedPorts;
use crate::wire;

/// File name of a Redis server's configuration file.
pub(crate) const CONFIGURATION: &str = "redis.conf";
/// Time without a reply after which the other nodes of a cluster consider a node failed (`cluster-node-timeout`), in
/// ms. On a busy machine a node may not reply for seconds, and a failover then loses writes that Redis had acknowledged.
const NODE_TIMEOUT_MS: u32 = 10_000;

/// Settings of one `redis-server`: its limits, and its address in a cluster.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) path: PathBuf,
    /// Limit of the server's memory for data (`maxmemory`), in MiB; writes beyond it are rejected.
    pub(crate) memory_mb: u32,
    /// Address of the server as a node of a cluster; `None` for a single server.
    pub(crate) node: Option<RedisNode>,
    /// CPU limit of the server; `None` if the server is unlimited.
    pub(crate) share: Option<CpuShare>,
}

/// Address and ports of a node of a Redis Cluster.
#[derive(Debug)]
pub(crate) struct RedisNode {
    pub(crate) ports: Arc<SharedPorts>,
    pub(crate) host: Ipv4Addr,
}

impl RedisNode {
    /// Returns the socket address on which the node accepts clients.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.host, self.ports.clients.number()))
    }
}

impl Redis {
    /// Writes the server's configuration file to the configuration folder of `place`.
    pub(crate) fn prepare(&self, place: &Place) -> Result<()> {
        let folder = place.configuration();
        let doing = || format!("write the configuration {}", folder.display());
        std::fs::create_dir_all(&folder).map_err(Error::io(doing()))?;
        std::fs::write(folder.join(CONFIGURATION), self.settings(place)).map_err(Error::io(doing()))
    }

    fn settings(&self, place: &Place) -> String {
        let (port, memory_mb, data) = (place.port, self.memory_mb, place.data.display());
        let mut settings = format!(
            "port {port}\n\
             dir \"{data}\"\n\
             daemonize no\n\
             save \"\"\n\
             appendonly yes\n\
             appendfsync everysec\n\
             maxmemory {memory_mb}mb\n\
             maxmemory-policy noeviction\n"
        );
        let Some(RedisNode { host, ports }) = &self.node else {
            settings.push_str("bind 127.0.0.1\n");
            return settings;
        };
        let peers = ports.peers.number();
        write!(
            settings,
            "bind {host}\n\
             bind-source-addr {host}\n\
             protected-mode no\n\
             cluster-enabled yes\n\
             cluster-port {peers}\n\
             cluster-announce-ip {host}\n\
             cluster-config-file nodes.conf\n\
             cluster-node-timeout {NODE_TIMEOUT_MS}\n\
             repl-diskless-sync-delay 0\n"
        )
        .expect("into a string");
        settings
    }

    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let (output, errors) = place.log_output()?;
        let mut command = match &self.share {
            Some(share) => share.command(&self.path),
            None => Command::new(&self.path),
        };
        command.arg(place.configuration().join(CONFIGURATION)).stdout(output).stderr(errors);
        Ok(command)
    }

    /// Returns the address on which a node of a cluster accepts clients; `None` for a single server.
    pub(crate) fn fixed_address(&self) -> Option<SocketAddr> {
        self.node.as_ref().map(RedisNode::address)
    }

    /// Checks by PING that the server accepts clients within `bound`: at its cluster address, or at `port` of
    /// 127.0.0.1 for a single server.
    pub(crate) async fn probe(&self, port: u16, bound: Duration) -> Result<()> {
        ping(self.fixed_address().unwrap_or(wire::local(port)), bound).await
    }
}

/// Sends PING to `server`, and succeeds if PONG is returned within `bound`. A server that still loads its data does
/// not reply with PONG.
pub(crate) async fn ping(server: SocketAddr, bound: Duration) -> Result<()> {
    const EXPECTED: &[u8] = b"+PONG\r\n";
    let exchange = async {
        let mut stream = wire::connect(server).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 256];
        let mut length = 0;
        while length < answer.len() && !answer[..length].ends_with(b"\r\n") {
            match stream.read(&mut answer[length..]).await? {
                0 => break,
                more => length += more,
            }
        }
        match &answer[..length] {
            EXPECTED => Ok(()),
            other => Err(wire::invalid(String::from_utf8_lossy(other).trim_end().to_owned())),
        }
    };
    wire::within(server, "PING", bound, exchange).await
}

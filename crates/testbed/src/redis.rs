//! A Redis server: its configuration, its command line, and the probe of its readiness.
//!
//! It keeps an append-only file, to which it writes before it answers, so that a killed server
//! comes back with everything that it had acknowledged. Its configuration is a file, which
//! `CONFIG REWRITE` changes, and with which a killed server is started again.
//!
//! A node of a cluster has an address of its own. It has to name that to the others and to connect
//! to them from it, or they take it for another one; and its protected mode has to be off, or
//! replicas are refused while the cluster says that all is well.

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

/// The name of the file with the configuration.
pub(crate) const CONFIGURATION: &str = "redis.conf";
/// Time after which a node that is silent counts as failed by the others, in milliseconds.
const NODE_TIMEOUT_MS: u32 = 3_000;

/// `redis-server`, and how much it may hold.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) path: PathBuf,
    /// Limit of its data, in MiB; writes are refused beyond.
    pub(crate) memory_mb: u32,
    /// Its place in a cluster; `None` for a server that stands alone.
    pub(crate) node: Option<RedisNode>,
    /// Its share of the processors; none if it takes what it gets.
    pub(crate) share: Option<CpuShare>,
}

/// The address of a node of a cluster.
#[derive(Debug)]
pub(crate) struct RedisNode {
    pub(crate) ports: Arc<SharedPorts>,
    pub(crate) host: Ipv4Addr,
}

impl RedisNode {
    /// Its address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.host, self.ports.clients.number()))
    }
}

impl Redis {
    /// Writes the configuration.
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

    /// Its address, if it does not take a port of its own.
    pub(crate) fn fixed_address(&self) -> Option<SocketAddr> {
        self.node.as_ref().map(RedisNode::address)
    }

    /// Asks it, at this port if it stands alone, for its PONG.
    pub(crate) async fn probe(&self, port: u16, bound: Duration) -> Result<()> {
        ping(self.fixed_address().unwrap_or(wire::local(port)), bound).await
    }
}

/// Asks a server for its PONG; it is not given while data is loaded.
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

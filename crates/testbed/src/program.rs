//! Differences between the servers of the databases: command lines, readiness probes, the sign that a port was taken.
//!
//! Everything else (ports, data, signals, the end of a process) is common and in [`crate::server`].

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::cassandra::Cassandra;
use crate::cpu_share::CpuShare;
use crate::error::Result;
use crate::kafka::{self, Kafka};
pub(crate) use crate::place::Place;
use crate::postgres::{self, Postgres};
use crate::redis::Redis;
use crate::wire;

const PROBE_BOUND: Duration = Duration::from_secs(5);
/// Exit code of `mongod` and `mongos` when their port is taken.
const MONGO_EXIT_PORT_TAKEN: i32 = 48;
/// Text that Redis, Kafka, Cassandra and PostgreSQL log when their port is taken: the operating system's message.
const PORT_TAKEN: &str = "Address already in use";

/// A server program, with the part of its command line that does not depend on its [`Place`].
#[derive(Debug)]
pub(crate) enum Program {
    /// `mongod`, or `mongos`.
    Mongo(Mongo),
    /// `redis-server`.
    Redis(Redis),
    /// Kafka, broker and controller in one process.
    Kafka(Kafka),
    /// A node of a Cassandra cluster.
    Cassandra(Cassandra),
    /// PostgreSQL.
    Postgres(Postgres),
}

impl Program {
    /// Returns the path of the executed program; for Kafka and Cassandra that is `java`.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Mongo(mongo) => &mongo.path,
            Self::Redis(redis) => &redis.path,
            Self::Kafka(kafka) => &kafka.installed.java,
            Self::Cassandra(node) => &node.installed.java,
            Self::Postgres(postgres) => &postgres.program,
        }
    }

    /// Returns the address for clients of a node that uses the shared ports of its cluster; `None` if the server has
    /// a port of its own on 127.0.0.1.
    pub(crate) fn fixed_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Cassandra(node) => Some(node.address()),
            Self::Redis(redis) => redis.fixed_address(),
            Self::Mongo(_) | Self::Kafka(_) | Self::Postgres(_) => None,
        }
    }

    /// Returns the program's CPU limit, or `None` if it has none.
    pub(crate) fn cpu_share(&self) -> Option<&CpuShare> {
        match self {
            Self::Mongo(mongo) => mongo.share.as_ref(),
            Self::Cassandra(node) => node.share.as_ref(),
            Self::Redis(redis) => redis.share.as_ref(),
            Self::Kafka(_) | Self::Postgres(_) => None,
        }
    }

    /// Returns true if the server has a data folder (a router has none).
    pub(crate) fn keeps_data(&self) -> bool {
        !matches!(self, Self::Mongo(Mongo { keeps_data: false, .. }))
    }

    /// Writes the files that the server needs at its first start.
    pub(crate) async fn prepare(&self, place: &Place) -> Result<()> {
        match self {
            Self::Mongo(_) => Ok(()),
            Self::Redis(redis) => redis.prepare(place),
            Self::Kafka(kafka) => kafka.prepare(place).await,
            Self::Cassandra(node) => node.prepare(place),
            Self::Postgres(postgres) => postgres.prepare(place),
        }
    }

    /// Returns the command that starts the server with the port and files of `place`.
    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let mut command = match self {
            Self::Mongo(mongo) => mongo.command(place),
            Self::Redis(redis) => redis.command(place)?,
            Self::Kafka(kafka) => kafka.command(place)?,
            Self::Cassandra(node) => node.command(place)?,
            Self::Postgres(postgres) => postgres.command(place)?,
        };
        command.current_dir(&place.folder).stdin(Stdio::null());
        Ok(command)
    }

    /// Checks that the server accepts clients: at `port` on 127.0.0.1, or at its fixed address if it has one.
    pub(crate) async fn probe(&self, port: u16) -> Result<()> {
        match self {
            Self::Mongo(_) => wire::hello(port, PROBE_BOUND).await.map(drop),
            Self::Redis(redis) => redis.probe(port, PROBE_BOUND).await,
            Self::Kafka(_) => kafka::ask_versions(port, PROBE_BOUND).await,
            Self::Cassandra(node) => node.probe(PROBE_BOUND).await,
            Self::Postgres(_) => postgres::begin_session(port, PROBE_BOUND).await,
        }
    }

    /// Returns true if `status`, the server's exit status, or the file `log` shows that the server ended because its
    /// port was taken.
    pub(crate) fn found_port_taken(&self, status: ExitStatus, log: &Path) -> bool {
        match self {
            Self::Mongo(_) => status.code() == Some(MONGO_EXIT_PORT_TAKEN),
            Self::Redis(_) | Self::Kafka(_) | Self::Cassandra(_) | Self::Postgres(_) => {
                std::fs::read_to_string(log).is_ok_and(|log| log.contains(PORT_TAKEN))
            }
        }
    }

    /// Reserves new ports for the server, except the one in its [`Place`].
    pub(crate) fn change_ports(&mut self) -> Result<()> {
        match self {
            Self::Mongo(_) | Self::Redis(_) | Self::Cassandra(_) | Self::Postgres(_) => Ok(()),
            Self::Kafka(kafka) => kafka.change_ports(),
        }
    }
}

/// Settings of one `mongod` or `mongos`.
#[derive(Debug)]
pub(crate) struct Mongo {
    pub(crate) path: PathBuf,
    /// Command-line arguments other than those that follow from its [`Place`].
    pub(crate) arguments: Vec<OsString>,
    /// True if the server has a data folder (a router has none).
    pub(crate) keeps_data: bool,
    /// True if the server runs with a low scheduling priority (`nice`); a CPU limit takes precedence.
    pub(crate) yields_cpu: bool,
    /// CPU limit of the server; `None` if the server is unlimited.
    pub(crate) share: Option<CpuShare>,
}

impl Mongo {
    fn command(&self, place: &Place) -> Command {
        let mut command = if let Some(share) = &self.share {
            share.command(&self.path)
        } else if self.yields_cpu {
            // `nice` becomes the server. Its share is a tenth of that of each other busy process. At the lowest
            // priority a server did not start within two minutes on a machine with eight busy processes.
            let mut command = Command::new("nice");
            command.args(["-n", "10"]).arg(&self.path);
            command
        } else {
            Command::new(&self.path)
        };
        command
            .arg("--port")
            .arg(place.port.to_string())
            .args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--quiet", "--logappend"])
            .arg("--logpath")
            .arg(&place.log)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if self.keeps_data {
            command.arg("--dbpath").arg(&place.data);
        }
        command
    }
}

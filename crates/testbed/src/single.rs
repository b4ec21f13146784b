//! A single server: Redis, Kafka as broker and controller in one process, or PostgreSQL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::binary;
use crate::cluster::{NodeInfo, Role, valid_name};
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::kafka::{self, Kafka, KafkaSecurity};
use crate::postgres::{self, Postgres};
use crate::program::Program;
use crate::redis::{self, Redis};
use crate::scratch::Scratch;
use crate::server::{Launch, Server};
use crate::wire;

/// Database product of a single server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Redis, with an append-only file.
    Redis,
    /// Kafka in KRaft mode.
    Kafka,
    /// PostgreSQL.
    Postgres,
}

impl Engine {
    /// Returns the name of the database product as command lines use it: `redis`, `kafka` or
    /// `postgres`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Kafka => "kafka",
            Self::Postgres => "postgres",
        }
    }

    /// Returns the least memory limit with which the server works, in MiB: of Redis' data, of Kafka's heap, or of
    /// PostgreSQL's shared buffers.
    pub(crate) fn memory_mb_min(self) -> u32 {
        match self {
            Self::Redis => 8,
            Self::Kafka => 128,
            Self::Postgres => 16,
        }
    }

    /// Checks that the server at `port` of 127.0.0.1 accepts clients; fails if it does not reply within `bound`.
    pub(crate) async fn probe(self, port: u16, bound: Duration) -> Result<()> {
        match self {
            Self::Redis => redis::ping(wire::local(port), bound).await,
            Self::Kafka => kafka::ask_versions(port, bound).await,
            Self::Postgres => postgres::begin_session(port, bound).await,
        }
    }
}

/// Specification of a testbed that consists of a single server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SingleSpec {
    /// Name of the testbed, which prefixes the name of its node.
    pub name: String,
    /// Database product that the server runs.
    pub engine: Engine,
    /// Limit of Redis' memory for data (`maxmemory`), or of Kafka's heap, or size of PostgreSQL's shared buffers, in MiB.
    pub memory_mb: u32,
    /// CPU limit of Redis, in percent of one processor; `None` for no limit. Others accept no limit.
    pub cpu_percent: Option<u16>,
    /// Folder in which the testbed's folder for data and log is created; `None` for the system's temporary folder.
    pub folder: Option<PathBuf>,
    /// Requirements of Kafka's second listener (TLS and login); `None` for no second listener.
    pub secured: Option<KafkaSecurity>,
}

impl SingleSpec {
    /// Default of [`Self::memory_mb`], in MiB.
    pub const MEMORY_MB: u32 = 256;

    /// Returns the specification of a Redis server.
    #[must_use]
    pub fn redis(name: &str) -> Self {
        Self::of(Engine::Redis, name)
    }

    /// Returns the specification of a Kafka server.
    #[must_use]
    pub fn kafka(name: &str) -> Self {
        Self::of(Engine::Kafka, name)
    }

    /// Returns the specification of a PostgreSQL server.
    #[must_use]
    pub fn postgres(name: &str) -> Self {
        Self::of(Engine::Postgres, name)
    }

    fn of(engine: Engine, name: &str) -> Self {
        let (name, memory_mb) = (name.into(), Self::MEMORY_MB);
        Self { name, engine, memory_mb, cpu_percent: None, folder: None, secured: None }
    }

    /// Checks that a server can be started from this specification. The error names the value to change.
    pub fn check(&self) -> Result<()> {
        if !valid_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        let (name, least) = (self.engine.name(), self.engine.memory_mb_min());
        if self.memory_mb < least {
            let memory = self.memory_mb;
            return Err(Error::Spec(format!("{memory} MB for {name}: it takes at least {least}")));
        }
        if let Some(wrong) = CpuShare::limit_error(self.cpu_percent) {
            return Err(Error::Spec(wrong));
        }
        if self.cpu_percent.is_some() && self.engine != Engine::Redis {
            return Err(Error::Spec(format!("{name} cannot be held to a share of the processors")));
        }
        Ok(())
    }

    /// Returns the program to start for the node `node`, or an error if this machine does not have it. If the CPU
    /// limit is unavailable, the reason is stored in `unshared`.
    fn program(&self, node: &str, unshared: &mut Option<String>) -> Result<Program> {
        Ok(match self.engine {
            Engine::Redis => {
                let (path, memory_mb) = (binary::find_redis()?, self.memory_mb);
                let share = CpuShare::if_requested(node, self.cpu_percent, unshared);
                Program::Redis(Redis { path, memory_mb, node: None, share })
            }
            Engine::Kafka => {
                let (files, secured) = (binary::find_kafka()?, self.secured.clone());
                Program::Kafka(Kafka::new(files, self.memory_mb, secured)?)
            }
            Engine::Postgres => {
                let (program, memory_mb) = (binary::find_postgres()?, self.memory_mb);
                Program::Postgres(Postgres { program, memory_mb })
            }
        })
    }
}

/// A running single server; dropping it kills the server and removes its data.
#[derive(Debug)]
pub struct Single {
    // Fields drop in this order: the server, then the folder with its data.
    server: Server,
    spec: SingleSpec,
    scratch: Scratch,
    unshared: Option<String>,
}

impl Single {
    /// Starts the server that `spec` describes, and waits until it accepts clients.
    #[crate::boxed]
    pub async fn start(spec: SingleSpec) -> Result<Self> {
        spec.check()?;
        let (name, mut unshared) = (format!("{}-0", spec.name), None);
        let program = spec.program(&name, &mut unshared)?;
        let scratch = Scratch::new(&spec.name, spec.folder.as_deref())?;
        let launch = Launch { name, program };
        let server = Server::start(launch, scratch.path()).await?;
        Ok(Self { server, spec, scratch, unshared })
    }

    /// Returns the specification of the server.
    #[must_use]
    pub fn spec(&self) -> &SingleSpec {
        &self.spec
    }

    /// Returns the reason why a CPU limit was requested but is unavailable; `None` if it is in force or was not
    /// requested.
    #[must_use]
    pub fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    /// Returns the server's address for clients: `redis://host:port` for Redis, a bootstrap server as `host:port` for
    /// Kafka, `postgres://user@host:port/database` for PostgreSQL.
    #[must_use]
    pub fn uri(&self) -> String {
        match self.spec.engine {
            Engine::Redis => format!("redis://{}", self.server.address()),
            Engine::Kafka => self.server.address(),
            Engine::Postgres => {
                format!("postgres://{0}@{1}/{0}", postgres::USER, self.server.address())
            }
        }
    }

    /// Returns the address of Kafka's second listener, which demands TLS and authentication, as `host:port`; `None`
    /// if there is no such listener.
    #[must_use]
    pub fn secured_uri(&self) -> Option<String> {
        let Program::Kafka(kafka) = self.server.program() else { return None };
        kafka.secured_port().map(|port| wire::local(port).to_string())
    }

    /// Returns the server's port on 127.0.0.1, which stays reserved while the server is down.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns name, address and process of the server, the testbed's only node.
    #[must_use]
    pub fn node(&self) -> NodeInfo {
        NodeInfo::of(&self.server, "", Role::Alone)
    }

    /// Returns the folder of this testbed, which contains data and log of the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Kills the server at once (SIGKILL). Its port and data remain reserved for it.
    pub fn kill(&self) -> Result<()> {
        self.server.kill()
    }

    /// Asks the server to end (SIGTERM), and waits until its process has ended. Its port and data remain reserved for
    /// it.
    #[crate::boxed]
    pub async fn terminate(&self) -> Result<()> {
        self.server.terminate().await
    }

    /// Suspends the server (SIGSTOP): its connections stay open and silent.
    pub fn stop(&self) -> Result<()> {
        self.server.stop()
    }

    /// Resumes a suspended server (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.server.resume()
    }

    /// Starts the killed server again, on the same port and data, and waits until it accepts clients.
    #[crate::boxed]
    pub async fn restart(&self) -> Result<()> {
        self.server.restart().await
    }
}

//! A server that stands alone: one Redis, or one Kafka that is broker and controller in one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::binary;
use crate::cluster::{NodeInfo, Role, valid_name};
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::kafka::{self, Kafka};
use crate::program::Program;
use crate::redis::{self, Redis};
use crate::scratch::Scratch;
use crate::server::{Launch, Server};
use crate::wire;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Redis, with an append-only file.
    Redis,
    /// Kafka in KRaft mode.
    Kafka,
}

impl Engine {
    /// Its name as it stands in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Kafka => "kafka",
        }
    }

    /// The least memory with which it serves, in MiB.
    pub(crate) fn memory_mb_min(self) -> u32 {
        match self {
            Self::Redis => 8,
            Self::Kafka => 128,
        }
    }

    /// Checks that the server at `port` answers.
    pub(crate) async fn probe(self, port: u16, bound: Duration) -> Result<()> {
        match self {
            Self::Redis => redis::ping(wire::local(port), bound).await,
            Self::Kafka => kafka::ask_versions(port, bound).await,
        }
    }
}

/// The server to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SingleSpec {
    /// The testbed's name, after which its node is named; as that of a cluster.
    pub name: String,
    /// Which server.
    pub engine: Engine,
    /// Limit of Redis' data, or of Kafka's heap, in MiB.
    pub memory_mb: u32,
    /// What Redis may use of the processors, in percent of one; as much as it gets if `None`.
    pub cpu_percent: Option<u16>,
    /// The folder below which data and log are put; the system's temporary folder if `None`.
    pub folder: Option<PathBuf>,
}

impl SingleSpec {
    /// The default memory, in MiB.
    pub const MEMORY_MB: u32 = 256;

    /// A Redis server.
    #[must_use]
    pub fn redis(name: &str) -> Self {
        Self::of(Engine::Redis, name)
    }

    /// A Kafka server.
    #[must_use]
    pub fn kafka(name: &str) -> Self {
        Self::of(Engine::Kafka, name)
    }

    fn of(engine: Engine, name: &str) -> Self {
        let (name, memory_mb) = (name.into(), Self::MEMORY_MB);
        Self { name, engine, memory_mb, cpu_percent: None, folder: None }
    }

    /// Checks that such a server can be started; the error says what to change.
    pub fn check(&self) -> Result<()> {
        if !valid_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        let (name, least) = (self.engine.name(), self.engine.memory_mb_min());
        if self.memory_mb < least {
            let memory = self.memory_mb;
            return Err(Error::Spec(format!("{memory} MB for {name}: it takes at least {least}")));
        }
        if let Some(wrong) = CpuShare::wrong(self.cpu_percent) {
            return Err(Error::Spec(wrong));
        }
        if self.cpu_percent.is_some() && self.engine != Engine::Redis {
            return Err(Error::Spec(format!("{name} cannot be held to a share of the processors")));
        }
        Ok(())
    }

    /// The program to start, if this machine has it; why it has no share of the processors is put into `unshared`.
    fn program(&self, node: &str, unshared: &mut Option<String>) -> Result<Program> {
        Ok(match self.engine {
            Engine::Redis => {
                let (path, memory_mb) = (binary::find_redis()?, self.memory_mb);
                let share = CpuShare::asked(node, self.cpu_percent, unshared);
                Program::Redis(Redis { path, memory_mb, node: None, share })
            }
            Engine::Kafka => Program::Kafka(Kafka::new(binary::find_kafka()?, self.memory_mb)?),
        })
    }
}

/// A running server that stands alone; dropping it kills it and removes its data.
#[derive(Debug)]
pub struct Single {
    // Fields drop in this order: the server, then the folder with its data.
    server: Server,
    spec: SingleSpec,
    scratch: Scratch,
    unshared: Option<String>,
}

impl Single {
    /// Starts the server and waits until it answers.
    pub async fn start(spec: SingleSpec) -> Result<Self> {
        spec.check()?;
        let (name, mut unshared) = (format!("{}-0", spec.name), None);
        let program = spec.program(&name, &mut unshared)?;
        let scratch = Scratch::new(&spec.name, spec.folder.as_deref())?;
        let launch = Launch { name, program };
        let server = Server::start(launch, scratch.path()).await?;
        Ok(Self { server, spec, scratch, unshared })
    }

    /// Its specification.
    #[must_use]
    pub fn spec(&self) -> &SingleSpec {
        &self.spec
    }

    /// Why it has no share of the processors although one was asked for; none if it has.
    #[must_use]
    pub fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    /// The address for clients: a URL for Redis, a bootstrap server as `host:port` for Kafka.
    #[must_use]
    pub fn uri(&self) -> String {
        match self.spec.engine {
            Engine::Redis => format!("redis://{}", self.server.address()),
            Engine::Kafka => self.server.address(),
        }
    }

    /// The port on 127.0.0.1, which stays its own while it is down.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Its one node as it is now.
    #[must_use]
    pub fn node(&self) -> NodeInfo {
        NodeInfo::of(&self.server, "", Role::Alone)
    }

    /// The folder with data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Kills it at once (kill -9). Its port and data stay its own.
    pub fn kill(&self) -> Result<()> {
        self.server.kill()
    }

    /// Asks it to end (SIGTERM), and waits until it is gone. Its port and data stay its own.
    pub async fn terminate(&self) -> Result<()> {
        self.server.terminate().await
    }

    /// Stops it where it is (SIGSTOP): its connections stay open and silent.
    pub fn stop(&self) -> Result<()> {
        self.server.stop()
    }

    /// Lets it go on after a stop (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.server.resume()
    }

    /// Starts it again after a kill, on the same port and data, and waits until it answers.
    pub async fn restart(&self) -> Result<()> {
        self.server.restart().await
    }
}

//! The router of a cluster: a real `mongos` if this machine has one, else the stand-in of [`imago_mongos`], on a
//! port that stays reserved while the router is down.
//!
//! The stand-in has its own threads and runtime, like the process that it replaces: it serves clients of any runtime,
//! and outlives the runtime on which the cluster was started.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use imago_mongos::{Router, RouterSpec, Threads};
use tokio::sync::oneshot;

use crate::auth::Credentials;
use crate::error::{Error, Result};
use crate::port::Port;
use crate::process::ProcessId;
use crate::program::{Mongo, Program};
use crate::server::{Launch, Server};
use crate::spec::{NodeInfo, Role};

/// Time allowed for the stand-in's threads to end; those that still run after it are abandoned.
const STOP_BOUND: Duration = Duration::from_secs(10);

/// The router of a sharded cluster.
#[derive(Debug)]
pub(crate) enum RouterProcess {
    /// A process of MongoDB's own router.
    Mongos(Server),
    /// The testbed's stand-in, in this process.
    StandIn(StandIn),
}

impl RouterProcess {
    /// Starts the program `mongos`, or the stand-in if that is `None`, for the config server `config`
    /// (`SET/HOST:PORT,…`). Files of a real `mongos` are in `folder`.
    pub(crate) async fn start(
        name: String,
        mongos: Option<PathBuf>,
        config: String,
        credentials: Option<&Credentials>,
        folder: &Path,
    ) -> Result<Self> {
        let Some(path) = mongos else {
            let users =
                credentials.map(|who| vec![who.admin.clone(), who.app.clone()]).unwrap_or_default();
            let standin = StandIn::new(name, config, users)?;
            standin.start()?;
            return Ok(Self::StandIn(standin));
        };
        let mut arguments: Vec<OsString> = vec!["--configdb".into(), config.into()];
        if let Some(credentials) = credentials {
            arguments.extend(["--keyFile".into(), credentials.key_file.clone().into()]);
        }
        let program = Program::Mongo(Mongo {
            path,
            arguments,
            keeps_data: false,
            yields_cpu: false,
            share: None,
        });
        let launch = Launch { name, program };
        Ok(Self::Mongos(Server::start(launch, folder).await?))
    }

    /// Returns the router's name in the cluster.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Mongos(server) => server.name(),
            Self::StandIn(standin) => &standin.name,
        }
    }

    /// Returns the address on which the router accepts clients, as `host:port`.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Mongos(server) => server.address(),
            Self::StandIn(standin) => format!("127.0.0.1:{}", standin.port.number()),
        }
    }

    /// Ends the router at once; its clients' connections break.
    pub(crate) fn kill(&self) -> Result<()> {
        match self {
            Self::Mongos(server) => server.kill(),
            Self::StandIn(standin) => standin.stop(),
        }
    }

    /// Starts the killed router again on the same port.
    pub(crate) async fn restart(&self) -> Result<()> {
        match self {
            Self::Mongos(server) => server.restart().await,
            Self::StandIn(standin) => standin.start(),
        }
    }

    /// Returns the server process, to be suspended and resumed, or an error for the stand-in, which has no process of
    /// its own.
    pub(crate) fn server(&self) -> Result<&Server> {
        match self {
            Self::Mongos(server) => Ok(server),
            Self::StandIn(standin) => Err(Error::WrongState {
                action: "stop or continue",
                node: standin.name.clone(),
                state: "is a part of the testbed's process; put a relay before it and stall that",
            }),
        }
    }

    /// Returns name, address and process of the router; the stand-in's process is this one.
    pub(crate) fn info(&self) -> NodeInfo {
        let (port, process, log) = match self {
            Self::Mongos(server) => (server.port(), server.process(), Some(server.log())),
            Self::StandIn(standin) => {
                let process = standin.running().as_ref().map(|_| ProcessId::own());
                (standin.port.number(), process, None)
            }
        };
        NodeInfo {
            name: self.name().to_owned(),
            set: String::new(),
            role: Role::Router,
            host: Ipv4Addr::LOCALHOST.into(),
            port,
            process,
            log,
        }
    }
}

/// The testbed's stand-in for `mongos`, which runs in this process.
#[derive(Debug)]
pub(crate) struct StandIn {
    name: String,
    port: Port,
    spec: RouterSpec,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl StandIn {
    fn new(name: String, config: String, users: Vec<crate::User>) -> Result<Self> {
        let port = Port::reserve()?;
        let threads = Threads::default();
        let spec = RouterSpec { config, port: port.number(), users, threads };
        Ok(Self { name, port, spec, running: Mutex::new(None) })
    }

    fn start(&self) -> Result<()> {
        let mut running = self.running();
        if running.is_some() {
            return Err(self.wrong_state("restart", "is running"));
        }
        let doing = || format!("start the router {}", self.name);
        let threads = &self.spec.threads;
        let (enter, leave) = (threads.clone(), threads.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("testbed-router")
            .on_thread_start(move || enter.enter())
            .on_thread_stop(move || leave.leave())
            .enable_all()
            .build()
            .map_err(Error::io(doing()))?;
        let (stop, stopped) = oneshot::channel();
        let (listening, heard) = mpsc::channel();
        let spec = self.spec.clone();
        let serve = move || {
            runtime.block_on(async {
                match Router::start(spec).await {
                    Ok(router) => {
                        // Both fail only if the receiver is gone.
                        let _ = listening.send(Ok(()));
                        let _ = stopped.await;
                        drop(router);
                    }
                    Err(error) => drop(listening.send(Err(error))),
                }
            });
            // Waits until the listener and the clients' connections are closed: only then is the port free for a
            // restart.
            runtime.shutdown_timeout(STOP_BOUND);
        };
        let thread = std::thread::Builder::new().name("testbed-router".into()).spawn(serve);
        let thread = thread.map_err(Error::io(doing()))?;
        let ended = || std::io::Error::other("its thread has ended");
        heard.recv().map_err(|_| ended()).and_then(|told| told).map_err(Error::io(doing()))?;
        *running = Some(Running { stop, thread });
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let running = self.running().take();
        running.map(Running::end).ok_or_else(|| self.wrong_state("kill", "is not running"))
    }

    fn wrong_state(&self, action: &'static str, state: &'static str) -> Error {
        Error::WrongState { action, node: self.name.clone(), state }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(running) = self.running().take() {
            running.end();
        }
    }
}

impl Running {
    fn end(self) {
        // A thread that has ended needs no signal; one that panicked has reported that itself.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

//! One server process: started on a reserved port, killed when its value is dropped, restarted on the same port and
//! data.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Error, Result};
use crate::port::Port;
use crate::process::{self, Liveness, ProcessId};
use crate::program::{Place, Program};

/// Time allowed for a server to accept clients after its start; a busy machine needs far longer than the one second
/// of an idle one.
const ANSWER_BOUND: Duration = Duration::from_secs(120);
/// Time allowed for a server's process to end after SIGTERM.
const END_BOUND: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(40);
const PORT_ATTEMPTS: u32 = 5;

/// A server program to start, and the name of the server.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Name of the server in its cluster.
    pub(crate) name: String,
    /// Program of the server, with the part of its command line that does not depend on its [`Place`].
    pub(crate) program: Program,
}

/// A running or killed server process with its reserved port; dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    launch: Launch,
    folder: PathBuf,
    /// Port on 127.0.0.1 that is reserved for this server; `None` for a program that uses an address of its cluster.
    port: Option<Port>,
    child: Mutex<Option<Child>>,
}

impl Server {
    /// Returns the program that the server runs.
    pub(crate) fn program(&self) -> &Program {
        &self.launch.program
    }

    /// Starts a server, whose data folder and log are created in `folder`, and waits until it accepts clients.
    pub(crate) async fn start(launch: Launch, folder: &Path) -> Result<Self> {
        let data = folder.join(&launch.name);
        if launch.program.keeps_data() {
            let doing = format!("make the data folder {}", data.display());
            std::fs::create_dir_all(&data).map_err(Error::io(doing))?;
        }
        let is_fixed = launch.program.fixed_address().is_some();
        let port = if is_fixed { None } else { Some(Port::reserve()?) };
        let folder = folder.to_path_buf();
        let mut server = Self { launch, folder, port, child: Mutex::new(None) };
        for attempt in 1.. {
            server.launch.program.prepare(&server.place()).await?;
            server.spawn()?;
            match server.wait_answering().await {
                // Another process took the port between its reservation and the start of the server.
                Err(Error::ServerEnded { status, log, .. })
                    if attempt < PORT_ATTEMPTS
                        && !is_fixed
                        && server.launch.program.found_port_taken(status, &log) =>
                {
                    server.port = Some(Port::reserve()?);
                    server.launch.program.change_ports()?;
                }
                outcome => return outcome.map(|()| server),
            }
        }
        unreachable!("the loop ends at its last attempt")
    }

    /// Puts the server's CPU limit in force if `is_enforced`, else suspends it; without a limit this does nothing.
    pub(crate) fn enforce_cpu_limit(&self, is_enforced: bool) -> Result<()> {
        let Some(share) = self.launch.program.cpu_share() else { return Ok(()) };
        let doing = format!("change the share of the processors of {}", self.name());
        share.enforce(is_enforced).map_err(Error::io(doing))
    }

    /// Starts a killed server again, on the same port and data, and waits until it accepts clients.
    pub(crate) async fn restart(&self) -> Result<()> {
        if self.liveness() != Liveness::Gone {
            return Err(self.wrong_state("restart", "is running"));
        }
        self.spawn()?;
        self.wait_answering().await
    }

    fn spawn(&self) -> Result<()> {
        let command = self.launch.program.command(&self.place())?;
        let doing = format!("start {}", self.launch.program.path().display());
        *self.child() = Some(process::spawn(command).map_err(Error::io(doing))?);
        Ok(())
    }

    fn place(&self) -> Place {
        Place {
            port: self.port(),
            folder: self.folder.clone(),
            data: self.folder.join(&self.launch.name),
            log: self.log(),
        }
    }

    async fn wait_answering(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.reap()? {
                return Err(Error::server_ended(self.name(), status, &self.log()));
            }
            let last = match self.launch.program.probe(self.port()).await {
                Ok(()) => return Ok(()),
                Err(error) => error.to_string(),
            };
            if started.elapsed() > ANSWER_BOUND {
                let what = format!("{} to answer", self.name());
                return Err(Error::TimedOut { what, bound_s: ANSWER_BOUND.as_secs(), last });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn reap(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child();
        let Some(running) = child.as_mut() else { return Ok(None) };
        let status = running.try_wait().map_err(Error::io(format!("wait for {}", self.name())))?;
        if status.is_some() {
            *child = None;
        }
        Ok(status)
    }

    /// Kills the server's process at once (SIGKILL) and waits until it has ended.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(mut child) = self.child().take() else {
            return Err(self.wrong_state("kill", "is not running"));
        };
        child
            .kill()
            .and_then(|()| child.wait())
            .map(|_| ())
            .map_err(Error::io(format!("kill {}", self.name())))
    }

    /// Asks the server's process to end (SIGTERM), as the system does when it shuts down, and waits until it has
    /// ended.
    pub(crate) async fn terminate(&self) -> Result<()> {
        self.signal("end", Signal::TERM)?;
        let started = Instant::now();
        while self.child().is_some() && self.reap()?.is_none() {
            if started.elapsed() > END_BOUND {
                let (what, last) = (format!("{} to end", self.name()), "it runs still".into());
                return Err(Error::TimedOut { what, bound_s: END_BOUND.as_secs(), last });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Suspends the server's process (SIGSTOP): its connections stay open and silent.
    pub(crate) fn stop(&self) -> Result<()> {
        self.signal("stop", Signal::STOP)
    }

    /// Resumes the server's suspended process (SIGCONT).
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal("continue", Signal::CONT)
    }

    fn signal(&self, action: &'static str, signal: Signal) -> Result<()> {
        let sent = match self.process() {
            Some(id) => {
                id.signal(signal).map_err(Error::io(format!("{action} {}", self.name())))?
            }
            None => false,
        };
        if sent { Ok(()) } else { Err(self.wrong_state(action, "is not running")) }
    }

    fn wrong_state(&self, action: &'static str, state: &'static str) -> Error {
        Error::WrongState { action, node: self.name().to_owned(), state }
    }

    /// Returns the identity of the server's process, or `None` if it was killed or has ended.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        let pid = self.child().as_ref()?.id();
        ProcessId::of(pid)
    }

    /// Returns the present state of the server's process.
    pub(crate) fn liveness(&self) -> Liveness {
        self.process().map_or(Liveness::Gone, ProcessId::liveness)
    }

    /// Returns the server's name in its cluster.
    pub(crate) fn name(&self) -> &str {
        &self.launch.name
    }

    /// Returns the socket address on which the server accepts clients, also while it is down.
    pub(crate) fn socket(&self) -> SocketAddr {
        let own = |port: &Port| SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let fixed = self.launch.program.fixed_address();
        fixed.or(self.port.as_ref().map(own)).expect("a port of its own, or its cluster's")
    }

    /// Returns the port on which the server accepts clients, also while it is down.
    pub(crate) fn port(&self) -> u16 {
        self.socket().port()
    }

    /// Returns the address on which the server accepts clients as `host:port`, for connection strings.
    pub(crate) fn address(&self) -> String {
        self.socket().to_string()
    }

    /// Returns the path of the server's log file.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.launch.name))
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A panic in another thread must not prevent `drop` from killing the process.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child().take() {
            // Killing fails only if the process has ended, which is the aim.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

//! Starting a supervisor in the background, and ending it.
//!
//! The launcher holds the supervisor's standard input and output. The supervisor reports on its output that the
//! testbed is ready, or why it is not. The launcher then writes a confirmation to the supervisor's input. If the
//! input ends before that, the launcher is gone and no user knows of the testbed, so the supervisor ends everything
//! again.

use std::io::{BufRead, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::cluster::valid_name;
use crate::content::ContentSpec;
use crate::error::{Error, Result};
use crate::process::Liveness;
use crate::supervisor::registry::{Registry, RegistryEntry};

/// Time allowed for a testbed to be ready after its start; each step of the start has a shorter limit.
const READY_BOUND: Duration = Duration::from_secs(600);
/// Time allowed for a supervisor and its servers to end after a signal, or after a failed start.
const END_BOUND: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(25);
const STAY: &str = "stay";

/// The only message that a supervisor writes to its standard output: the start succeeded or failed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Report {
    Ready(Box<RegistryEntry>),
    Failed(String),
}

/// Starts the testbed of `spec` in the background by `command` (a program that calls [`supervise_launched`] with the
/// same `spec`), waits until it is ready, and returns its registry entry.
///
/// If the returned future is dropped before that, the supervisor ends everything by itself.
#[crate::boxed]
pub async fn up(
    spec: &ContentSpec,
    registry: &Registry,
    command: Command,
) -> Result<RegistryEntry> {
    let name = spec.name();
    if !valid_name(name) {
        return Err(Error::BadName { name: name.to_owned() });
    }
    // The supervisor decides this under the lock; the check here only avoids a useless start.
    if let Some(standing) = registry.find(name)?
        && standing.supervisor.liveness() != Liveness::Gone
    {
        return Err(Error::NameTaken { name: name.to_owned(), pid: standing.supervisor.pid });
    }
    let mut supervisor = start(name, registry, command)?;
    let reported = timeout(READY_BOUND, report(&mut supervisor)).await;
    let failed = |reason: String| Error::Supervisor { name: name.to_owned(), reason };
    let outcome = match reported {
        Ok(Ok(Report::Ready(standing))) => stay(&mut supervisor).await.map(|()| *standing),
        Ok(Ok(Report::Failed(reason))) => Err(reason),
        Ok(Err(error)) => {
            Err(format!("its supervisor ended early ({error}): {}", tail(name, registry)))
        }
        Err(_) => Err(format!("it was not ready within {} s", READY_BOUND.as_secs())),
    };
    if outcome.is_err() {
        // Its input ends here, so the supervisor ends its servers.
        drop(supervisor.stdin.take());
        let _ = timeout(END_BOUND, supervisor.wait()).await;
        registry.remove_unclaimed_log(name)?;
    }
    outcome.map_err(failed)
}

async fn stay(supervisor: &mut Child) -> Result<(), String> {
    let mut input = supervisor.stdin.take().expect("the input is a pipe");
    let told = input.write_all(format!("{STAY}\n").as_bytes()).await;
    told.map_err(|error| format!("it ended as soon as it was ready: {error}"))
}

fn tail(name: &str, registry: &Registry) -> String {
    const LINES: usize = 12;
    let content = std::fs::read_to_string(registry.log(name)).unwrap_or_default();
    let lines: Vec<&str> = content.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn start(name: &str, registry: &Registry, mut command: Command) -> Result<Child> {
    let doing = || format!("start the supervisor of {name}");
    std::fs::create_dir_all(registry.folder()).map_err(Error::io(doing()))?;
    let mut options = std::fs::OpenOptions::new();
    let log = options.create(true).append(true).mode(0o600).open(registry.log(name));
    let log = log.map_err(Error::io(doing()))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    command.spawn().map_err(Error::io(doing()))
}

async fn report(supervisor: &mut Child) -> std::io::Result<Report> {
    let output = supervisor.stdout.take().expect("the output is a pipe");
    let mut line = String::new();
    if BufReader::new(output).read_line(&mut line).await? == 0 {
        let status: ExitStatus = supervisor.wait().await?;
        return Err(std::io::Error::other(status.to_string()));
    }
    Ok(serde_json::from_str(&line)?)
}

/// Runs the testbed of `spec` until `stop` completes, or until the launcher ends before it has read that the testbed
/// is ready. It is the supervisor's side of [`up`].
///
/// Call it in a separate process: it leaves the caller's session and uses standard input and output for the launcher.
pub async fn supervise_launched(
    spec: ContentSpec,
    registry: &Registry,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    // This fails only for the leader of a process group, which then has no terminal to leave.
    let _ = rustix::process::setsid();
    let abandoned = watch_launcher();
    let ended = async {
        tokio::select! {
            () = stop => {}
            _ = abandoned => {}
        }
    };
    let ready = |standing: &RegistryEntry| send_report(&Report::Ready(Box::new(standing.clone())));
    let kept = super::supervise(spec, registry, ready, ended).await;
    if let Err(error) = &kept {
        // The launcher may have ended; then the message has no receiver.
        let _ = send_report(&Report::Failed(error.to_string()));
    }
    kept
}

fn send_report(report: &Report) -> Result<()> {
    let mut line = serde_json::to_vec(report).map_err(|error| Error::io("report")(error.into()))?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    let said = output.write_all(&line).and_then(|()| output.flush());
    said.map_err(Error::io("tell the launcher that the testbed is ready"))
}

/// Completes when standard input ends without the launcher's confirmation; never completes after the confirmation.
fn watch_launcher() -> impl Future<Output = ()> {
    let (gone, told) = oneshot::channel::<()>();
    // A thread, because a runtime that ends waits for its reads of standard input.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.is_err() || line.trim_end() != STAY {
            // A receiver that is gone has ended already.
            let _ = gone.send(());
        }
    });
    async move {
        // The sender is dropped unused after the confirmation.
        if told.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How [`down`] ended a testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// The supervisor ended its servers and removed its files, on request.
    Orderly,
    /// The supervisor did not end in time and was killed; [`down`] removed its remains.
    Killed,
    /// The supervisor had already died; [`down`] removed its remains.
    Removed,
}

/// Ends the testbed named `name`, and waits until its processes, folders and registry entry are gone.
#[crate::boxed]
pub async fn down(name: &str, registry: &Registry) -> Result<Ended> {
    let standing = registry.get(name)?;
    let signal = |signal| {
        let sent = standing.supervisor.signal(signal);
        sent.map_err(Error::io(format!("signal the supervisor of {name}")))
    };
    let mut ended = Ended::Orderly;
    if !signal(Signal::TERM)? {
        ended = Ended::Removed;
    } else if !gone(&standing, END_BOUND).await {
        ended = Ended::Killed;
        signal(Signal::KILL)?;
        if !gone(&standing, END_BOUND).await {
            let reason = format!("its process {} cannot be killed", standing.supervisor.pid);
            return Err(Error::Supervisor { name: name.to_owned(), reason });
        }
    }
    registry.remove_dead(&standing)?;
    Ok(ended)
}

async fn gone(standing: &RegistryEntry, bound: Duration) -> bool {
    let started = Instant::now();
    let processes = || standing.nodes.iter().filter_map(|node| node.process);
    while started.elapsed() < bound {
        let mut all = processes().chain([standing.supervisor]);
        if all.all(|process| process.liveness() == Liveness::Gone) {
            return true;
        }
        tokio::time::sleep(POLL).await;
    }
    false
}

//! The control socket of a running load: a Unix socket that only its owner can use.
//!
//! A client sends one request as a line of JSON and receives one line of JSON, a reply or
//! `{"error": …}`. A switch is answered once the new cluster has been reached and operations go
//! there, so that a cut-over hook that returns has completed its work. If the new cluster cannot be
//! reached, the load stays where it is and the hook fails.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use imago_mongo::namespace::Namespace;
use imago_workload::driver::Control;
use imago_workload::target::Target;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Maximum length of a line in either direction, in bytes; a longer one is cut off.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Maximum time for one request, including the connection to a new cluster.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum time for a load to end after a stop was requested: operations in progress have their own deadline, and the
/// history is closed after them.
const ENDS_WITHIN: Duration = Duration::from_secs(180);
const ENDED_POLL: Duration = Duration::from_millis(20);

/// Maximum number of requests that are handled at once; further ones wait.
const CLIENTS_MAX: usize = 16;

/// A request to a running load through its control socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Send all further operations to the cluster at `uri`, and there to the collection `ns`; `None`: the same
    /// collection as before.
    Switch { uri: String, ns: Option<Namespace> },
    /// Send no further operations, and end the load.
    Stop,
    /// Report the measurements of the load so far.
    Status,
}

fn failed(what: String, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(Exit::Failed, "control", what).because(cause)
}

/// A bound control socket that does not serve yet. The socket file is removed when this is dropped.
pub(super) struct Listener {
    listener: UnixListener,
    path: Removed,
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Another process may have removed the file already, which is harmless.
        drop(std::fs::remove_file(&self.0));
    }
}

impl Listener {
    /// Binds a control socket at the path, for its owner alone. Replaces a socket that a dead process left there.
    pub(super) fn bind(path: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot listen on the control socket {}", path.display());
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            let busy = Failure::new(Exit::Precondition, "control", what());
            return Err(busy.help("another load listens there: stop it, or use another path"));
        }
        remove_stale(path).map_err(|cause| failed(what(), &cause))?;
        let listener = UnixListener::bind(path).map_err(|cause| failed(what(), &cause))?;
        let path = Removed(path.to_owned());
        // Only the owner has access: a request carries credentials, and controls this user's load.
        std::fs::set_permissions(&path.0, std::fs::Permissions::from_mode(0o600))
            .map_err(|cause| failed(what(), &cause))?;
        Ok(Self { listener, path })
    }

    /// Answers requests until the returned handle is dropped. `connect` connects to another cluster for a switch.
    pub(super) fn serve<T: Target>(
        self,
        control: Control<T>,
        connect: Connect<T>,
    ) -> AbortOnDropHandle<()> {
        let steered = Arc::new(Steered { control, connect, switching: Mutex::new(()) });
        AbortOnDropHandle::new(tokio::spawn(async move {
            let Self { listener, path } = self;
            let mut answering = JoinSet::new();
            loop {
                if answering.len() >= CLIENTS_MAX {
                    answering.join_next().await;
                }
                match listener.accept().await {
                    Ok((stream, _)) => answering.spawn(attend(stream, Arc::clone(&steered))),
                    Err(cause) => {
                        tracing::warn!(%cause, path = %path.0.display(), "control socket failed");
                        return;
                    }
                };
            }
        }))
    }
}

/// A function that connects to the cluster at a connection string, and to another collection there if one is given.
pub(super) type Connect<T> = Box<dyn Fn(String, Option<Namespace>) -> Connecting<T> + Send + Sync>;
/// A future that returns the new target of a load, or the reason why it cannot be reached.
pub(super) type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// The load that a control socket controls.
struct Steered<T> {
    control: Control<T>,
    connect: Connect<T>,
    /// The lock that is held during a switch to another cluster, so that switches are serialized.
    switching: Mutex<()>,
}

async fn attend<T: Target>(stream: UnixStream, steered: Arc<Steered<T>>) {
    match tokio::time::timeout(PATIENCE, Box::pin(answer(stream, &steered))).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => tracing::warn!(%cause, "a control request was not answered"),
        Err(_) => tracing::warn!("a control request took longer than {PATIENCE:?}"),
    }
}

/// Removes the socket file at `path`, which has no listener; a file of another kind is an error.
fn remove_stale(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt as _;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "the path exists and is not a socket",
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

async fn answer<T: Target>(stream: UnixStream, steered: &Steered<T>) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read).take(LINE_BYTES_MAX).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => handle(request, steered).await,
        Err(error) => json!({ "error": format!("the request cannot be understood: {error}") }),
    };
    write.write_all(format!("{answer}\n").as_bytes()).await
}

async fn handle<T: Target>(request: Request, steered: &Steered<T>) -> Value {
    let control = &steered.control;
    match request {
        Request::Switch { uri, ns } => {
            let _alone = steered.switching.lock().await;
            match (steered.connect)(uri, ns).await {
                Ok(target) => {
                    let at_ms = control.switch(Arc::new(target));
                    json!({ "switched_at_ms": at_ms, "target": control.snapshot().target })
                }
                Err(error) => json!({ "error": error }),
            }
        }
        Request::Stop => {
            control.stop();
            json!({ "stopping": true })
        }
        Request::Status => serde_json::to_value(control.snapshot()).unwrap_or_else(
            |error| json!({ "error": format!("the state cannot be written as JSON: {error}") }),
        ),
    }
}

/// Sends a request to the load whose control socket is at `path`, and prints the reply.
pub(super) async fn ask(path: &Path, request: &Request, context: &Context) -> Result<(), Failure> {
    let answer = answered(path, request).await?;
    context.output.result(&answer, |answer| format!("{answer:#}"))
}

/// Stops the load whose control socket is at `path`, and returns when its history is closed, so that `imago load
/// check` can read it.
pub(super) async fn stop(path: &Path, context: &Context) -> Result<(), Failure> {
    answered(path, &Request::Stop).await?;
    // The socket is removed last; one that a dead process left behind has no listener.
    let ended = async {
        for poll in 1_u64.. {
            tokio::time::sleep(ENDED_POLL).await;
            let is_dead = poll % 50 == 0 && UnixStream::connect(path).await.is_err();
            if is_dead || !path.exists() {
                return;
            }
        }
    };
    if tokio::time::timeout(ENDS_WITHIN, ended).await.is_err() {
        let what = format!("the load was stopped, and has not ended within {ENDS_WITHIN:?}");
        let help = "its last operations still wait for the cluster";
        return Err(Failure::new(Exit::Failed, "control", what).help(help));
    }
    context.output.result(&json!({ "stopped": true }), |_| "The load has ended.\n".to_owned())
}

async fn answered(path: &Path, request: &Request) -> Result<Value, Failure> {
    let what = || format!("the load at the control socket {} did not answer", path.display());
    let exchanged = tokio::time::timeout(PATIENCE, exchange(path, request));
    let answer = match exchanged.await {
        Ok(answer) => answer.map_err(|cause| {
            failed(what(), &cause).help("is the load still running, with this --control?")
        })?,
        Err(_) => {
            let late = format!("{} within {PATIENCE:?}", what());
            return Err(Failure::new(Exit::Failed, "control", late));
        }
    };
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => {
            Err(Failure::new(Exit::Failed, "control", format!("the load refused: {error}")))
        }
        None => Ok(answer),
    }
}

async fn exchange(path: &Path, request: &Request) -> std::io::Result<Value> {
    let (read, mut write) = UnixStream::connect(path).await?.into_split();
    write.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(read).take(LINE_BYTES_MAX).read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

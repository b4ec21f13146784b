//! The control socket of a running load: a Unix socket that only its owner may use.
//!
//! A client sends one request as a line of JSON and gets one line of JSON back, an answer or
//! `{"error": …}`. A switch is answered once the new cluster has been reached and operations go
//! there, so that a cut-over hook that returns has done its work; when the new cluster cannot be
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

/// The longest line in either direction.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Deadline of a request, connecting to a new cluster included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests that are answered at once; further ones wait.
const CLIENTS_MAX: usize = 16;

/// A request to a running load.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Send operations there from now on.
    Switch { uri: String, ns: Option<Namespace> },
    /// Send no more operations.
    Stop,
    /// Report the measurements so far.
    Status,
}

fn failed(what: String, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(Exit::Failed, "control", what).because(cause)
}

/// A socket without a server yet. It is removed when this is dropped.
pub(super) struct Listener {
    listener: UnixListener,
    path: Removed,
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Another one may have removed it already; nothing depends on it.
        drop(std::fs::remove_file(&self.0));
    }
}

impl Listener {
    /// Listens at the path. A socket that a dead process left there is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot listen on the control socket {}", path.display());
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            let busy = Failure::new(Exit::Precondition, "control", what());
            return Err(busy.help("another load listens there: stop it, or use another path"));
        }
        remove_stale(path).map_err(|cause| failed(what(), &cause))?;
        let listener = UnixListener::bind(path).map_err(|cause| failed(what(), &cause))?;
        let path = Removed(path.to_owned());
        // A request carries credentials, and steers what this user's load does.
        std::fs::set_permissions(&path.0, std::fs::Permissions::from_mode(0o600))
            .map_err(|cause| failed(what(), &cause))?;
        Ok(Self { listener, path })
    }

    /// Answers requests until the handle is dropped.
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

/// Connects to another cluster, and to another collection there if it is named.
pub(super) type Connect<T> = Box<dyn Fn(String, Option<Namespace>) -> Connecting<T> + Send + Sync>;
/// The new target, or why there is none.
pub(super) type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// The load behind the socket.
struct Steered<T> {
    control: Control<T>,
    connect: Connect<T>,
    /// Held by a switch: two at once would have no order.
    switching: Mutex<()>,
}

async fn attend<T: Target>(stream: UnixStream, steered: Arc<Steered<T>>) {
    match tokio::time::timeout(PATIENCE, Box::pin(answer(stream, &steered))).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => tracing::warn!(%cause, "a control request was not answered"),
        Err(_) => tracing::warn!("a control request took longer than {PATIENCE:?}"),
    }
}

/// Removes a socket without a listener, and nothing else.
fn remove_stale(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt as _;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "a file that is no socket is there",
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

/// Sends a request to a running load and prints the answer.
pub(super) async fn ask(path: &Path, request: &Request, context: &Context) -> Result<(), Failure> {
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
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        return Err(Failure::new(Exit::Failed, "control", format!("the load refused: {error}")));
    }
    context.output.result(&answer, |answer| format!("{answer:#}"))
}

async fn exchange(path: &Path, request: &Request) -> std::io::Result<Value> {
    let (read, mut write) = UnixStream::connect(path).await?.into_split();
    write.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(read).take(LINE_BYTES_MAX).read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

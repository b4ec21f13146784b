//! Fault injection through a supervisor: one request and one reply, each a line of JSON, on a Unix socket in the
//! testbed's folder, to which only its user has access.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::content::Content;
use crate::error::{Error, Result};
use crate::supervisor::registry::RegistryEntry;

/// Time allowed for the supervisor's reply. It is longer than the time limits of a restart: start of the node, and
/// wait for its replica set.
const ANSWER_BOUND: Duration = Duration::from_secs(300);
const REQUEST_BOUND: Duration = Duration::from_secs(10);
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// A fault to inject into a node of a testbed, or its reversal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Kills the node at once (SIGKILL).
    Kill,
    /// Asks the node to end (SIGTERM).
    Terminate,
    /// Suspends the node (SIGSTOP).
    Stop,
    /// Resumes the suspended node (SIGCONT).
    Cont,
    /// Starts the killed node again, on the same port and data.
    Restart,
    /// Makes the primary of the node's replica set step down, or a replica take over from the node, a Redis master.
    StepDown,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    fault: Fault,
    node: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done(String),
    Failed(String),
}

/// Asks the supervisor of the testbed with the registry entry `standing` to inject `fault` into the node named
/// `node`. Returns the outcome as a sentence.
#[crate::boxed]
pub async fn inject(standing: &RegistryEntry, fault: Fault, node: &str) -> Result<String> {
    let refused =
        |reason: String| Error::Supervisor { name: standing.spec.name().to_owned(), reason };
    let folder = standing.folder.as_ref().ok_or_else(|| refused("it is still starting".into()))?;
    let exchange = async {
        let mut stream = UnixStream::connect(folder.join("control.sock")).await?;
        write_line(&mut stream, &Request { fault, node: node.to_owned() }).await?;
        read_line::<Answer>(&mut stream).await
    };
    match timeout(ANSWER_BOUND, exchange).await {
        Ok(Ok(Answer::Done(told))) => Ok(told),
        Ok(Ok(Answer::Failed(reason))) => Err(refused(reason)),
        Ok(Err(error)) => Err(refused(format!("it cannot be asked: {error}"))),
        Err(_) => Err(refused(format!("no answer within {} s", ANSWER_BOUND.as_secs()))),
    }
}

/// Reads one request from `stream`, injects its fault into `content`, calls `record` to persist the new state of the
/// nodes, and replies. The registry is up to date when the reply arrives.
pub(super) async fn answer(
    content: &Content,
    mut stream: UnixStream,
    record: impl FnOnce() -> Result<()>,
) -> std::io::Result<()> {
    let request: Request = timeout(REQUEST_BOUND, read_line(&mut stream)).await??;
    let performed = perform(content, &request).await;
    let answer = match (performed, record()) {
        (Ok(told), Ok(())) => Answer::Done(told),
        (Err(error), _) | (_, Err(error)) => Answer::Failed(error.to_string()),
    };
    timeout(REQUEST_BOUND, write_line(&mut stream, &answer)).await?
}

async fn perform(content: &Content, request: &Request) -> Result<String> {
    let node = &request.node;
    match request.fault {
        Fault::Kill => content.kill(node).map(|()| format!("{node} is killed")),
        Fault::Terminate => content.terminate(node).await.map(|()| format!("{node} has ended")),
        Fault::Stop => content.stop(node).map(|()| format!("{node} is stopped")),
        Fault::Cont => content.resume(node).map(|()| format!("{node} goes on")),
        Fault::Restart => content.restart(node).await.map(|()| format!("{node} is up again")),
        Fault::StepDown => {
            let (set, new) = content.step_down(node).await?;
            Ok(match content {
                Content::Redis(_) => format!("{new} has the place of {set} now"),
                _ => format!("{new} is the primary of {set} now"),
            })
        }
    }
}

async fn write_line(stream: &mut UnixStream, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

async fn read_line<T: for<'a> Deserialize<'a>>(stream: &mut UnixStream) -> std::io::Result<T> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

//! Asking a supervisor to inject its servers: one request and one answer, each a line of JSON, on a
//! socket in the testbed's folder, which only its user can reach.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::content::Content;
use crate::error::{Error, Result};
use crate::supervisor::registry::Standing;

/// A restart waits for its replica set to settle, which is bounded too; this is longer.
const ANSWER_BOUND: Duration = Duration::from_secs(300);
const REQUEST_BOUND: Duration = Duration::from_secs(10);
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// A fault of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Kill it at once (kill -9).
    Kill,
    /// Ask it to end (SIGTERM).
    Terminate,
    /// Stop it where it is (SIGSTOP).
    Stop,
    /// Let it go on (SIGCONT).
    Cont,
    /// Start it again after a kill, on the same port and data.
    Restart,
    /// Have the primary of its replica set step down, or a replica of Redis take its master's place.
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

/// Has the supervisor of `standing` do `fault` to `node`; returns the outcome, in words.
pub async fn inject(standing: &Standing, fault: Fault, node: &str) -> Result<String> {
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

/// Reads one request from `stream`, does it, has `record` write down the changes, and answers: the
/// registry is up to date when the answer arrives.
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

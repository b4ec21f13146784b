//! One command to one server over a separate connection, without the driver.
//!
//! The driver runs monitors on the runtime that created it and hides a node's silence behind server selection. A
//! probe that runs a few times a second needs neither. The MongoDB message is an OP_MSG with one body section, as in
//! the documentation of the wire protocol; the probes of other servers are in [`crate::redis`] and [`crate::kafka`].

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bson::{Document, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{Error, Result};

const OP_MSG: i32 = 2013;
const HEADER_BYTES: usize = 16;
const REPLY_BYTES_MAX: usize = 48 * 1024 * 1024;

/// Runs `command` in the database `database` on the MongoDB server at `port` of 127.0.0.1, without credentials, and
/// returns the reply. A reply with `ok: 0`, or none within `bound`, is an error.
pub(crate) async fn run(
    port: u16,
    database: &str,
    command: Document,
    bound: Duration,
) -> Result<Document> {
    let name = command.keys().next().cloned().unwrap_or_default();
    let mut command = command;
    command.insert("$db", database);
    let answer = within(local(port), &name, bound, exchange(port, &command)).await?;
    if answer.get("ok").and_then(as_f64) == Some(1.0) {
        return Ok(answer);
    }
    Err(Error::Refused {
        node: format!("127.0.0.1:{port}"),
        command: name,
        message: answer.get_str("errmsg").unwrap_or("no message").to_owned(),
        code: answer.get_i32("code").unwrap_or(0),
    })
}

/// Waits at most `bound` for `exchange`, which sends `command` to the server at `node`, and returns its result.
pub(crate) async fn within<T>(
    node: SocketAddr,
    command: &str,
    bound: Duration,
    exchange: impl Future<Output = std::io::Result<T>>,
) -> Result<T> {
    let reason = match timeout(bound, exchange).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} ms", bound.as_millis()),
    };
    Err(Error::Unanswered { node: node.to_string(), command: command.to_owned(), reason })
}

/// Returns the socket address of `port` on 127.0.0.1.
pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Opens a TCP connection to the server at `node`.
pub(crate) async fn connect(node: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect(node).await
}

/// Returns the error for a reply that is invalid because of `what`.
pub(crate) fn invalid(what: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what)
}

fn as_f64(value: &bson::Bson) -> Option<f64> {
    match value {
        bson::Bson::Double(value) => Some(*value),
        bson::Bson::Int32(value) => Some(f64::from(*value)),
        _ => None,
    }
}

async fn exchange(port: u16, command: &Document) -> std::io::Result<Document> {
    let mut stream = connect(local(port)).await?;
    let body = command.to_vec().map_err(|error| invalid(error.to_string()))?;
    let length = i32::try_from(HEADER_BYTES + 5 + body.len())
        .map_err(|_| invalid("the command is too long".into()))?;
    let mut message = Vec::with_capacity(HEADER_BYTES + 5 + body.len());
    // Length, request id, response to, opcode, flags; then a section of kind 0.
    for field in [length, 1, 0, OP_MSG, 0] {
        message.extend_from_slice(&field.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(&body);
    stream.write_all(&message).await?;

    let length = usize::try_from(stream.read_i32_le().await?).unwrap_or(0);
    if !(HEADER_BYTES + 5..=REPLY_BYTES_MAX).contains(&length) {
        return Err(invalid(format!("a reply of {length} bytes")));
    }
    let mut rest = vec![0; length - 4];
    stream.read_exact(&mut rest).await?;
    // After the length: two ids, the opcode, the flags, the kind of the section.
    let opcode = rest.get(8..12).and_then(|bytes| bytes.try_into().ok()).map(i32::from_le_bytes);
    let body = rest.get(17..).filter(|_| opcode == Some(OP_MSG) && rest[16] == 0);
    let body = body.ok_or_else(|| invalid("a reply that is not one document".into()))?;
    Document::from_reader(body).map_err(|error| invalid(error.to_string()))
}

/// State of a MongoDB server according to its reply to `hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// True if the server is the primary and accepts writes, or is a router.
    pub(crate) primary: bool,
    /// True if the server is a secondary.
    pub(crate) secondary: bool,
    /// Address of the primary according to the server, as `host:port`; `None` if it knows none.
    pub(crate) primary_address: Option<String>,
}

/// Sends `hello` to the MongoDB server at `port` of 127.0.0.1; fails if there is no reply within `bound`.
pub(crate) async fn hello(port: u16, bound: Duration) -> Result<Hello> {
    let answer = run(port, "admin", doc! { "hello": 1 }, bound).await?;
    Ok(Hello {
        primary: answer.get_bool("isWritablePrimary").unwrap_or(false),
        secondary: answer.get_bool("secondary").unwrap_or(false),
        primary_address: answer.get_str("primary").ok().map(str::to_owned),
    })
}

impl Hello {
    /// Returns the server's state as one word: `primary` (also for a router), `secondary` or `neither`.
    pub(crate) fn state_name(&self) -> &'static str {
        match (self.primary, self.secondary) {
            (true, _) => "primary",
            (false, true) => "secondary",
            (false, false) => "neither",
        }
    }
}

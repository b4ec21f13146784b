//! Connections from the router to the nodes.
//!
//! A connection belongs to one node and one user, and serves one command at a time. Invariant: a connection returns
//! to the pool only after a whole reply was read, so that a reply never reaches the wrong command. A command that
//! is dropped before its reply closes its connection.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Document, doc};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::answer::{Answer, Failure, code};
use super::message;
use super::scram;
use crate::User;

const CONNECT_BOUND: Duration = Duration::from_secs(5);
const IDLE_MAX: usize = 64;

/// Running time of a command after which its node is probed by `hello`, and interval between such probes.
const CHECK_AFTER: Duration = Duration::from_secs(5);

/// Documents sent in a section of their own with a command: the name of the command's field, and the documents;
/// `None` without such a section.
pub(super) type Documents<'a> = Option<(&'a str, &'a [&'a RawDocument])>;

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    next_id: i32,
}

impl Connection {
    async fn exchange(
        &mut self,
        body: &Document,
        documents: Documents<'_>,
    ) -> io::Result<RawDocumentBuf> {
        self.next_id = self.next_id.wrapping_add(1);
        message::write_command(&mut self.stream, self.next_id, body, documents).await?;
        message::read_answer(&mut self.stream).await
    }

    /// Returns true if the node has not closed the idle connection.
    fn is_open(&self) -> bool {
        let mut byte = [0];
        matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

type Key = (String, Option<String>);

/// Idle connections of the router to nodes, by address of the node and user name.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: Mutex<HashMap<Key, Vec<Connection>>>,
    keys: scram::KeyCache,
}

impl Pool {
    /// Runs the command `body`, which contains its `$db`, on the node at `address`, logged in as `login` (`None`
    /// without login), and returns the reply.
    pub(super) async fn call(
        &self,
        address: &str,
        login: Option<&Arc<User>>,
        body: &Document,
        documents: Documents<'_>,
    ) -> Result<Answer, Failure> {
        let command = body.keys().next().map_or("", String::as_str);
        let lost = |error: io::Error| Failure::unanswered(address, command, &error);
        let key = (address.to_owned(), login.map(|login| login.name.clone()));
        let mut connection = match self.take(&key) {
            Some(connection) => connection,
            None => self.open(address, login).await?,
        };
        let raw = tokio::select! {
            raw = connection.exchange(body, documents) => raw.map_err(lost)?,
            () = silence(address) => return Err(lost(io::ErrorKind::TimedOut.into())),
        };
        self.put(key, connection);
        Answer::of_server(raw)
    }

    fn take(&self, key: &Key) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = idle.get_mut(key)?;
        loop {
            let connection = connections.pop()?;
            if connection.is_open() {
                return Some(connection);
            }
        }
    }

    fn put(&self, key: Key, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = idle.entry(key).or_default();
        if connections.len() < IDLE_MAX {
            connections.push(connection);
        }
    }

    async fn open(&self, address: &str, login: Option<&Arc<User>>) -> Result<Connection, Failure> {
        // No command was sent yet, so it was certainly not executed.
        let refused = |error: io::Error| {
            Failure::new(code::HOST_UNREACHABLE, format!("cannot connect to {address}: {error}"))
        };
        let connecting = timeout(CONNECT_BOUND, TcpStream::connect(address)).await;
        let stream = connecting
            .map_err(|_| refused(io::ErrorKind::TimedOut.into()))
            .and_then(|connected| connected.map_err(refused))?;
        stream.set_nodelay(true).map_err(refused)?;
        let mut connection = Connection { stream, next_id: 0 };
        if let Some(login) = login {
            let authenticating = self.authenticate(&mut connection, login);
            let done = timeout(CONNECT_BOUND * 3, authenticating).await;
            done.unwrap_or_else(|_| Err(refused(io::ErrorKind::TimedOut.into())))
                .map_err(|failure| failure.context(&format!("logging in at {address}")))?;
        }
        Ok(connection)
    }

    async fn authenticate(
        &self,
        connection: &mut Connection,
        login: &Arc<User>,
    ) -> Result<(), Failure> {
        let lost = |error: io::Error| Failure::new(code::HOST_UNREACHABLE, error.to_string());
        let exchange = scram::ClientExchange::start(login)?;
        let start = doc! {
            "saslStart": 1, "mechanism": scram::MECHANISM, "payload": exchange.first(),
            "options": { "skipEmptyExchange": true }, "$db": "admin",
        };
        let challenge = connection.exchange(&start, None).await.map_err(lost)?;
        let challenge = Answer::of_server(challenge)?.document()?;
        let proof = exchange.answer(scram::payload(&challenge)?, &self.keys)?;
        let proceed = doc! {
            "saslContinue": 1, "conversationId": challenge.get("conversationId").cloned(),
            "payload": proof.message(), "$db": "admin",
        };
        let outcome = connection.exchange(&proceed, None).await.map_err(lost)?;
        let outcome = Answer::of_server(outcome)?.document()?;
        proof.check(scram::payload(&outcome)?)
    }
}

/// Completes when the node at `address` does not reply to a `hello`; probes are sent at intervals of [`CHECK_AFTER`].
/// A command may take long, but a node that is suspended or disconnected never replies.
async fn silence(address: &str) {
    loop {
        sleep(CHECK_AFTER).await;
        if !matches!(timeout(CONNECT_BOUND, say_hello(address)).await, Ok(Ok(_))) {
            return;
        }
    }
}

async fn say_hello(address: &str) -> io::Result<RawDocumentBuf> {
    let mut connection = Connection { stream: TcpStream::connect(address).await?, next_id: 0 };
    connection.exchange(&doc! { "hello": 1, "$db": "admin" }, None).await
}

//! One client's connection: requests and their replies, one at a time.
//!
//! A client that disconnects ends its requests: the connection to the server is dropped with the pending command,
//! and the server notices.

use std::io;
use std::sync::Arc;

use bson::raw::{CString, RawDocumentBuf};
use bson::{Document, doc};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use super::answer::{Answer, Failure, code};
use super::caller::Caller;
use super::core::{Core, database_of};
use super::message::{self, Request};
use super::scram::{self, ServerExchange};
use super::{dispatch, hello};

/// Commands that a client may run before it has logged in.
const OPEN_COMMANDS: [&str; 9] = [
    "hello",
    "isMaster",
    "ismaster",
    "ping",
    "buildInfo",
    "buildinfo",
    "saslStart",
    "saslContinue",
    "whatsmyuri",
];

/// A client's connection to the router, and the state of its login.
pub(super) struct Connection {
    caller: Caller,
    peer: String,
    login: Option<ServerExchange>,
    handed: u32,
}

impl Connection {
    /// Reads and answers the requests of the client at `stream` until it disconnects or violates the protocol.
    pub(super) async fn serve(core: Arc<Core>, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.to_string();
        let connection_number = core.next_connection_number();
        let caller = Caller { core, user: None, connection_number };
        let mut connection = Self { caller, peer, login: None, handed: 0 };
        let (mut requests, mut answers) = stream.into_split();
        while let Some(request) = message::read_request(&mut requests).await? {
            let (id, legacy, silent) = (request.id, request.legacy, request.more_to_come);
            let answer = tokio::select! {
                answer = connection.answer(request) => answer,
                () = departure(&mut requests) => return Ok(()),
            };
            if !silent {
                message::write_answer(&mut answers, id, legacy, &answer).await?;
            }
        }
        Ok(())
    }

    async fn answer(&mut self, request: Request) -> RawDocumentBuf {
        if let Ok(gossip) = request.body.get_document("$clusterTime") {
            self.caller.core.clock.advance(gossip);
        }
        let name = request.name().to_owned();
        let retried =
            request.body.contains_key("txnNumber") && !request.body.contains_key("autocommit");
        let outcome = self.run(request).await;
        let outcome = outcome.map_err(|failure| {
            let ends = matches!(&*name, "commitTransaction" | "abortTransaction");
            if (retried || ends) && code::is_retryable(failure.code()) {
                failure.labelled("RetryableWriteError")
            } else {
                failure
            }
        });
        self.finish(outcome)
    }

    /// Converts the outcome of a command to the reply for the client, and adds the cluster time and operation time,
    /// which make causally consistent reads possible.
    fn finish(&self, outcome: Result<Answer, Failure>) -> RawDocumentBuf {
        let (mut answer, operation_time) = match outcome {
            Ok(answer) => (answer.for_client(), answer.operation_time),
            Err(failure) => (
                RawDocumentBuf::try_from(failure.body())
                    .expect("a failure's body was a document before"),
                None,
            ),
        };
        let name = |text: &str| CString::try_from(text).expect("the name has no zero byte");
        if let Some((now, gossip)) = self.caller.core.clock.now() {
            answer.append(name("operationTime"), operation_time.unwrap_or(now));
            if let Ok(gossip) = RawDocumentBuf::try_from(&gossip) {
                answer.append(name("$clusterTime"), gossip);
            }
        }
        answer
    }

    async fn run(&mut self, request: Request) -> Result<Answer, Failure> {
        let name = request.name().to_owned();
        if hello::is_hello(&name) {
            let mechanisms = !self.caller.core.users.is_empty();
            return Answer::try_from(hello::answer(
                &request.body,
                self.caller.connection_number,
                mechanisms,
            ));
        }
        match &*name {
            "ping" => return Answer::try_from(doc! { "ok": 1.0 }),
            "whatsmyuri" => return Answer::try_from(doc! { "you": &self.peer, "ok": 1.0 }),
            "saslStart" => return self.login_start(&request.body),
            "saslContinue" => return self.login_continue(&request.body),
            "logout" => {
                self.caller.user = None;
                return Answer::try_from(doc! { "ok": 1.0 });
            }
            _ => {}
        }
        let closed = !self.caller.core.users.is_empty() && self.caller.user.is_none();
        if closed && !OPEN_COMMANDS.contains(&&*name) {
            let message = format!("command {name} requires authentication");
            return Err(Failure::new(code::UNAUTHORIZED, message));
        }
        dispatch::run(&self.caller, request).await
    }

    fn login_start(&mut self, body: &Document) -> Result<Answer, Failure> {
        let mechanism = body.get_str("mechanism").unwrap_or_default();
        if mechanism != scram::MECHANISM {
            let message = format!(
                "Received authentication for mechanism {mechanism}, which is not enabled: the \
                 testbed's router takes {} only",
                scram::MECHANISM
            );
            return Err(Failure::new(code::MECHANISM_UNAVAILABLE, message));
        }
        if database_of(body) != "admin" {
            let message = "Authentication failed: the testbed's users are in the database admin";
            return Err(Failure::new(code::AUTHENTICATION_FAILED, message));
        }
        let core = &self.caller.core;
        let (exchange, challenge) =
            ServerExchange::challenge(scram::payload(body)?, &core.users, &core.keys)?;
        self.login = Some(exchange);
        self.handed += 1;
        self.step(challenge, false)
    }

    fn login_continue(&mut self, body: &Document) -> Result<Answer, Failure> {
        let Some(exchange) = self.login.take() else {
            // A driver that does not skip the empty exchange ends the conversation with it.
            if self.caller.user.is_some() && scram::payload(body)?.is_empty() {
                return self.step(bson::Bson::String(String::new()), true);
            }
            let message = "Authentication failed: no conversation was begun";
            return Err(Failure::new(code::AUTHENTICATION_FAILED, message));
        };
        let (user, outcome) = exchange.verify(scram::payload(body)?)?;
        self.caller.user = Some(user);
        self.step(outcome, true)
    }

    fn step(&self, payload: bson::Bson, done: bool) -> Result<Answer, Failure> {
        let conversation = i32::try_from(self.handed).unwrap_or(i32::MAX);
        Answer::try_from(doc! {
            "conversationId": conversation, "done": done, "payload": payload, "ok": 1.0,
        })
    }
}

/// Completes when the client has closed its side of the connection; never completes if the client has sent more data.
async fn departure(requests: &mut OwnedReadHalf) {
    let mut byte = [0];
    match requests.peek(&mut byte).await {
        Ok(0) | Err(_) => {}
        Ok(_) => std::future::pending().await,
    }
}

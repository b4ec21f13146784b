//! The connection of a session: transactions in the Redis protocol, and the meaning of their replies.

use std::net::SocketAddr;
use std::time::Duration;

use imago_workload::lists::{Element, List, Outcome, Request, Step, elements, written};
use redis::{IntoConnectionInfo as _, Pipeline, RedisConnectionInfo, RedisError, Value};

/// Timeout of an attempt to connect to the store. The store's own timeouts are shorter than all three of the client.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// Timeout of the send of transactions to the store.
const SEND_WAIT: Duration = Duration::from_secs(10);
/// Timeout of the wait for each reply of the store.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Number of lists that one transaction reads after the load.
const LISTS_AT_ONCE: usize = 1_000;
/// Element that stands for a list whose value cannot be read as a list. No client appends this element, so the check
/// reports it.
const UNREADABLE_ELEMENT: Element = Element::MAX;

/// The reason why the store gave no usable reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection or the store failed.
    #[error("the store did not answer")]
    Redis(#[from] RedisError),
    /// The reply of the store was not the requested lists; the field is the reply, as text.
    #[error("the store answered {0}, where lists were asked for")]
    Answer(String),
}

/// The connection of a session to the store.
pub struct Client {
    connection: redis::Connection,
    is_usable: bool,
}

impl Client {
    /// Connects to the store at `address`.
    ///
    /// # Errors
    /// Fails if no store answers.
    pub fn connect(address: SocketAddr) -> Result<Self, ClientError> {
        Ok(Self { connection: connect(address)?, is_usable: true })
    }

    /// Returns true if the session can continue: the connection is open, and the outcome of each transaction is
    /// known.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_usable
    }

    /// Sends transactions in one piece and receives their replies. Returns the outcome of each, and the lists that it
    /// read if it is done.
    pub fn run(&mut self, requests: &[Request]) -> Vec<(Outcome, Vec<Vec<Element>>)> {
        let sent = requests.iter().flat_map(packed).collect::<Vec<u8>>();
        // If the send failed, the store may have received a part of it.
        let mut is_open = self.connection.send_packed_command(&sent).is_ok();
        let mut told = Vec::new();
        for request in requests {
            let answer = if is_open { Some(self.answer(before(request))) } else { None };
            is_open &= answer.as_ref().is_some_and(|answer| !is_broken(answer));
            told.push(understood(request, answer));
        }
        self.is_usable = told.iter().all(|(outcome, _)| *outcome != Outcome::Unknown);
        told
    }

    /// Returns the elements of the lists numbered `0..count`. The transactions that read the lists also write to each
    /// of them, without changing it, so they see every write that was acknowledged to any client.
    ///
    /// # Errors
    /// Fails if the store does not answer, or if its reply does not have all lists.
    pub fn lists(&mut self, count: u32) -> Result<Vec<Vec<Element>>, ClientError> {
        let all: Vec<List> = (0..count).map(List).collect();
        let mut contents = Vec::new();
        for some in all.chunks(LISTS_AT_ONCE) {
            let mut pipeline = redis::pipe();
            pipeline.atomic();
            for list in some {
                pipeline.cmd("APPEND").arg(list.name()).arg("");
                pipeline.cmd("GET").arg(list.name());
            }
            self.connection.send_packed_command(&pipeline.get_packed_pipeline())?;
            match self.answer(2 * some.len() + 1)? {
                Value::Array(answers) if answers.len() == 2 * some.len() => {
                    contents.extend(answers.iter().skip(1).step_by(2).map(list));
                }
                other => return Err(ClientError::Answer(format!("{other:?}"))),
            }
        }
        Ok(contents)
    }

    /// Receives the reply that follows `before` replies, each of which only reports that a command was queued, and
    /// returns it. If one of these is an error, the last reply reports that nothing happened.
    fn answer(&mut self, before: usize) -> Result<Value, RedisError> {
        for _ in 0..before {
            let queued = self.connection.recv_response();
            if is_broken(&queued) {
                return queued;
            }
        }
        self.connection.recv_response()?.extract_error()
    }
}

/// Returns true if there is no reply, because the connection failed. An error reply is a reply.
fn is_broken(answer: &Result<Value, RedisError>) -> bool {
    answer.as_ref().is_err_and(|error| error.code().is_none())
}

fn understood(
    request: &Request,
    answer: Option<Result<Value, RedisError>>,
) -> (Outcome, Vec<Vec<Element>>) {
    let outcome = match &answer {
        Some(Ok(Value::Array(_))) => Outcome::Done,
        // EXEC replies nil if a watched key has changed: nothing happened.
        Some(Ok(Value::Nil)) => Outcome::NotDone,
        Some(Err(error)) => outcome(error),
        Some(Ok(_)) | None => Outcome::Unknown,
    };
    let answers = match answer {
        Some(Ok(Value::Array(answers))) if answers.len() == request.steps.len() => answers,
        Some(Ok(Value::Array(_))) => vec![Value::Okay; request.steps.len()],
        _ => return (outcome, Vec::new()),
    };
    let steps = request.steps.iter().zip(&answers);
    let reads = steps.filter(|(step, _)| matches!(step, Step::Read(_)));
    (outcome, reads.map(|(_, answer)| list(answer)).collect())
}

/// Opens a connection to the store at `address`, with the timeouts of this module.
pub(super) fn connect(address: SocketAddr) -> Result<redis::Connection, RedisError> {
    connect_with(address, None)
}

/// Opens a connection to the store at `address`, with the password that it asks for.
pub(super) fn connect_with(
    address: SocketAddr,
    password: Option<&str>,
) -> Result<redis::Connection, RedisError> {
    let mut info = format!("redis://{address}/").into_connection_info()?;
    if let Some(password) = password {
        info = info.set_redis_settings(RedisConnectionInfo::default().set_password(password));
    }
    let client = redis::Client::open(info)?;
    let connection = client.get_connection_with_timeout(CONNECT_WAIT)?;
    connection.set_write_timeout(Some(SEND_WAIT))?;
    connection.set_read_timeout(Some(ANSWER_WAIT))?;
    Ok(connection)
}

/// Returns the outcome of a transaction to which the store replied with this error.
pub(super) fn outcome(error: &RedisError) -> Outcome {
    let detail = error.detail().unwrap_or_default();
    match error.code() {
        Some("TRYAGAIN" | "CLUSTERDOWN") if detail.starts_with("nothing happened") => {
            Outcome::NotDone
        }
        Some("EXECABORT") => Outcome::NotDone,
        _ => Outcome::Unknown,
    }
}

fn list(answer: &Value) -> Vec<Element> {
    let read = match answer {
        Value::Nil => Some(Vec::new()),
        Value::BulkString(bytes) => elements(bytes),
        _ => None,
    };
    read.unwrap_or_else(|| vec![UNREADABLE_ELEMENT])
}

/// Returns the number of replies to a transaction that precede its last one and only report that a command was
/// queued.
fn before(request: &Request) -> usize {
    if request.is_one_command { 0 } else { request.steps.len() + 1 }
}

fn packed(request: &Request) -> Vec<u8> {
    if request.is_one_command { many(&request.steps) } else { multi(&request.steps) }
}

fn multi(steps: &[Step]) -> Vec<u8> {
    let mut pipeline = Pipeline::new();
    pipeline.atomic();
    for step in steps {
        match *step {
            Step::Read(list) => pipeline.cmd("GET").arg(list.name()),
            Step::Append(list, element) => {
                pipeline.cmd("APPEND").arg(list.name()).arg(written(element))
            }
        };
    }
    pipeline.get_packed_pipeline()
}

fn many(steps: &[Step]) -> Vec<u8> {
    let mut command = redis::cmd("MGET");
    for step in steps {
        let (Step::Read(list) | Step::Append(list, _)) = step;
        command.arg(list.name());
    }
    command.get_packed_command()
}

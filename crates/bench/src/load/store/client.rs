//! A session's connection: transactions in the Redis protocol, and the meaning of their answers.

use std::net::SocketAddr;
use std::time::Duration;

use imago_workload::lists::{Element, List, Outcome, Request, Step, elements, written};
use redis::{Pipeline, RedisError, Value};

/// Deadlines of connecting, sending and each answer; the store's own are shorter.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
const SEND_WAIT: Duration = Duration::from_secs(10);
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Lists read in one transaction at the end.
const LISTS_AT_ONCE: usize = 1_000;
/// Stands for a value that is no list: no client appends it, so the check reports it.
const NONSENSE: Element = Element::MAX;

/// The reason why the store gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection or the store failed.
    #[error("the store did not answer")]
    Redis(#[from] RedisError),
    /// The store's answer was not a list.
    #[error("the store answered {0}, where lists were asked for")]
    Answer(String),
}

/// See the module's documentation.
pub struct Client {
    connection: redis::Connection,
    is_usable: bool,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Returns an error if no store answers.
    pub fn connect(address: SocketAddr) -> Result<Self, ClientError> {
        Ok(Self { connection: connect(address)?, is_usable: true })
    }

    /// True if the session can go on: its connection is open, and the outcome of each transaction is known.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_usable
    }

    /// Runs transactions, sent in one piece. Returns the outcome of each, and the results of its reads if
    /// it is done.
    pub fn run(&mut self, requests: &[Request]) -> Vec<(Outcome, Vec<Vec<Element>>)> {
        let sent = requests.iter().flat_map(packed).collect::<Vec<u8>>();
        // If sending failed midway, the store may have received a part.
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

    /// Returns all lists, read by transactions that write to each list without changing it: so they see
    /// every write that was ever acknowledged, to any client.
    ///
    /// # Errors
    /// Returns an error if the store does not answer, or answers with anything but lists.
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

    /// The answer behind so many that only say that something was queued; if one does not, the last
    /// one says that nothing happened.
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

/// True if there is no answer, as opposed to an answer that is an error.
fn is_broken(answer: &Result<Value, RedisError>) -> bool {
    answer.as_ref().is_err_and(|error| error.code().is_none())
}

fn understood(
    request: &Request,
    answer: Option<Result<Value, RedisError>>,
) -> (Outcome, Vec<Vec<Element>>) {
    let outcome = match &answer {
        Some(Ok(Value::Array(_))) => Outcome::Done,
        // A watched key would have changed: nothing happened.
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

/// A connection whose waits are bounded.
pub(super) fn connect(address: SocketAddr) -> Result<redis::Connection, RedisError> {
    let client = redis::Client::open(format!("redis://{address}/"))?;
    let connection = client.get_connection_with_timeout(CONNECT_WAIT)?;
    connection.set_write_timeout(Some(SEND_WAIT))?;
    connection.set_read_timeout(Some(ANSWER_WAIT))?;
    Ok(connection)
}

/// The meaning of an error for the outcome.
fn outcome(error: &RedisError) -> Outcome {
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
    read.unwrap_or_else(|| vec![NONSENSE])
}

/// Answers before the last one, each of which says only that a command was queued.
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

//! MULTI, EXEC and WATCH: a queue of commands that becomes one transaction.
//!
//! Queued commands are stored as received and parsed only at EXEC, as in Redis: a SELECT or a HELLO in the queue
//! applies to the commands after it. The commands run on a copy of the session, which replaces the session if the
//! transaction happens.
//!
//! WATCH is a transaction that reads versions; EXEC reads them again and does nothing if one differs. Unlike
//! in Redis, a key that was absent, was created and was deleted counts as unchanged. A client that watches a
//! key and then reads it may read a value that EXEC does not check; IMAGO.WATCH watches and reads in one
//! snapshot.

use std::mem;

use super::answer::{Answer, Protocol};
use super::command::{Command, Handler};
use super::command_table::COMMANDS;
use super::parse::{Arguments, Kept};
use super::procedure::{Step, Watch, Watched, batch, request, said};
use super::rows::check;
use super::session::{Call, Session};
use super::{Client, KEYS_MAX, Next, keys, refusal};
use crate::record::StoredValue;
use crate::reply::Reply;

/// Maximum number of commands that one client queues inside MULTI. Their total size is limited to that of one
/// request.
const QUEUED_MAX: usize = 100_000;
const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

/// The commands that a client has queued since MULTI.
#[derive(Default)]
pub(super) struct Queue {
    commands: Vec<(&'static Command, Kept)>,
    /// Memory of the queued commands, in bytes.
    bytes: usize,
    /// True if a command was invalid when the client sent it: EXEC will refuse the whole transaction.
    is_broken: bool,
}

impl Queue {
    /// Drops the queued commands, and makes EXEC refuse the transaction.
    pub fn mark_failed(&mut self) {
        *self = Self { is_broken: true, ..Self::default() };
    }

    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns the memory of the queued commands, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The effect that the transaction in progress has on its connection if it happens.
pub(super) enum Pending {
    /// The rows that the transaction read are watched from then on, and their values are sent if `says_values` is
    /// true.
    Watch { says_values: bool },
    /// This session, as the commands of EXEC have changed it, replaces the connection's session.
    Exec(Box<Session>),
}

impl Client {
    pub(super) fn multi(&mut self) -> Next {
        if self.queue.is_some() {
            return self.say(&Answer::error("ERR MULTI calls can not be nested"));
        }
        self.queue = Some(Queue::default());
        self.say(&Answer::OK)
    }

    pub(super) fn discard(&mut self) -> Next {
        if self.queue.take().is_none() {
            return self.say(&Answer::error("ERR DISCARD without MULTI"));
        }
        self.watched.clear();
        self.say(&Answer::OK)
    }

    pub(super) fn enqueue(&mut self, command: &'static Command, arguments: &Arguments<'_>) -> Next {
        if matches!(command.handler, Handler::Scan(_)) {
            let name = command.name.to_ascii_uppercase();
            return self.reject(format!(
                "'{name}' is not supported by Imago inside MULTI: it lists many partitions"
            ));
        }
        let bytes_max = self.settings.request_bytes_max;
        let Some(queue) = &mut self.queue else { return Next::Wait };
        if !queue.is_broken {
            let kept = arguments.keep();
            queue.bytes += kept.bytes();
            queue.commands.push((command, kept));
            if queue.bytes > bytes_max || queue.len() > QUEUED_MAX {
                return self.reject(format!(
                    "too much is queued: at most {QUEUED_MAX} commands of {bytes_max} bytes"
                ));
            }
        }
        self.say(&Answer::status("QUEUED"))
    }

    pub(super) fn exec(&mut self) -> Next {
        let Some(queue) = self.queue.take() else {
            return self.say(&Answer::error("ERR EXEC without MULTI"));
        };
        let watched = mem::take(&mut self.watched);
        if queue.is_broken {
            return self.say(&Answer::error(ABORTED));
        }
        let protocol = self.session.protocol;
        let mut session = self.session.clone();
        (session.queued, session.watched) = (Some(queue.len()), watched.len());
        let (mut steps, mut bytes) = (Vec::with_capacity(queue.len()), 0);
        for queued in &queue.commands {
            let step = self.step(queued, &mut session);
            if let (Step::Say(answer), _) = &step {
                bytes += answer.bytes();
            }
            if let Err(abort) = check(bytes) {
                return self.say(&refusal(&abort));
            }
            steps.push(step);
        }
        (session.queued, session.watched) = (None, 0);
        let needs_rows = steps.iter().any(|(step, _)| matches!(step, Step::Do(_)));
        if watched.is_empty() && !needs_rows {
            self.session = session;
            return Next::Reply(said(&steps));
        }
        // The answers about the session are true only if the transaction happens, and the next request
        // depends on the session.
        let alone = steps.iter().any(|(step, _)| matches!(step, Step::Say(_)));
        match batch(steps, watched, protocol) {
            Ok(request) => {
                self.pending = alone.then(|| Pending::Exec(Box::new(session)));
                Next::Run(super::Request { alone, ..request })
            }
            Err(answer) => self.say(&answer),
        }
    }

    /// Returns the step of a queued command, and the protocol version in which it is answered. `session` is the
    /// session after the commands before it, which the command may change.
    fn step(&self, (command, kept): &(&Command, Kept), session: &mut Session) -> (Step, Protocol) {
        let arguments = kept.arguments();
        let operation = command.operation(&arguments, session.database, &self.settings);
        let step = match (operation, command.handler) {
            (Some(Ok(operation)), _) => Step::Do(operation),
            (Some(Err(answer)), _) => Step::Say(answer),
            (None, Handler::Describe(describe)) => {
                Step::Say(describe(&arguments, COMMANDS).unwrap_or_else(|error| error))
            }
            (None, Handler::Session(act)) => {
                let call = Call { arguments, session, settings: &self.settings };
                Step::Say(act(call).unwrap_or_else(|error| error))
            }
            // Of the other commands only UNWATCH can be queued, and EXEC clears the watched keys by itself.
            _ => Step::Say(Answer::OK),
        };
        (step, session.protocol)
    }

    pub(super) fn watch(&mut self, arguments: &Arguments<'_>, says_values: bool) -> Next {
        if self.queue.is_some() {
            return self.say(&Answer::error("ERR WATCH inside MULTI is not allowed"));
        }
        let keys = match keys::keys(arguments, self.session.database) {
            Ok(keys) => keys,
            Err(answer) => return self.say(&answer),
        };
        if self.watched.len() + keys.len() > KEYS_MAX {
            let text = format!("ERR too many keys are watched: at most {KEYS_MAX}");
            return self.say(&Answer::error(text));
        }
        match request(keys.clone(), Vec::new(), Box::new(Watch { keys, says_values })) {
            Ok(request) => {
                self.pending = Some(Pending::Watch { says_values });
                Next::Run(super::Request { alone: true, ..request })
            }
            Err(answer) => self.say(&answer),
        }
    }

    /// Applies the effect `pending` of the transaction in progress, which has happened and gave `answer`, and returns
    /// the reply to the client.
    pub(super) fn conclude(&mut self, pending: Pending, answer: Reply) -> Reply {
        match pending {
            Pending::Watch { says_values } => {
                let seen: Watched =
                    postcard::from_bytes(&answer.into_bytes()).expect("WATCH wrote it");
                for (key, version) in seen.versions {
                    // If a key is watched twice, its first version counts.
                    if !self.watched.iter().any(|(watched, _)| *watched == key) {
                        self.watched.push((key, version));
                    }
                }
                let value = |value: Option<StoredValue>| Answer::value(value.map(|value| value.0));
                let answer = match says_values {
                    true => Answer::Array(seen.values.into_iter().map(value).collect()),
                    false => Answer::OK,
                };
                answer.encoded(self.session.protocol)
            }
            Pending::Exec(session) => {
                if answer != Answer::NilArray.encoded(self.session.protocol) {
                    self.session = *session;
                }
                answer
            }
        }
    }
}

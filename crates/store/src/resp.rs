//! The Redis protocol of the store, without input or output: it receives the bytes of a client, and returns
//! replies and the transactions to run. Any Redis client can use it, for the commands in [`command`]'s table;
//! other commands are refused with a reason.
//!
//! A request passes through `parse` (bytes to arguments), `command` (lookup in the table), `operation` (the request's
//! keys and its effect) and `procedure` (a transaction, which encodes the reply). Commands that need no rows are
//! answered directly by the `session`. `multi` combines several commands into one transaction, and `script` runs a
//! program as one.
//!
//! The driver of a connection:
//! 1. It feeds received bytes, and calls [`ProtocolState::next`] until that returns [`Next::Wait`].
//! 2. It sends replies in the order of their requests. It may run several transactions of a connection at
//!    once if it keeps that order and the session's order, except a transaction that is `alone`: it must know
//!    the outcome of that one before the next request.
//! 3. It reports the outcome of each [`Next::Run`] and [`Next::Scan`], in order, by [`ProtocolState::reply`],
//!    and sends the returned reply.
//!
//! Keys of database n are rows of table n. Keys do not expire, and all values are strings.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::key::{Key, KeyRange};
use crate::output_buffer::{OUTPUT_BYTES_MAX, OutputBuffers};
use crate::reply::Reply;
use crate::transaction::{Abort, Procedure};

mod answer;
mod call;
mod codec;
mod command;
mod command_table;
mod decode;
mod glob;
mod input_quota;
mod introspection;
mod keys;
mod multi;
mod number;
mod operation;
mod parse;
mod procedure;
mod rows;
mod scan;
mod script;
mod session;

use answer::Answer;
pub use call::Procedures;
use command::{Command, Handler};
use command_table::COMMANDS;
pub use decode::decode;
use input_quota::Share;
pub use input_quota::{INPUT_BYTES_MAX, InputQuota};
use multi::{Pending, Queue};
use parse::{Arguments, Kept, Limits, Parser};
use procedure::Versions;
pub(crate) use procedure::exists;
pub use scan::{Cursors, Scan};
pub use script::{ScriptLimits, Scripts};
use session::{Call, Session};

/// Number of databases, each a table of the store; SELECT numbers them from 0 on.
pub const DATABASES: u32 = 16;
/// Maximum number of distinct keys that one transaction of a client declares, and of keys that one connection
/// watches.
pub const KEYS_MAX: usize = 10_000;
/// Maximum length of the answer to one request, in bytes.
pub const ANSWER_BYTES_MAX: usize = if cfg!(test) { 32 } else { 256 } * 1024 * 1024;
/// Default of the maximum length of one request, in bytes on the wire.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Default of the time within which a client must continue an incomplete request, before its connection is closed.
pub const REQUEST_WAIT: Duration = Duration::from_secs(60);
/// Number of further bytes of an incomplete request that count as one unit of its client's progress.
const PROGRESS_BYTES: usize = 16 * 1024;

/// The content of the reply to INFO: the name of each section, with the names and values of its lines.
pub type Sections = Vec<(String, Vec<(String, String)>)>;

/// Settings of the Redis protocol that all connections of a process share.
pub struct Settings {
    /// Passwords, any of which authenticates the user `default`; if there are none, clients need no password.
    pub passwords: Vec<String>,
    /// Imago's version, as INFO reports it.
    pub version: String,
    /// The version of Redis that is reported to clients, some of which choose the commands that they send by it.
    pub redis_version: String,
    /// A function that returns the content of INFO, except the versions.
    pub info: Arc<dyn Fn() -> Sections + Send + Sync>,
    /// Limit on the memory of rows, in bytes, that is reported to clients; beyond it the store refuses puts. 0
    /// reports no limit.
    pub maxmemory: u64,
    /// Maximum length of one request, in bytes on the wire; less than 4 GB.
    pub request_bytes_max: usize,
    /// Time within which a client must make progress with an incomplete request: see [`Headway`].
    pub request_wait: Duration,
    /// The memory that the incomplete requests of all connections may use together.
    pub input_quota: Arc<InputQuota>,
    /// The output buffers of all connections, which limit the replies that clients have not received yet.
    pub output: Arc<OutputBuffers>,
    /// The keys at which iterations by SCAN continue, by cursor number.
    pub cursors: Cursors,
    /// The limits of the scripts of one transaction.
    pub script_limits: ScriptLimits,
    /// The texts of scripts that clients loaded or ran, for EVALSHA.
    pub scripts: Scripts,
    /// The procedures in Rust that IMAGO.CALL can run.
    pub procedures: Arc<Procedures>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new("", 0)
    }
}

impl Settings {
    /// Returns settings with default limits, without passwords, whose INFO consists of the versions. `version` is
    /// Imago's version, and `started_ms` the present time in ms since 1970.
    #[must_use]
    pub fn new(version: &str, started_ms: u64) -> Self {
        Self {
            passwords: Vec::new(),
            version: version.to_owned(),
            redis_version: "7.2.0".to_owned(),
            info: Arc::new(Vec::new),
            maxmemory: 0,
            request_bytes_max: REQUEST_BYTES_MAX,
            request_wait: REQUEST_WAIT,
            input_quota: InputQuota::new(INPUT_BYTES_MAX),
            output: OutputBuffers::new(OUTPUT_BYTES_MAX),
            cursors: Cursors::new(started_ms),
            script_limits: ScriptLimits::default(),
            scripts: Scripts::default(),
            procedures: Arc::default(),
        }
    }
}

/// The next step that the driver of a connection must execute.
pub enum Next {
    /// Do nothing until more bytes arrive, or until the reply to a request that is `alone`.
    Wait,
    /// Send this reply to the client, after the replies to earlier requests.
    Reply(Reply),
    /// Run this transaction, and report its outcome by [`ProtocolState::reply`].
    Run(Request),
    /// Run the next transaction of this iteration, in the partition that contains [`Scan::start`], and report its
    /// outcome by [`ProtocolState::reply`].
    Scan(Scan),
    /// Refresh the facts behind [`Settings::info`], and send the reply to INFO from [`ProtocolState::describe`].
    Info,
    /// Send this last reply after all pending ones, and close the connection.
    Close(Reply),
}

/// A transaction that a request became. Its procedure returns the encoded reply, and may be run only once. The keys
/// are sorted and distinct.
pub struct Request {
    /// The ranges of keys that the transaction may read but not write.
    pub reads: Vec<KeyRange>,
    /// The keys that the transaction may read and write.
    pub writes: Vec<Key>,
    /// The transaction's code, which returns the encoded reply.
    pub procedure: Box<dyn Procedure>,
    /// True if the connection's next request must wait for the outcome of this transaction.
    pub alone: bool,
}

/// A client's progress with an incomplete request: the number of complete requests before it, and its received length
/// in units of 16 KB. A single byte now and then is not progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headway(u64, usize);

/// The protocol state of one client's connection: it converts received bytes to replies and transactions.
pub struct ProtocolState {
    parser: Parser,
    client: Client,
    share: Share,
}

/// The state of a connection except its parser and its share of the quota for incomplete requests.
struct Client {
    settings: Arc<Settings>,
    session: Session,
    /// The commands queued since MULTI; `None` outside MULTI.
    queue: Option<Queue>,
    /// The keys that the client watches, with the versions of their rows.
    watched: Versions,
    /// The transactions whose outcome is not known yet, in order: `Some` for a step of an iteration.
    running: VecDeque<Option<Box<Scan>>>,
    /// The effect on the connection if the last of the running transactions happens; `None` if it has no such effect.
    pending: Option<Pending>,
    /// The arguments of an INFO that waits until the driver has refreshed the facts behind [`Settings::info`]; `None`
    /// without one.
    described: Option<Kept>,
    is_closed: bool,
}

impl ProtocolState {
    /// Returns the state of a new connection. `id` is the connection's number, which must be unique, and which CLIENT
    /// ID reports.
    #[must_use]
    pub fn new(settings: Arc<Settings>, id: u64) -> Self {
        let session = Session::new(&settings, id);
        let share = Share::new(&settings.input_quota);
        let client = Client {
            settings,
            session,
            queue: None,
            watched: Vec::new(),
            running: VecDeque::new(),
            pending: None,
            described: None,
            is_closed: false,
        };
        Self { parser: Parser::new(), client, share }
    }

    /// Accepts bytes that the client sent. The parser holds hardly more than the longest request: bytes beyond that
    /// are lost, and close the connection, unless [`Self::next`] has consumed the bytes before them. The connection
    /// is also closed if the incomplete requests of all connections exceed their quota.
    pub fn feed(&mut self, bytes: &[u8]) {
        let held = self.parser.bytes_with(bytes.len()) + self.client.queued_bytes();
        if self.share.hold(held) {
            self.parser.feed(bytes, self.client.settings.request_bytes_max);
        } else {
            self.parser.refuse(self.client.settings.input_quota.refusal());
        }
    }

    /// Returns the client's progress with an incomplete request, or with a queue that uses the shared quota;
    /// `None` if the client has left nothing incomplete.
    #[must_use]
    pub fn headway(&self) -> Option<Headway> {
        let (requests, bytes) = self.parser.unfinished();
        let is_half = bytes > 0 || !self.share.is_none();
        is_half.then_some(Headway(requests, bytes / PROGRESS_BYTES))
    }

    /// Ends the connection of a client that made no progress in time, and returns the last reply to send to it.
    pub fn give_up(&mut self) -> Reply {
        let seconds = self.client.settings.request_wait.as_secs_f64();
        let text = format!("ERR Protocol error: half a request, and nothing more for {seconds} s");
        self.client.is_closed = true;
        self.let_go();
        Answer::error(text).encoded(self.client.session.protocol)
    }

    /// Returns the next step that the connection's driver must execute.
    #[allow(clippy::should_implement_trait, reason = "it never ends, and `Wait` is not its end")]
    pub fn next(&mut self) -> Next {
        let next = self.advance();
        if self.client.is_closed {
            self.let_go();
        } else if !self.share.hold(self.held()) {
            self.parser.refuse(self.client.settings.input_quota.refusal());
        }
        next
    }

    /// Returns the memory that the connection's incomplete input uses, in bytes.
    fn held(&self) -> usize {
        self.parser.bytes() + self.client.queued_bytes()
    }

    /// Releases the input memory of a closed connection, and its share of the quota.
    fn let_go(&mut self) {
        (self.parser, self.client.queue) = (Parser::new(), None);
        self.share = Share::new(&self.client.settings.input_quota);
    }

    fn advance(&mut self) -> Next {
        let Self { parser, client, .. } = self;
        if client.is_closed {
            return Next::Close(Reply::default());
        }
        if client.pending.is_some() {
            return Next::Wait;
        }
        let limits = Limits {
            request_bytes_max: client.settings.request_bytes_max,
            is_stranger: !client.session.is_authenticated,
        };
        match parser.advance(limits) {
            Ok(false) => Next::Wait,
            Ok(true) => {
                client.session.buffer_bytes = parser.bytes();
                client.session.pending_bytes = parser.pending_bytes();
                let next = client.execute(&parser.arguments());
                match &next {
                    Next::Run(_) => client.running.push_back(None),
                    Next::Scan(scan) => client.running.push_back(Some(Box::new(scan.clone()))),
                    Next::Wait | Next::Reply(_) | Next::Close(_) | Next::Info => {}
                }
                next
            }
            Err(malformed) => client.close(&Answer::Error(malformed.0)),
        }
    }

    /// Returns the reply to the INFO for which the last step was [`Next::Info`].
    pub fn describe(&mut self) -> Reply {
        let client = &mut self.client;
        let answer = match client.described.take() {
            Some(kept) => introspection::info_of(&kept.arguments(), &client.settings),
            None => Answer::error("ERR nothing was asked"),
        };
        answer.encoded(client.session.protocol)
    }

    /// Returns the reply to the earliest transaction whose outcome was not reported yet; `outcome` is what running
    /// that transaction returned.
    pub fn reply(&mut self, mut outcome: Result<Reply, Abort>) -> Reply {
        let client = &mut self.client;
        // The encoded reply takes about as much memory as the answer.
        let charge = outcome.as_mut().ok().and_then(Reply::take_charge);
        let scan = client.running.pop_front().flatten();
        let pending = client.pending.take_if(|_| client.running.is_empty());
        let mut reply = match (outcome, pending, scan) {
            (Ok(answer), Some(pending), _) => client.conclude(pending, answer),
            (Ok(found), None, Some(scan)) => scan.told(&found.into_bytes()),
            (Ok(answer), None, None) => answer,
            (Err(abort), _, _) => refusal(&abort).encoded(client.session.protocol),
        };
        reply.keep(charge);
        reply
    }
}

impl Client {
    fn queued_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, Queue::bytes)
    }

    fn say(&self, answer: &Answer) -> Next {
        Next::Reply(answer.encoded(self.session.protocol))
    }

    fn close(&mut self, answer: &Answer) -> Next {
        self.is_closed = true;
        Next::Close(answer.encoded(self.session.protocol))
    }

    /// Answers a request that cannot even be queued, and invalidates the queue inside MULTI. `text` is the error's
    /// text without its code.
    fn reject(&mut self, text: impl AsRef<[u8]>) -> Next {
        if let Some(queue) = &mut self.queue {
            queue.mark_failed();
        }
        self.say(&Answer::error([b"ERR ", text.as_ref()].concat()))
    }

    fn execute(&mut self, arguments: &Arguments<'_>) -> Next {
        // A browser that was directed here by an attacker sends HTTP, whose lines would be taken for
        // commands.
        if arguments.is(0, "POST") || arguments.is(0, "HOST:") {
            self.is_closed = true;
            return Next::Close(Reply::default());
        }
        let command = match command_table::command_of(arguments) {
            Ok(command) => command,
            Err(text) if arguments.is(0, "EXEC") => return self.abort(&text),
            Err(text) => return self.reject(text),
        };
        if !self.session.is_authenticated && !command.flags.contains(&"no_auth") {
            return self.keep_out(command);
        }
        let is_queued = self.queue.is_some()
            && matches!(
                command.handler,
                Handler::Rows(_)
                    | Handler::Script(_)
                    | Handler::Call(_)
                    | Handler::Session(_)
                    | Handler::Describe(_)
                    | Handler::Scan(_)
                    | Handler::Unwatch
                    | Handler::Nothing
            );
        if is_queued { self.enqueue(command, arguments) } else { self.act(command, arguments) }
    }

    fn act(&mut self, command: &'static Command, arguments: &Arguments<'_>) -> Next {
        let Session { database, protocol, .. } = self.session;
        if let Some(operation) = command.operation(arguments, database, &self.settings) {
            let request = operation.and_then(|it| procedure::single(it, protocol));
            return request.map_or_else(|answer| self.say(&answer), Next::Run);
        }
        match command.handler {
            Handler::Session(_) if command.name == "info" => {
                self.described = Some(arguments.keep());
                Next::Info
            }
            Handler::Session(act) => {
                self.session.watched = self.watched.len();
                let (arguments, settings) = (*arguments, &*self.settings);
                let answer = act(Call { arguments, session: &mut self.session, settings });
                self.say(&answer.unwrap_or_else(|error| error))
            }
            Handler::Describe(describe) => {
                let answer = describe(arguments, COMMANDS);
                self.say(&answer.unwrap_or_else(|error| error))
            }
            Handler::Scan(understand) => understand(arguments, database, protocol, &self.settings)
                .map_or_else(|answer| self.say(&answer), Next::Scan),
            Handler::Multi => self.multi(),
            Handler::Exec => self.exec(),
            Handler::Discard => self.discard(),
            Handler::Watch { says_values } => self.watch(arguments, says_values),
            Handler::Unwatch => {
                self.watched.clear();
                self.say(&Answer::OK)
            }
            Handler::Reset => {
                self.queue = None;
                self.watched.clear();
                self.session.reset(&self.settings);
                self.say(&Answer::status("RESET"))
            }
            Handler::Quit => self.close(&Answer::OK),
            // The command takes at least one more argument: a subcommand, which has its own entry or is
            // refused.
            Handler::Rows(_) | Handler::Script(_) | Handler::Call(_) | Handler::Nothing => {
                self.reject(format!("'{}' needs more to be said", command.name))
            }
        }
    }

    /// Ends MULTI, and answers an EXEC that is itself invalid; `text` is the reason.
    fn abort(&mut self, text: &[u8]) -> Next {
        self.queue = None;
        self.watched.clear();
        let start = b"EXECABORT Transaction discarded because of: ";
        self.say(&Answer::error([start, text].concat()))
    }

    fn keep_out(&mut self, command: &Command) -> Next {
        const TEXT: &str = "NOAUTH Authentication required.";
        if matches!(command.handler, Handler::Exec) {
            return self.abort(TEXT.as_bytes());
        }
        if let Some(queue) = &mut self.queue {
            queue.mark_failed();
        }
        self.say(&Answer::error(TEXT))
    }
}

/// Returns the answer to a transaction that did not happen, or whose outcome is unknown.
fn refusal(abort: &Abort) -> Answer {
    match abort {
        Abort::Refused(text) => Answer::error(text.as_str()),
        Abort::Busy | Abort::Late | Abort::Elsewhere | Abort::LogFull => {
            Answer::error(format!("TRYAGAIN nothing happened: {abort}"))
        }
        // The code that Redis uses.
        Abort::OutOfMemory => Answer::error(format!("OOM {abort}")),
        Abort::Down(..) => Answer::error(format!("CLUSTERDOWN nothing happened: {abort}")),
        Abort::Deposed | Abort::Unlogged => {
            Answer::error(format!("TRYAGAIN it may or may not have happened: {abort}"))
        }
        Abort::Undeclared(_) | Abort::TooLarge(_) | Abort::PinnedApart(..) => {
            Answer::error(format!("ERR {abort}"))
        }
    }
}

#[cfg(test)]
mod tests;

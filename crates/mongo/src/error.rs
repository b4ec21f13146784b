//! Errors of a cluster, a job or a document, and their remedies.
//!
//! Every error says what happened and to what; [`Error::help`] says what to do. An exit code is
//! made of [`Error::class`]. A connection string never appears here unredacted.

use imago_job::control::Stop;
use imago_job::retry::{Bound, RetryError};
use imago_job::run::RunError;
use mongodb::error::ErrorKind;

mod said;

pub(crate) use said::without_documents;
pub use said::{UNAUTHORIZED, said};

/// The result of everything that talks to a cluster.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The outcome of a command that ends with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The operation was tried and failed.
    Failed,
    /// The request makes no sense as it was typed.
    Usage,
    /// A precondition is unmet; nothing was changed.
    Precondition,
    /// It stopped before the end, and can be resumed.
    Interrupted,
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument cannot be understood.
    #[error("{what}")]
    Usage {
        /// The fault.
        what: String,
        /// The remedy.
        help: String,
    },
    /// Something must be true first, and is not. Nothing was changed.
    #[error("{what}")]
    Precondition {
        /// The unmet precondition, and of what.
        what: String,
        /// The step that meets it.
        help: String,
    },
    /// A cluster did not answer.
    #[error("the {role} {cluster} cannot be reached: {cause}")]
    Unreachable {
        /// `source` or `destination`.
        role: &'static str,
        /// The redacted connection string.
        cluster: String,
        /// The driver's message.
        cause: String,
    },
    /// A cluster refused the credentials.
    #[error("the {role} {cluster} refused the credentials: {cause}")]
    Credentials {
        /// `source` or `destination`.
        role: &'static str,
        /// The redacted connection string.
        cluster: String,
        /// The server's message.
        cause: String,
    },
    /// A server answered a command with an error that a retry does not mend.
    #[error("{doing} failed: {}", said(cause))]
    Server {
        /// The command, and on what.
        doing: String,
        /// The server's message. It is not reported as a cause: that would show the parts that
        /// [`said`] leaves out.
        cause: Box<mongodb::error::Error>,
    },
    /// A state of the server that passes: an election, stale routing, a majority out of reach.
    #[error("{doing} failed for now: {cause}")]
    Passing {
        /// The command, and on what.
        doing: String,
        /// The server's message.
        cause: String,
    },
    /// Retries were used up.
    #[error("{tried}")]
    Exhausted {
        /// The attempted action, how often, for how long, and the last failure.
        tried: String,
        /// The last failure.
        #[source]
        cause: Box<Error>,
    },
    /// A document cannot be written at the destination.
    #[error("document {id} of {ns} cannot be written at the destination: {cause}")]
    Document {
        /// The namespace at the destination.
        ns: String,
        /// The `_id`, as extended JSON.
        id: String,
        /// The server's message.
        cause: String,
        /// The remedy.
        help: String,
    },
    /// The source's log no longer holds the changes that the job needs.
    #[error("the source's oplog no longer reaches back to {needed}: {cause}")]
    OplogRolledOver {
        /// The position that is needed.
        needed: String,
        /// The server's message.
        cause: String,
    },
    /// The source does not find the position in its log that the job needs, though it may reach
    /// back to it: the source is another one now, or the position is not its own.
    #[error("the source refuses to go on with its changes after {needed}: {cause}")]
    PositionRefused {
        /// The position that is needed.
        needed: String,
        /// The server's message.
        cause: String,
    },
    /// A copied collection was dropped, renamed, or otherwise taken away under the job.
    #[error("{ns} was {what} at the source while it was being copied")]
    Disrupted {
        /// The namespace at the source.
        ns: String,
        /// Dropped, renamed to …, resharded.
        what: String,
    },
    /// The source got or lost collections of a job while its writes were being blocked.
    #[error("the source got or lost a collection of job {job} while writes were being blocked")]
    CatalogChanged {
        /// The job.
        job: imago_job::id::JobId,
    },
    /// A server may or may not have met a request; the next process of the job finds out.
    #[error("it is not known yet {what}: {cause}")]
    Undecided {
        /// The unknown fact.
        what: String,
        /// The last that was heard.
        cause: String,
    },
    /// Another process took the job or the slice over.
    #[error("{what} was taken over by another process")]
    Superseded {
        /// The job or slice.
        what: String,
    },
    /// The job's state could not be read or written.
    #[error(transparent)]
    Journal(#[from] imago_job::journal::JournalError),
    /// Stopped by a signal or by a command.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// A server's answer does not have the form that the protocol promises.
    #[error("{doing}: the server's answer is malformed: {cause}")]
    Malformed {
        /// Which command's answer.
        doing: String,
        /// The missing or wrong part.
        cause: String,
    },
}

impl Error {
    /// A server's error for a command, classified by the user's remedies.
    pub fn server(doing: impl Into<String>, cause: mongodb::error::Error) -> Self {
        Self::Server { doing: doing.into(), cause: Box::new(cause) }
    }

    /// An answer that is not of the promised form.
    pub fn malformed(doing: impl Into<String>, cause: impl ToString) -> Self {
        Self::Malformed { doing: doing.into(), cause: cause.to_string() }
    }

    /// A precondition that is unmet.
    pub fn precondition(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Precondition { what: what.into(), help: help.into() }
    }

    /// An argument that cannot be understood.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), help: help.into() }
    }

    /// The outcome of a command that ends with this error.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Stopped(Stop::Cancelled) => Class::Failed,
            Self::Usage { .. } => Class::Usage,
            Self::Server { cause, .. } if code(cause) == Some(UNAUTHORIZED) => Class::Precondition,
            Self::Precondition { .. }
            | Self::CatalogChanged { .. }
            | Self::Unreachable { .. }
            | Self::Credentials { .. } => Class::Precondition,
            Self::Superseded { .. }
            | Self::Undecided { .. }
            | Self::Stopped(_)
            | Self::Passing { .. }
            | Self::Exhausted { .. } => Class::Interrupted,
            Self::Server { .. }
            | Self::Document { .. }
            | Self::OplogRolledOver { .. }
            | Self::PositionRefused { .. }
            | Self::Disrupted { .. }
            | Self::Journal(_)
            | Self::Malformed { .. } => Class::Failed,
        }
    }

    /// The reader's remedy.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::Usage { help, .. }
            | Self::Precondition { help, .. }
            | Self::Document { help, .. } => help.clone(),
            Self::Unreachable { .. } => {
                "check the host, the port, the replica set's name and the network path".into()
            }
            Self::Credentials { .. } => {
                "check the user, the password and authSource in the connection string".into()
            }
            Self::Server { cause, .. } => match code(cause) {
                Some(UNAUTHORIZED) => {
                    "give the user the missing privilege (see the README, Privileges)".into()
                }
                _ => return None,
            },
            Self::Exhausted { .. } => "mend the cause, then `imago job resume` the job".into(),
            Self::OplogRolledOver { .. } => {
                "give the job up (`imago job cancel`) and begin a new one, with a larger oplog \
                 (replSetResizeOplog) or a faster pace"
                    .into()
            }
            Self::PositionRefused { .. } => {
                "if the source was restored from a backup, or is another cluster than before, give \
                 the job up (`imago job cancel`) and begin a new one; `imago job resume` tries again"
                    .into()
            }
            Self::Disrupted { .. } => {
                "the destination is as of the last change before: give the job up (`imago job \
                 cancel`), and begin a new one if there is a new collection"
                    .into()
            }
            Self::CatalogChanged { job } => format!(
                "the block is lifted; when collections are made and dropped more rarely, `imago \
                 cutover {job}` again"
            ),
            Self::Undecided { .. } => {
                "once the cluster is well again `imago reshard resume` finds out; until then writes \
                 stay blocked"
                    .into()
            }
            Self::Superseded { .. } => "nothing is lost: follow the job where it runs now".into(),
            Self::Passing { .. } => {
                "wait for the cluster to settle, then `imago job resume` it".into()
            }
            Self::Stopped(Stop::Cancelled) => "begin a new job to do it after all".into(),
            Self::Stopped(_) => "`imago job resume` continues where it stopped".into(),
            Self::Journal(_) | Self::Malformed { .. } => return None,
        })
    }

    /// True if the same attempt may succeed a moment later: elections, cut connections, stale
    /// routing, overload. Every operation that is retried on this is idempotent.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Server { cause, .. } => is_transient(cause),
            Self::Unreachable { .. } | Self::Passing { .. } => true,
            _ => false,
        }
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Stopped(stop) => Self::Stopped(stop),
            RunError::Journal(error) => Self::Journal(error),
            RunError::Unreachable(error) => {
                let tried = error.to_string();
                match *error {
                    RetryError::Stopped(stop) => Self::Stopped(stop),
                    RetryError::Failed { last, .. } => {
                        Self::Exhausted { tried, cause: Box::new(Self::Journal(last)) }
                    }
                }
            }
        }
    }
}

impl From<RetryError<Error>> for Error {
    fn from(error: RetryError<Error>) -> Self {
        let tried = error.to_string();
        match error {
            RetryError::Stopped(stop) => Self::Stopped(stop),
            RetryError::Failed { bound: Bound::Permanent, last, .. } => last,
            RetryError::Failed { last, .. } => Self::Exhausted { tried, cause: Box::new(last) },
        }
    }
}

/// The server's error code, if a server answered.
#[must_use]
pub fn code(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(mongodb::error::WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Write(mongodb::error::WriteFailure::WriteConcernError(concern)) => {
            Some(concern.code)
        }
        _ => None,
    }
}

/// Codes that name a passing state of a server or of the routing to it.
///
/// Elections and shutdown (91, 189, 10107, 11600, 11602, 13435, 13436), network (6, 7, 89, 9001),
/// routing (63 `StaleShardVersion`, 150 `StaleEpoch`, 249 `StaleDbVersion`, 13388 `StaleConfig`,
/// 273, 358), time limits (50, 202, 262), cursors and plans killed under us (43, 175, 237, 246),
/// conflicts (112, 117), no member fit to read from (133, 134), majority not reached (64).
pub const TRANSIENT: &[i32] = &[
    6, 7, 43, 50, 63, 64, 89, 91, 112, 117, 133, 134, 150, 175, 189, 202, 237, 246, 249, 262, 273,
    358, 9001, 10107, 11600, 11602, 13388, 13435, 13436,
];

fn is_transient(error: &mongodb::error::Error) -> bool {
    match error.kind.as_ref() {
        ErrorKind::Io(_)
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::DnsResolve { .. }
        // An endpoint was authorised when it connected. A member that elects, or has not heard of the user yet,
        // says no more than this.
        | ErrorKind::Authentication { .. } => true,
        _ => {
            error.contains_label("RetryableWriteError")
                || error.contains_label("ResumableChangeStreamError")
                || code(error).is_some_and(|code| TRANSIENT.contains(&code))
        }
    }
}

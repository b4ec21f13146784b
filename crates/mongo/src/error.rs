//! Errors of a cluster, a job or a document, and their remedies.
//!
//! Every error names the operation that failed and its object; [`Error::help`] returns the remedy. The exit code of a
//! command follows from [`Error::class`]. A connection string appears in an error only in redacted form.

use imago_job::control::Stop;
use imago_job::retry::{Bound, RetryError};
use imago_job::run::RunError;
use mongodb::error::ErrorKind;

mod redact;

pub(crate) use redact::redact_documents;
pub use redact::{UNAUTHORIZED, redacted_message};

/// The result of an operation on a cluster, a job or a document.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Class of an error, from which the exit code of the command follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The operation was attempted and failed.
    Failed,
    /// The request is invalid as the user typed it.
    Usage,
    /// A precondition is not met. Nothing was changed.
    Precondition,
    /// The operation stopped before its end and can be resumed.
    Interrupted,
}

/// The reason why an operation on a cluster, a job or a document failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument of the request is invalid.
    #[error("{what}")]
    Usage {
        /// Description of the invalid argument.
        what: String,
        /// The remedy: how to write the argument.
        help: String,
    },
    /// A precondition of the operation is not met. Nothing was changed.
    #[error("{what}")]
    Precondition {
        /// Description of the unmet precondition and of the object that it concerns.
        what: String,
        /// The step that meets the precondition.
        help: String,
    },
    /// The cluster does not reply.
    #[error("the {role} {cluster} cannot be reached: {cause}")]
    Unreachable {
        /// Role of the cluster: `source` or `destination`.
        role: &'static str,
        /// Redacted connection string of the cluster.
        cluster: String,
        /// Error message of one of the cluster's servers, or of the driver.
        cause: String,
        /// The remedy for the cause.
        help: String,
    },
    /// The cluster rejected the credentials.
    #[error("the {role} {cluster} refused the credentials: {cause}")]
    Credentials {
        /// Role of the cluster: `source` or `destination`.
        role: &'static str,
        /// Redacted connection string of the cluster.
        cluster: String,
        /// The error message of the server that refused.
        cause: String,
    },
    /// A server replied to a command with an error.
    #[error("{doing} failed: {}", redacted_message(cause))]
    Server {
        /// Name of the command, and its object.
        doing: String,
        /// The server's error. It is not a `#[source]`, because its own text contains the parts that
        /// [`redacted_message`] removes.
        cause: Box<mongodb::error::Error>,
    },
    /// A server is in a temporary state: an election, stale routing, a majority that is out of reach.
    #[error("{doing} failed temporarily: {cause}")]
    Transient {
        /// Name of the command, and its object.
        doing: String,
        /// Description of the temporary state, or the server's message.
        cause: String,
    },
    /// The operation failed in all attempts that its retry budget allows.
    #[error("{tried}")]
    Exhausted {
        /// Message with the operation, the number of attempts, the elapsed time, and the error of the last attempt.
        tried: String,
        /// Error of the last attempt.
        #[source]
        cause: Box<Error>,
    },
    /// A document cannot be written at the destination.
    #[error("document {id} of {ns} cannot be written at the destination: {cause}")]
    Document {
        /// Full name of the document's collection at the destination.
        ns: String,
        /// The document's `_id`, as extended JSON.
        id: String,
        /// The error message of the destination's server.
        cause: String,
        /// The remedy for the cause.
        help: String,
    },
    /// The source's oplog no longer contains the changes that the job needs.
    #[error("the source's oplog no longer reaches back to {needed}: {cause}")]
    OplogRolledOver {
        /// The position in the oplog from which the job must read.
        needed: String,
        /// The error message of the source's server.
        cause: String,
    },
    /// The source rejects the position from which the job resumes, although the oplog may reach back that far: the
    /// source is a different cluster now, or the position belongs to another cluster.
    #[error("the source refuses to resume the change stream after {needed}: {cause}")]
    PositionRefused {
        /// The position in the oplog from which the job must read.
        needed: String,
        /// The error message of the source's server.
        cause: String,
    },
    /// A collection of the job was dropped, renamed or resharded at the source while it was being copied.
    #[error("{ns} was {what} at the source while it was being copied")]
    Disrupted {
        /// Full name of the collection at the source.
        ns: String,
        /// The event that hit the collection, as a past participle: dropped, renamed to …, resharded.
        what: String,
    },
    /// Collections of the job were created or dropped at the source while its writes were being blocked.
    #[error(
        "a collection of job {job} was created or dropped at the source while writes were being \
         blocked"
    )]
    CatalogChanged {
        /// The id of the job.
        job: imago_job::id::JobId,
    },
    /// It is unknown whether a request took effect. The next process that runs the job determines it.
    #[error("cannot determine yet {what}: {cause}")]
    Undecided {
        /// The unknown fact, as an indirect question ("whether …").
        what: String,
        /// Error message of the last attempt to determine the fact.
        cause: String,
    },
    /// Another process took over the job or the slice, so this process must stop.
    #[error("{what} was taken over by another process")]
    Superseded {
        /// Name of the job or the slice.
        what: String,
    },
    /// The job's record could not be read or written.
    #[error(transparent)]
    Journal(#[from] imago_job::journal::JournalError),
    /// A signal or a request of the operator stopped the operation.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// A server's reply lacks a part that the protocol promises, or has that part in another form.
    #[error("{doing}: the server's reply is malformed: {cause}")]
    Malformed {
        /// The command to which the server replied.
        doing: String,
        /// The part that is missing or malformed.
        cause: String,
    },
}

impl Error {
    /// Returns an [`Error::Server`] for the command `doing`, which a server answered with the error `cause`.
    pub fn server(doing: impl Into<String>, cause: mongodb::error::Error) -> Self {
        Self::Server { doing: doing.into(), cause: Box::new(cause) }
    }

    /// Returns an [`Error::Malformed`] for the reply to the command `doing`; `cause` names the malformed part.
    pub fn malformed(doing: impl Into<String>, cause: impl ToString) -> Self {
        Self::Malformed { doing: doing.into(), cause: cause.to_string() }
    }

    /// Returns an [`Error::Precondition`]: `what` describes the unmet precondition, `help` the step that meets it.
    pub fn precondition(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Precondition { what: what.into(), help: help.into() }
    }

    /// Returns an [`Error::Usage`]: `what` describes the invalid argument, `help` the remedy.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), help: help.into() }
    }

    /// Returns the class of this error, from which the exit code of the command follows.
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
            | Self::Transient { .. }
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

    /// Returns the remedy in words for the user, or `None` if none is known.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::Usage { help, .. }
            | Self::Precondition { help, .. }
            | Self::Unreachable { help, .. }
            | Self::Document { help, .. } => help.clone(),
            Self::Credentials { .. } => {
                "check the user, the password and authSource in the connection string".into()
            }
            Self::Server { cause, .. } => match code(cause) {
                Some(UNAUTHORIZED) => {
                    "give the user the missing privilege (docs/operations.md#privileges)".into()
                }
                _ => return None,
            },
            Self::Exhausted { .. } => {
                "remove the cause, then resume the job with `imago job resume`".into()
            }
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
                "the destination has all changes before that: give the job up (`imago job \
                 cancel`), and begin a new one if there is a new collection"
                    .into()
            }
            Self::CatalogChanged { job } => format!(
                "the block is lifted; repeat `imago cutover {job}` when collections are created \
                 and dropped less often"
            ),
            Self::Undecided { .. } => {
                "when the cluster is available again, `imago reshard resume` determines the \
                 outcome; until then writes stay blocked"
                    .into()
            }
            Self::Superseded { .. } => "nothing is lost: follow the job where it runs now".into(),
            Self::Transient { .. } => {
                "wait for the cluster to settle, then `imago job resume` it".into()
            }
            Self::Stopped(Stop::Cancelled) => "begin a new job to do it after all".into(),
            Self::Stopped(_) => "`imago job resume` continues where it stopped".into(),
            Self::Journal(_) | Self::Malformed { .. } => return None,
        })
    }

    /// Returns true if the same attempt may succeed a moment later: after elections, cut connections, stale routing,
    /// overload. Every operation that is retried because of this is idempotent.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Server { cause, .. } => is_transient(cause),
            Self::Unreachable { .. } | Self::Transient { .. } => true,
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

/// Returns the code of a server's error, or `None` if the error does not come from a server's reply.
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

/// Server error codes of temporary states of a server or of the routing to it.
///
/// Elections and shutdown (91, 189, 10107, 11600, 11602, 13435, 13436), network (6, 7, 89, 9001), routing (63
/// `StaleShardVersion`, 150 `StaleEpoch`, 249 `StaleDbVersion`, 13388 `StaleConfig`, 273, 358), time limits (50,
/// 202, 262), cursors and query plans killed during the operation (43, 175, 237, 246), conflicts (112, 117), no
/// eligible member to read from (133, 134), majority not reached (64).
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
        // The endpoint was authenticated when it connected, so the credentials are valid. A member reports this
        // error during an election, and before the user has been replicated to it.
        | ErrorKind::Authentication { .. } => true,
        _ => {
            error.contains_label("RetryableWriteError")
                || error.contains_label("ResumableChangeStreamError")
                || code(error).is_some_and(|code| TRANSIENT.contains(&code))
        }
    }
}

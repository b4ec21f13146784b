//! Errors of operations on a cluster, with remedies.

use imago_job::control::Stop;
use imago_job::journal::JournalError;
use imago_job::run::RunError;

/// Result of an operation on a cluster, with the error [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why an operation on a cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is invalid, or a file that the user wrote.
    #[error("{0}")]
    Usage(String),
    /// No node of the connection string accepted a connection.
    #[error("no node of {uri} can be used")]
    Connect {
        /// Connection string of the cluster, without its password.
        uri: String,
        /// Cause that the database's driver reported.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Hint about the likely cause of the refusal.
        help: &'static str,
    },
    /// A statement or command failed that was sent to the database.
    #[error("{doing} failed")]
    Statement {
        /// Description of the statement's purpose, with its object.
        doing: String,
        /// Cause that the database's driver reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A shell command on a node's machine failed, or timed out.
    #[error("{doing} on {node} failed: {said}")]
    Command {
        /// Name of the node on whose machine the command ran.
        node: String,
        /// Description of the command's purpose.
        doing: String,
        /// Output of the command, its exit status, or the reason why it did not run.
        said: String,
    },
    /// The journal of jobs refused an operation, or could not be reached.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The job was interrupted, cancelled or taken over by another process.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// An operation on the cluster failed after it had begun.
    #[error("{what}")]
    Failed {
        /// Description of the failure, and of the state in which the cluster is now.
        what: String,
        /// Remedy for the operator.
        help: String,
    },
    /// A precondition of an operation does not hold, and the operation has changed nothing.
    #[error("{what}")]
    Precondition {
        /// Description of the violated precondition.
        what: String,
        /// Remedy for the operator.
        help: String,
    },
}

impl Error {
    /// Builds [`Error::Failed`] with a description and a remedy.
    pub(crate) fn failed(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), help: help.into() }
    }

    /// Builds [`Error::Precondition`] with a description and a remedy.
    pub(crate) fn precondition(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Precondition { what: what.into(), help: help.into() }
    }

    /// Returns the remedy for the user; None if this kind of error has none.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Precondition { help, .. } | Self::Failed { help, .. } => Some(help),
            Self::Connect { help, .. } => Some(help),
            _ => None,
        }
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Stopped(stop) => Self::Stopped(stop),
            RunError::Journal(error) => Self::Journal(error),
            RunError::Unreachable(error) => {
                Self::Statement { doing: "saving the state of the job".into(), source: error }
            }
        }
    }
}

/// Builds the error of a node that did not start with its new configuration, with the cause `why`. `back` is the
/// result of restoring the old configuration: true if the job had changed the node's files. `away` is the time for
/// which the node accepted no clients.
pub(crate) fn did_not_start(
    node: &str,
    why: &Error,
    back: Result<bool>,
    away: std::time::Duration,
) -> Error {
    let away = format!("{:.0} s", away.as_secs_f64());
    let (now, help) = match back {
        Ok(true) => (
            format!("it runs with the old one again, and took no clients for {away}"),
            "nodes before it keep the new one: see the node's log, and roll again with other values",
        ),
        Ok(false) => (
            format!(
                "it runs with the same file after another start, and took no clients for {away}"
            ),
            "this roll had not changed its file: see the node's log",
        ),
        Err(error) => (
            format!(
                "and it does not come back with the old one either, and has taken no clients for {away}: {}",
                chain(&error)
            ),
            "see its log, and start it by hand: its old files are in their places. The other nodes serve, and no other \
             one was stopped",
        ),
    };
    let what = format!("{node} does not start with the new configuration ({}); {now}", chain(why));
    Error::failed(what, help)
}

/// Formats an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut parts: Vec<String> = Vec::new();
    for cause in causes.map(ToString::to_string) {
        if parts.iter().all(|part| !part.contains(&cause)) {
            parts.push(cause);
        }
    }
    parts.join(": ")
}

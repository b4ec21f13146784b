//! Errors of operations on a cluster, with remedies.

use imago_job::control::Stop;
use imago_job::journal::JournalError;
use imago_job::run::RunError;

/// A result with this module's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why an operation on a cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is invalid; the cluster was not contacted.
    #[error("{0}")]
    Usage(String),
    /// No node accepted a connection.
    #[error("no node of {uri} can be used")]
    Connect {
        /// Connection string, without its password.
        uri: String,
        /// Cause reported by the driver.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Hint about the likely cause.
        help: &'static str,
    },
    /// A statement failed.
    #[error("{doing} failed")]
    Statement {
        /// Description of the operation, with its object.
        doing: String,
        /// Cause reported by the driver.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A command on a node failed, or timed out.
    #[error("{doing} on {node} failed: {said}")]
    Command {
        /// Name of the node.
        node: String,
        /// Description of the operation.
        doing: String,
        /// Output of the command, or its exit status.
        said: String,
    },
    /// The journal refused the operation, or could not be reached.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The job was stopped.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// The operation failed after it began.
    #[error("{what}")]
    Failed {
        /// Description of the failure, and the present state.
        what: String,
        /// Remedy.
        help: String,
    },
    /// A precondition does not hold.
    #[error("{what}")]
    Precondition {
        /// Description of the violation.
        what: String,
        /// Remedy.
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

    /// Returns the remedy for the user; None if there is none.
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

/// Builds the error of a node that did not start with its new configuration. `back` is the result of restoring the old
/// one: true if the job had changed the node's files. `away` is the time without clients.
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

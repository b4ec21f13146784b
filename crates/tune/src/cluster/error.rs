//! What can go wrong with a cluster, and what to do about it.

use imago_job::control::Stop;
use imago_job::journal::JournalError;
use imago_job::run::RunError;

/// A result with this module's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument makes no sense; nothing was asked.
    #[error("{0}")]
    Usage(String),
    /// No node let us in.
    #[error("no node of {uri} can be used")]
    Connect {
        /// The connection string, without its password.
        uri: String,
        /// The driver's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What may be wrong.
        help: &'static str,
    },
    /// A statement failed.
    #[error("{doing} failed")]
    Statement {
        /// The operation, with its object.
        doing: String,
        /// The driver's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A command on a node failed, or took too long.
    #[error("{doing} on {node} failed: {said}")]
    Command {
        /// The node's name.
        node: String,
        /// The operation.
        doing: String,
        /// The command's own words, or how it ended.
        said: String,
    },
    /// The journal refused, or could not be reached.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The work was stopped.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// The work was begun, and could not be done.
    #[error("{what}")]
    Failed {
        /// What happened, and how things stand.
        what: String,
        /// What to do.
        help: String,
    },
    /// What must hold before does not.
    #[error("{what}")]
    Precondition {
        /// What was found.
        what: String,
        /// What to do.
        help: String,
    },
}

impl Error {
    /// The work was begun, and could not be done.
    pub(crate) fn failed(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), help: help.into() }
    }

    /// What must hold before does not.
    pub(crate) fn precondition(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Precondition { what: what.into(), help: help.into() }
    }

    /// What the user can do about it.
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

/// What is said of a node that did not start with its new configuration, and of what came of giving it the old one back:
/// true if the job had changed its files.
pub(crate) fn did_not_start(node: &str, why: &Error, back: Result<bool>) -> Error {
    let (now, help) = match back {
        Ok(true) => (
            "it runs with the old one again".to_owned(),
            "nodes before it keep the new one: see the node's log, and roll again with other values",
        ),
        Ok(false) => (
            "it runs with the same file after another start".to_owned(),
            "this roll had not changed its file: see the node's log",
        ),
        Err(error) => (
            format!("and it does not come back with the old one either: {}", chain(&error)),
            "see its log; the other nodes serve, and no other one was stopped",
        ),
    };
    let what = format!("{node} does not start with the new configuration ({}); {now}", chain(why));
    Error::failed(what, help)
}

/// An error with its causes, in one line.
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

//! What can go wrong with a Cassandra cluster, and what to do about it.

use imago_job::control::Stop;
use imago_job::journal::JournalError;
use imago_job::run::RunError;
use scylla::errors::{
    ExecutionError, NewSessionError, NextRowError, PagerExecutionError, PrepareError,
};

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
        source: Box<NewSessionError>,
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
            Self::Connect { .. } => Some(
                "is the address that of native_transport_port, and are name and password right?",
            ),
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

/// The driver's errors of statements.
pub trait StatementError: std::error::Error + Send + Sync + 'static {}

impl StatementError for ExecutionError {}
impl StatementError for PrepareError {}
impl StatementError for scylla::errors::MetadataError {}
impl StatementError for PagerExecutionError {}
impl StatementError for NextRowError {}
impl StatementError for scylla::response::query_result::IntoRowsResultError {}
impl StatementError for scylla::response::query_result::RowsError {}
impl StatementError for scylla::errors::DeserializationError {}
impl StatementError for scylla::errors::TypeCheckError {}

/// The failure of a statement that was to do this.
pub fn failed<E: StatementError>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
    let doing = doing.into();
    move |source| Error::Statement { doing, source: Box::new(source) }
}

//! The errors of a probe.

use std::io;
use std::path::PathBuf;

use crate::chain;

/// A reason why a probe cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job's own code could not read the documents.
    #[error(transparent)]
    Read(#[from] chain::Error),
    /// A command to a server failed.
    #[error("cannot get {what} from {server}")]
    Ask {
        /// Address of the server.
        server: String,
        /// The value that was requested.
        what: &'static str,
        /// The driver's error.
        source: Box<mongodb::error::Error>,
    },
    /// The reply of a server lacks a needed value.
    #[error("the reply of {server} lacks {what}")]
    MissingValue {
        /// Address of the server.
        server: String,
        /// The value that is missing.
        what: String,
    },
    /// The cache rejected a command, or the connection to it failed.
    #[error("the cache failed while the probe used it")]
    Cache(#[source] redis::RedisError),
    /// The measurement is not possible as requested; the field is the reason.
    #[error("{0}")]
    Unfit(String),
    /// The probe was interrupted.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// A task of this process ended by a panic.
    #[error("a task of the probe has failed: {0}")]
    Task(String),
    /// The probe's file cannot be read or written.
    #[error("cannot {doing} the probe {}", path.display())]
    Io {
        /// The failed operation, as `read`.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a probe.
    #[error("{} is no probe of `imago provision probe`: {what}", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// The reason why the file is not a probe.
        what: String,
    },
}

impl Error {
    /// Returns a function for `map_err` that makes an [`Error::Ask`] of the driver's error.
    pub(super) fn ask(
        server: &str,
        what: &'static str,
    ) -> impl FnOnce(mongodb::error::Error) -> Self {
        let server = server.to_owned();
        move |source| Self::Ask { server, what, source: Box::new(source) }
    }
}

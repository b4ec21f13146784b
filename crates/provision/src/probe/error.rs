//! The errors of a probe.

use std::io;
use std::path::PathBuf;

use crate::chain;

/// A reason why a probe cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A document could not be read by the chain's own code, which makes the probe's requests.
    #[error(transparent)]
    Read(#[from] chain::Error),
    /// A command to a database server failed.
    #[error("cannot get {what} from {server}")]
    Ask {
        /// Address of the server, or `the database` for the whole cluster.
        server: String,
        /// Name of the requested value, for display.
        what: &'static str,
        /// The error of the MongoDB driver.
        source: Box<mongodb::error::Error>,
    },
    /// The reply of a server lacks a value that the probe needs.
    #[error("the reply of {server} lacks {what}")]
    MissingValue {
        /// Address of the server, or a name such as `the cache`.
        server: String,
        /// Name of the missing value, for display.
        what: String,
    },
    /// The cache rejected a command, or the connection to it failed; the field is the Redis client's error.
    #[error("the cache failed while the probe used it")]
    Cache(#[source] redis::RedisError),
    /// The measurement is not possible as requested; the field is the reason, for display.
    #[error("{0}")]
    Unfit(String),
    /// The probe was cancelled before its end.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// A task of this process ended by a panic; the field is its message.
    #[error("a task of the probe has failed: {0}")]
    Task(String),
    /// The probe's file cannot be read or written.
    #[error("cannot {doing} the probe {}", path.display())]
    Io {
        /// The failed operation: `read` or `write`.
        doing: &'static str,
        /// Path of the probe's file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a probe that this program can read.
    #[error("{} is no probe of `imago provision probe`: {what}", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// The reason why the file is not a readable probe.
        what: String,
    },
}

impl Error {
    /// Returns a function for `map_err` that converts the driver's error into an [`Error::Ask`] with this server and
    /// value.
    pub(super) fn ask(
        server: &str,
        what: &'static str,
    ) -> impl FnOnce(mongodb::error::Error) -> Self {
        let server = server.to_owned();
        move |source| Self::Ask { server, what, source: Box::new(source) }
    }
}

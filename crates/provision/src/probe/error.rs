//! The errors of a probe.

use std::io;
use std::path::PathBuf;

use crate::chain;

/// A probe that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job's own reading failed.
    #[error(transparent)]
    Read(#[from] chain::Error),
    /// A server did not say a thing that is needed.
    #[error("cannot ask {server} for {what}")]
    Ask {
        /// The server.
        server: String,
        /// The thing.
        what: &'static str,
        /// The driver's error.
        source: Box<mongodb::error::Error>,
    },
    /// A server's answer lacks a thing that is needed.
    #[error("{server} does not say {what}")]
    Unsaid {
        /// The server.
        server: String,
        /// The thing.
        what: String,
    },
    /// The cache refused a command.
    #[error("the cache failed while the probe used it")]
    Cache(#[source] redis::RedisError),
    /// There is nothing to measure with.
    #[error("{0}")]
    Unfit(String),
    /// It was asked to stop.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// A task of this process ended by a panic.
    #[error("a task of the probe has failed: {0}")]
    Task(String),
    /// The file cannot be read or written.
    #[error("cannot {doing} the probe {}", path.display())]
    Io {
        /// The action, as `read`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is no probe.
    #[error("{} is no probe of `imago provision probe`: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
}

impl Error {
    /// For `map_err`: a server that was asked for `what`.
    pub(super) fn ask(
        server: &str,
        what: &'static str,
    ) -> impl FnOnce(mongodb::error::Error) -> Self {
        let server = server.to_owned();
        move |source| Self::Ask { server, what, source: Box::new(source) }
    }
}

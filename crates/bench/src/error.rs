//! Errors that end a benchmark without figures.

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a benchmark has no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The requested size is invalid.
    #[error("{0}")]
    Size(String),
    /// The clusters could not be started.
    #[error("a testbed cannot be started: {0}")]
    Testbed(#[from] imago_testbed::Error),
    /// Network namespaces cannot be created: the machine or the rights of the user do not allow it.
    #[error("no network of namespaces can be built here: {0}")]
    Namespaces(String),
    /// A server rejected a request of the benchmark itself.
    #[error("a server of the benchmark refused: {0}")]
    Server(#[from] imago_mongo::error::Error),
    /// Tuning was refused or failed.
    #[error(transparent)]
    Tune(#[from] imago_tune::cluster::Error),
    /// A chained job was refused or failed.
    #[error(transparent)]
    Chain(#[from] imago_provision::chain::Error),
    /// A system call failed, such as starting a process or writing a file.
    #[error("cannot {doing}: {cause}")]
    Process {
        /// The attempted action and its object.
        doing: String,
        /// The error of the operating system.
        #[source]
        cause: std::io::Error,
    },
    /// A measured process ended with an unexpected status.
    #[error("{what} ended with {status} instead of {wanted}: {said}")]
    Ended {
        /// The task of the process.
        what: String,
        /// The actual exit status.
        status: String,
        /// The expected exit status.
        wanted: String,
        /// The last lines that the process wrote to stderr; empty if they were not collected.
        said: String,
    },
    /// A condition did not become true in time.
    #[error("{what} did not happen within {bound_s} s")]
    TimedOut {
        /// The awaited condition.
        what: String,
        /// Bound of the wait, in seconds.
        bound_s: u64,
    },
    /// A picture could not be drawn or written.
    #[error(transparent)]
    Chart(#[from] imago_chart::Error),
    /// The measured work was not done correctly, so its time is meaningless.
    #[error("the measured work is wrong: {0}")]
    Wrong(String),
}

/// Turns an error of the operating system into one that names the attempted action.
pub(crate) fn process(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let doing = doing.into();
    move |cause| Error::Process { doing, cause }
}

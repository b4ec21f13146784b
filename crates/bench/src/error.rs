//! The reasons why a benchmark has no figures.

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a benchmark has no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The size makes no sense.
    #[error("{0}")]
    Size(String),
    /// The clusters could not be started.
    #[error("the benchmark's clusters cannot be started: {0}")]
    Testbed(#[from] imago_testbed::Error),
    /// This machine, or this user, cannot have network namespaces.
    #[error("no network of namespaces can be built here: {0}")]
    Namespaces(String),
    /// A server refused what the benchmark itself asked of it.
    #[error("a server of the benchmark refused: {0}")]
    Server(#[from] imago_mongo::error::Error),
    /// Tuning refused, or failed.
    #[error(transparent)]
    Tune(#[from] imago_tune::cluster::Error),
    /// A chained job refused, or failed.
    #[error(transparent)]
    Chain(#[from] imago_provision::chain::Error),
    /// The operating system refused something about a measured process.
    #[error("cannot {doing}: {cause}")]
    Process {
        /// The attempted action and its object.
        doing: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// A measured process did not end as it should have.
    #[error("{what} ended with {status} instead of {wanted}: {said}")]
    Ended {
        /// The awaited task.
        what: String,
        /// The actual exit status.
        status: String,
        /// The expected exit status.
        wanted: String,
        /// The last lines of its output.
        said: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {bound_s} s")]
    TimedOut {
        /// The awaited condition.
        what: String,
        /// The bound.
        bound_s: u64,
    },
    /// Figures could not be drawn.
    #[error("the picture {name} cannot be drawn: {cause}")]
    Picture {
        /// The picture.
        name: &'static str,
        /// The message of the drawing library.
        cause: String,
    },
    /// The work that was measured was not done right, so that its time means nothing.
    #[error("the measured work is wrong: {0}")]
    Wrong(String),
}

/// Turns an error of the operating system into one that names the attempted action.
pub(crate) fn process(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let doing = doing.into();
    move |cause| Error::Process { doing, cause }
}

//! Why a phase has no result.

/// The result of this module's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a phase has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A line of the input is no key.
    #[error("line {line} of the input: {problem}")]
    Input {
        /// The line, from 1 on.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A key has no document.
    #[error("there is no document of the _id {key} in {namespace}")]
    Missing {
        /// The key.
        key: String,
        /// The collection.
        namespace: String,
    },
    /// The server returned a document that no key asked for.
    #[error("{namespace} returned a document of the _id {id}, which was not asked for")]
    Unasked {
        /// The collection.
        namespace: String,
        /// Its `_id`.
        id: String,
    },
    /// Two shards have a document of the same `_id`, which is possible where the shard key is another.
    #[error("{namespace} has two documents of the _id {id}")]
    Twice {
        /// The collection.
        namespace: String,
        /// The `_id`.
        id: String,
    },
    /// The cluster does not answer at all.
    #[error("the cluster {cluster} does not answer: {cause}")]
    Unreachable {
        /// Its addresses.
        cluster: String,
        /// The driver's error.
        cause: Box<mongodb::error::Error>,
    },
    /// There is no router to put a proxy before.
    #[error("there is no router at {cluster}: {cause}")]
    NoRouter {
        /// The addresses.
        cluster: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The cluster answers with an error, again and again if another attempt could have helped.
    #[error("reading {namespace} failed, attempt {attempts}: {cause}")]
    Source {
        /// The collection.
        namespace: String,
        /// How often it was asked.
        attempts: u32,
        /// The driver's last error.
        cause: Box<mongodb::error::Error>,
    },
    /// The cache failed, and it is required.
    #[error("the cache {cache} failed: {cause}")]
    Cache {
        /// Its address.
        cache: String,
        /// The reason.
        cause: String,
    },
    /// The nodes of a tree are not all there.
    #[error("the tree is incomplete: {0}")]
    Tree(String),
    /// The input cannot be read.
    #[error("cannot read {what}: {cause}")]
    Read {
        /// What.
        what: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The output cannot be written: its reader went away, or the disk is full.
    #[error("cannot write the output, which is incomplete: {0}")]
    Write(#[source] std::io::Error),
    /// The proxy cannot listen.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// It was asked to stop.
    #[error("interrupted; the output is incomplete")]
    Interrupted,
    /// A task of this process ended by a panic.
    #[error("a task of the job has failed: {0}")]
    Task(String),
}

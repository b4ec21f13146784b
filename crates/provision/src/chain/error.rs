//! The errors of a chain's phases.

/// The result of this module's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A reason why a phase has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid; the field is the reason.
    #[error("{0}")]
    Usage(String),
    /// A line of the input is invalid.
    #[error("line {line} of the input: {problem}")]
    Input {
        /// Number of the line, from 1 on.
        line: u64,
        /// Description of the problem.
        problem: String,
    },
    /// A key has no document.
    #[error("there is no document of the _id {key} in {namespace}")]
    Missing {
        /// The key, as text.
        key: String,
        /// The collection, as `database.collection`.
        namespace: String,
    },
    /// The server returned a document whose `_id` was not requested.
    #[error("{namespace} returned a document of the _id {id}, which was not asked for")]
    UnrequestedDocument {
        /// The collection, as `database.collection`.
        namespace: String,
        /// The document's `_id`, as text.
        id: String,
    },
    /// Two shards have a document of the same `_id`, which is possible if the shard key is another field.
    #[error("{namespace} has two documents of the _id {id}")]
    DuplicateDocument {
        /// The collection, as `database.collection`.
        namespace: String,
        /// The `_id`, as text.
        id: String,
    },
    /// No server of the cluster replies.
    #[error("the cluster {cluster} does not answer: {cause}")]
    Unreachable {
        /// The addresses of the cluster.
        cluster: String,
        /// The driver's error.
        cause: Box<mongodb::error::Error>,
    },
    /// The addresses are not those of a router, which a proxy needs.
    #[error("there is no router at {cluster}: {cause}")]
    NoRouter {
        /// The addresses in the connection string.
        cluster: String,
        /// The underlying error.
        #[source]
        cause: std::io::Error,
    },
    /// A read failed; a transient error was retried.
    #[error("reading {namespace} failed, attempt {attempts}: {cause}")]
    Source {
        /// The collection, as `database.collection`.
        namespace: String,
        /// Number of attempts.
        attempts: u32,
        /// The driver's error of the last attempt.
        cause: Box<mongodb::error::Error>,
    },
    /// The cache failed, and it is required.
    #[error("the cache {cache} failed: {cause}")]
    Cache {
        /// Address of the cache.
        cache: String,
        /// The reason of the failure.
        cause: String,
    },
    /// Nodes of a Merkle tree are missing or repeated; the field is the description.
    #[error("the tree is incomplete: {0}")]
    Tree(String),
    /// The input cannot be read.
    #[error("cannot read {what}: {cause}")]
    Read {
        /// Name of the input.
        what: String,
        /// The operating system's error.
        #[source]
        cause: std::io::Error,
    },
    /// The output cannot be written: its reader has closed it, or the disk is full.
    #[error("cannot write the output, which is incomplete: {0}")]
    Write(#[source] std::io::Error),
    /// The proxy cannot listen.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address to listen at.
        address: String,
        /// The operating system's error.
        #[source]
        cause: std::io::Error,
    },
    /// The job was interrupted.
    #[error("interrupted; the output is incomplete")]
    Interrupted,
    /// A task of this process ended by a panic; the field is its message.
    #[error("a task of the job has failed: {0}")]
    Task(String),
}

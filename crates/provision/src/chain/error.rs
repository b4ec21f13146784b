//! The errors of a chain of MapReduce jobs.

/// The result of an operation of a chain.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A reason why a phase of a chain, or the proxy with its cache, cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid; the field is the reason, for display.
    #[error("{0}")]
    Usage(String),
    /// A line of the input of a map or a reduce is invalid.
    #[error("line {line} of the input: {problem}")]
    Input {
        /// Number of the line in the input, from 1 on.
        line: u64,
        /// Description of the problem with the line.
        problem: String,
    },
    /// A requested key has no document in the collection.
    #[error("there is no document of the _id {key} in {namespace}")]
    Missing {
        /// The key without a document, as text.
        key: String,
        /// The collection that was read, as `database.collection`.
        namespace: String,
    },
    /// The server returned a document whose `_id` was not requested.
    #[error("{namespace} returned a document of the _id {id}, which was not asked for")]
    UnrequestedDocument {
        /// The collection that was read, as `database.collection`.
        namespace: String,
        /// The `_id` of the document that was not requested, as text.
        id: String,
    },
    /// Two shards have a document of the same `_id`, which is possible if the shard key is another field.
    #[error("{namespace} has two documents of the _id {id}")]
    DuplicateDocument {
        /// The collection that was read, as `database.collection`.
        namespace: String,
        /// The `_id` that two documents have, as text.
        id: String,
    },
    /// No server of the cluster replies.
    #[error("the cluster {cluster} does not answer: {cause}")]
    Unreachable {
        /// The addresses of the cluster, as `host:port`, separated by commas.
        cluster: String,
        /// The error of the MongoDB driver.
        cause: Box<mongodb::error::Error>,
    },
    /// The addresses in the connection string do not lead to a router (mongos), which a proxy needs.
    #[error("there is no router at {cluster}: {cause}")]
    NoRouter {
        /// The addresses in the connection string, as `host:port`, separated by commas.
        cluster: String,
        /// The error of the connection to the addresses, or of their reply.
        #[source]
        cause: std::io::Error,
    },
    /// A read of the collection failed. A transient error was retried before.
    #[error("reading {namespace} failed, attempt {attempts}: {cause}")]
    Source {
        /// The collection that was read, as `database.collection`.
        namespace: String,
        /// Number of attempts to read the batch, the last one included.
        attempts: u32,
        /// The driver's error of the last attempt.
        cause: Box<mongodb::error::Error>,
    },
    /// The cache failed, and its options require it.
    #[error("the cache {cache} failed: {cause}")]
    Cache {
        /// Address of the cache as `host:port`, without a password.
        cache: String,
        /// The error of the Redis client, as text.
        cause: String,
    },
    /// Nodes of a Merkle tree are missing or repeated; the field describes which.
    #[error("the tree is incomplete: {0}")]
    Tree(String),
    /// An input of the chain, such as a file of keys, cannot be read.
    #[error("cannot read {what}: {cause}")]
    Read {
        /// Name of the input: the path of a file, or `the input` for the standard input.
        what: String,
        /// The operating system's error of the read.
        #[source]
        cause: std::io::Error,
    },
    /// The output cannot be written, for example because its reader has closed it, or the disk is full.
    #[error("cannot write the output, which is incomplete: {0}")]
    Write(#[source] std::io::Error),
    /// The proxy cannot listen at its address.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address at which the proxy should listen, as `host:port`.
        address: String,
        /// The operating system's error of the listening socket.
        #[source]
        cause: std::io::Error,
    },
    /// The job was cancelled before its end, so its output is incomplete.
    #[error("interrupted; the output is incomplete")]
    Interrupted,
    /// A task of this process ended by a panic; the field is its message.
    #[error("a task of the job has failed: {0}")]
    Task(String),
}

//! Errors of real servers: each variant names the operation, its object, and the remedy.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a server or cluster could not be started, stopped or queried, or a fault not be injected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server program was not found.
    #[error(
        "no `{program}` found: looked at ${variable} and {looked}; \
         run `make setup`, or name one in {variable}"
    )]
    NoProgram {
        /// Name of the program.
        program: &'static str,
        /// Name of the environment variable that may contain its path.
        variable: &'static str,
        /// The other places that were searched.
        looked: String,
    },

    /// An environment variable names a file or folder that is not the required program.
    #[error("{variable} names {}, which is not {wanted}: correct or unset it", path.display())]
    BadProgram {
        /// Name of the environment variable.
        variable: &'static str,
        /// Value of the variable.
        path: PathBuf,
        /// What the variable must name.
        wanted: &'static str,
    },

    /// The specification cannot be built.
    #[error("cannot build this testbed: {0}")]
    Spec(String),

    /// An operation of the operating system failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// The system's error.
        source: std::io::Error,
    },

    /// No free port was found.
    #[error("found no free port on 127.0.0.1 in {attempts} attempts: stop other servers")]
    NoPort {
        /// Number of ports that were tried.
        attempts: u32,
    },

    /// A server ended without having been requested to.
    #[error("{node} ended with {status} before it replied; the end of its log {}:\n{tail}", log.display())]
    ServerEnded {
        /// Name of the server.
        node: String,
        /// Exit status of its process.
        status: ExitStatus,
        /// Path of its log.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },

    /// A condition was not met within its time limit.
    #[error("timed out after {bound_s} s waiting for {what}; last state: {last}")]
    TimedOut {
        /// The awaited condition.
        what: String,
        /// Time limit, in seconds.
        bound_s: u64,
        /// Last observation before the time limit.
        last: String,
    },

    /// A server rejected a command.
    #[error("{node} refused `{command}`: {message} (code {code})")]
    Refused {
        /// Name or address of the server.
        node: String,
        /// Name of the command.
        command: String,
        /// The server's message.
        message: String,
        /// The server's error code.
        code: i32,
    },

    /// A server did not reply, or its reply is malformed.
    #[error("cannot run `{command}` on {node}: {reason}")]
    Unanswered {
        /// Name or address of the server.
        node: String,
        /// Name of the command.
        command: String,
        /// Reason why there is no valid reply.
        reason: String,
    },

    /// The cluster has no node or replica set of this name.
    #[error("cluster {cluster} has no {what} named {name}: it has {known}")]
    Unknown {
        /// Name of the cluster.
        cluster: String,
        /// `node` or `replica set`.
        what: &'static str,
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },

    /// A name is not valid for a testbed.
    #[error(
        "{name:?} is not a valid name of a testbed: use 1 to 32 of a–z, 0–9 and `-`, beginning \
         with a letter"
    )]
    BadName {
        /// The name.
        name: String,
    },

    /// A testbed of this name is already running.
    #[error(
        "a testbed named {name} is already running (supervised by process {pid}): use another \
         name, or stop it with `imago testbed down {name}`"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Process id of its supervisor.
        pid: u32,
    },

    /// No testbed of this name is running.
    #[error("no testbed is named {name}: {known}")]
    NoSuchTestbed {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },

    /// The supervisor of a testbed could not execute a request.
    #[error("the testbed {name}: {reason}")]
    Supervisor {
        /// Name of the testbed.
        name: String,
        /// Message of the supervisor, or how it ended.
        reason: String,
    },

    /// The state of a node does not allow the request.
    #[error("cannot {action} {node}: it {state}")]
    WrongState {
        /// The request.
        action: &'static str,
        /// Name of the node.
        node: String,
        /// Present state of the node, as a verb phrase.
        state: &'static str,
    },
}

/// Returns the last lines of a log, preceded by the last error before them: a server that logs much while it ends
/// has logged the reason earlier.
fn log_tail(log: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(LINES));
    let is_why = |line: &&str| line.contains("ERROR") || line.contains("Exception");
    let why = before.iter().rposition(is_why).map_or(&[][..], |last| {
        // A stack trace begins with the error.
        let first = before[..=last].iter().rposition(|line| line.contains("ERROR")).unwrap_or(last);
        &before[first..before.len().min(first + LINES)]
    });
    why.iter().chain(end).copied().collect::<Vec<_>>().join("\n")
}

impl Error {
    /// Returns the error for a server that ended, with the end of its log.
    pub(crate) fn server_ended(node: &str, status: ExitStatus, log: &Path) -> Self {
        let content = std::fs::read_to_string(log).unwrap_or_default();
        let tail = log_tail(&content);
        Self::ServerEnded { node: node.to_owned(), status, log: log.to_path_buf(), tail }
    }

    /// Returns a function that wraps a system error with the attempted operation.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_said_before_it_took_long_to_end_is_told() {
        let log = |why: &str| {
            let many =
                (0..40).map(|n| format!("INFO  Flushing memtable {n}\n")).collect::<String>();
            format!("INFO  starting\n{why}{many}")
        };
        let told =
            log_tail(&log("ERROR in startup\njava.lang.RuntimeException: no schema\n\tat X\n"));
        assert!(
            told.starts_with("ERROR in startup\njava.lang.RuntimeException: no schema\n"),
            "{told}"
        );
        assert!(told.ends_with("INFO  Flushing memtable 39"), "{told}");
        assert_eq!(log_tail(&log("")).lines().count(), 12);
        assert_eq!(log_tail("half a log"), "half a log");
    }
}

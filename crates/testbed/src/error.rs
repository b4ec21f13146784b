//! Errors of real servers: each variant names the operation, its object, and the remedy.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Result of this crate's operations; the error is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a server or cluster could not be started, stopped or queried, or why a fault could not be injected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server program was not found on this machine.
    #[error(
        "no `{program}` found: looked at ${variable} and {looked}; \
         run `make setup`, or name one in {variable}"
    )]
    NoProgram {
        /// File name of the program.
        program: &'static str,
        /// Name of the environment variable that may contain the program's path.
        variable: &'static str,
        /// Description of the other places that were searched for the program.
        looked: String,
    },

    /// An environment variable names a file or folder that is not the required program.
    #[error("{variable} names {}, which is not {wanted}: correct or unset it", path.display())]
    BadProgram {
        /// Name of the environment variable with the wrong value.
        variable: &'static str,
        /// Value of the environment variable.
        path: PathBuf,
        /// Description of the file or folder that the variable must name.
        wanted: &'static str,
    },

    /// A testbed, or a part of it, cannot be built; the text names the value to change or the failed step.
    #[error("cannot build this testbed: {0}")]
    Spec(String),

    /// An operation of the operating system failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// Description of the operation and its object, as a verb phrase.
        doing: String,
        /// Error that the operating system returned.
        source: std::io::Error,
    },

    /// No free port was found on 127.0.0.1.
    #[error("found no free port on 127.0.0.1 in {attempts} attempts: stop other servers")]
    NoPort {
        /// Number of ports that were tried.
        attempts: u32,
    },

    /// A server's process ended although nothing requested that.
    #[error("{node} ended with {status} before it replied; the end of its log {}:\n{tail}", log.display())]
    ServerEnded {
        /// Name of the server that ended.
        node: String,
        /// Exit status of the server's process.
        status: ExitStatus,
        /// Path of the server's log.
        log: PathBuf,
        /// Last lines of the log, preceded by the last error before them.
        tail: String,
    },

    /// An awaited condition was not met within its time limit.
    #[error("timed out after {bound_s} s waiting for {what}; last state: {last}")]
    TimedOut {
        /// Description of the awaited condition.
        what: String,
        /// Time limit of the wait, in seconds.
        bound_s: u64,
        /// Description of the last state that was observed before the time limit.
        last: String,
    },

    /// A server replied to a command with an error.
    #[error("{node} refused `{command}`: {message} (code {code})")]
    Refused {
        /// Name or address of the server that rejected the command.
        node: String,
        /// Name of the rejected command.
        command: String,
        /// Message in the server's reply.
        message: String,
        /// Error code in the server's reply.
        code: i32,
    },

    /// A server did not reply to a command, or its reply is malformed.
    #[error("cannot run `{command}` on {node}: {reason}")]
    Unanswered {
        /// Name or address of the server to which the command was sent.
        node: String,
        /// Name of the command that was sent.
        command: String,
        /// Reason why there is no valid reply.
        reason: String,
    },

    /// The cluster has no node or replica set of this name.
    #[error("cluster {cluster} has no {what} named {name}: it has {known}")]
    Unknown {
        /// Name of the cluster that was searched.
        cluster: String,
        /// Kind of the searched object: `node` or `replica set`.
        what: &'static str,
        /// Name that was requested and does not exist.
        name: String,
        /// Names that exist in the cluster, separated by commas.
        known: String,
    },

    /// A name is not valid for a testbed (1 to 32 of a–z, 0–9 and `-`, beginning with a letter).
    #[error(
        "{name:?} is not a valid name of a testbed: use 1 to 32 of a–z, 0–9 and `-`, beginning \
         with a letter"
    )]
    BadName {
        /// The invalid name.
        name: String,
    },

    /// A testbed with the requested name is already running.
    #[error(
        "a testbed named {name} is already running (supervised by process {pid}): use another \
         name, or stop it with `imago testbed down {name}`"
    )]
    NameTaken {
        /// Name of the running testbed.
        name: String,
        /// Process id of that testbed's supervisor.
        pid: u32,
    },

    /// No testbed with the requested name is running.
    #[error("no testbed is named {name}: {known}")]
    NoSuchTestbed {
        /// Name that was requested and does not exist.
        name: String,
        /// Text that lists the names of the running testbeds.
        known: String,
    },

    /// The supervisor of a testbed could not execute a request.
    #[error("the testbed {name}: {reason}")]
    Supervisor {
        /// Name of the testbed whose supervisor failed.
        name: String,
        /// Message of the supervisor, or a description of how its process ended.
        reason: String,
    },

    /// The state of a node does not allow the requested action.
    #[error("cannot {action} {node}: it {state}")]
    WrongState {
        /// The requested action, as a verb phrase.
        action: &'static str,
        /// Name of the node that cannot execute the action.
        node: String,
        /// Present state of the node, as a verb phrase.
        state: &'static str,
    },
}

/// Returns the last 12 lines of the log text `log`, preceded by the last error before them: a server that logs much
/// while it ends has logged the reason earlier.
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
    /// Returns the error for the server `node` whose process ended with `status`; it contains the end of the file
    /// `log`.
    pub(crate) fn server_ended(node: &str, status: ExitStatus, log: &Path) -> Self {
        let content = std::fs::read_to_string(log).unwrap_or_default();
        let tail = log_tail(&content);
        Self::ServerEnded { node: node.to_owned(), status, log: log.to_path_buf(), tail }
    }

    /// Returns a function that wraps an error of the operating system with `doing`, the attempted operation as a verb
    /// phrase.
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

//! Errors of real servers: each variant names what was tried, on what, and the remedy.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a server or cluster could not be started, stopped, inject or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server program was found in any of the places where one may be.
    #[error(
        "no `{program}` found: looked at ${variable} and {looked}; \
         run `make setup`, or name one in {variable}"
    )]
    NoProgram {
        /// The program's name.
        program: &'static str,
        /// The environment variable that may name it.
        variable: &'static str,
        /// The other places that were searched.
        looked: String,
    },

    /// An environment variable names a server program that cannot be run.
    #[error("{variable} names {}, which is not {wanted}: correct or unset it", path.display())]
    BadProgram {
        /// The environment variable.
        variable: &'static str,
        /// The name.
        path: PathBuf,
        /// The expected content.
        wanted: &'static str,
    },

    /// The specification asks for something that cannot be built.
    #[error("cannot build this testbed: {0}")]
    Spec(String),

    /// The operating system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted action and its object.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },

    /// No free port was found.
    #[error(
        "found no free port on 127.0.0.1 in {attempts} attempts: are too many servers running?"
    )]
    NoPort {
        /// Ports that were tried.
        attempts: u32,
    },

    /// A server ended without a request.
    #[error("{node} ended with {status} before it answered; the end of its log {}:\n{tail}", log.display())]
    ServerEnded {
        /// The server's name.
        node: String,
        /// The exit status of its process.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },

    /// Something did not happen within its bound.
    #[error("waited {bound_s} s for {what}, in vain; last seen: {last}")]
    TimedOut {
        /// The awaited condition.
        what: String,
        /// The bound, in seconds.
        bound_s: u64,
        /// The last observation before giving up.
        last: String,
    },

    /// A server refused a command.
    #[error("{node} refused `{command}`: {message} (code {code})")]
    Refused {
        /// The server's name or address.
        node: String,
        /// The command's name.
        command: String,
        /// The server's words.
        message: String,
        /// The server's error code.
        code: i32,
    },

    /// A server could not be asked, or not understood.
    #[error("cannot run `{command}` on {node}: {reason}")]
    Unanswered {
        /// The server's name or address.
        node: String,
        /// The command's name.
        command: String,
        /// The event instead of a reply.
        reason: String,
    },

    /// No node of this name is in the cluster.
    #[error("cluster {cluster} has no {what} named {name}: it has {known}")]
    Unknown {
        /// The cluster's name.
        cluster: String,
        /// `node` or `replica set`.
        what: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },

    /// The name is none that a testbed may have.
    #[error(
        "{name:?} cannot name a testbed: take 1 to 32 of a–z, 0–9 and `-`, beginning with a letter"
    )]
    BadName {
        /// The name.
        name: String,
    },

    /// A testbed of this name stands already.
    #[error(
        "a testbed named {name} is up already (kept by process {pid}): \
         take another name, or end it with `imago testbed down {name}`"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Its supervisor's process id.
        pid: u32,
    },

    /// No testbed of this name stands.
    #[error("no testbed is named {name}: {known}")]
    NoSuchTestbed {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },

    /// The supervisor of a testbed could not meet a request.
    #[error("the testbed {name}: {reason}")]
    Supervisor {
        /// The testbed's name.
        name: String,
        /// The supervisor's message, or its end.
        reason: String,
    },

    /// The node is not in a state in which this can be done to it.
    #[error("cannot {action} {node}: it {state}")]
    WrongState {
        /// The request.
        action: &'static str,
        /// The node's name.
        node: String,
        /// Its present state.
        state: &'static str,
    },
}

/// The last lines of a log; a server that says much while it ends has said why before these.
fn told_at_the_end(log: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(LINES));
    let is_why = |line: &&str| line.contains("ERROR") || line.contains("Exception");
    let why = before.iter().rposition(is_why).map_or(&[][..], |last| {
        // A trace of calls says first what happened.
        let first = before[..=last].iter().rposition(|line| line.contains("ERROR")).unwrap_or(last);
        &before[first..before.len().min(first + LINES)]
    });
    why.iter().chain(end).copied().collect::<Vec<_>>().join("\n")
}

impl Error {
    /// A server that ended, with the end of its log.
    pub(crate) fn server_ended(node: &str, status: ExitStatus, log: &Path) -> Self {
        let content = std::fs::read_to_string(log).unwrap_or_default();
        let tail = told_at_the_end(&content);
        Self::ServerEnded { node: node.to_owned(), status, log: log.to_path_buf(), tail }
    }

    /// Wraps a system error with the attempted operation.
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
        let told = told_at_the_end(&log(
            "ERROR in startup\njava.lang.RuntimeException: no schema\n\tat X\n",
        ));
        assert!(
            told.starts_with("ERROR in startup\njava.lang.RuntimeException: no schema\n"),
            "{told}"
        );
        assert!(told.ends_with("INFO  Flushing memtable 39"), "{told}");
        assert_eq!(told_at_the_end(&log("")).lines().count(), 12);
        assert_eq!(told_at_the_end("half a log"), "half a log");
    }
}

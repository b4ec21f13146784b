//! The job's process: it is started with the proxy's URI, and receives a signal when the recording is cancelled.
//!
//! On a terminal, Ctrl-C reaches the job directly. Otherwise the job has its own process group, to which the signal is
//! forwarded. A job that does not end receives SIGTERM, and then SIGKILL.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Command;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Error, URI_ARGUMENT, URI_VARIABLE};

/// Time between one signal to end the job and the next, stronger one.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The process of a recorded job.
pub(super) struct Child {
    process: tokio::process::Child,
    /// True if the job has its own process group, because stdin is not a terminal.
    has_own_group: bool,
    /// Time and kind of the last signal that was sent to the job; `None` if none was sent.
    last_signal: Option<(Instant, Signal)>,
}

/// The end of a recorded job.
pub(super) struct Ended {
    /// Exit status of the job's process.
    pub(super) status: ExitStatus,
    /// True if a signal was sent to the job to end it.
    was_signalled: bool,
}

impl Ended {
    /// Returns the reason why the recorded reads are not those of a complete job; `None` if the job ended with exit
    /// code 0 and was not signalled.
    pub(super) fn incomplete(&self) -> Option<String> {
        if self.was_signalled {
            return Some("the job was interrupted".into());
        }
        match (self.status.code(), self.status.signal()) {
            (Some(0), _) => None,
            (Some(code), _) => Some(format!("the job ended with exit code {code}")),
            (None, Some(signal)) => Some(format!("signal {signal} ended the job")),
            (None, None) => Some("the job's end is not known".into()),
        }
    }
}

impl Child {
    /// Starts the job `command` (program and arguments), and passes it the proxy's `uri` in its environment and
    /// arguments. `output_to_stderr` redirects its standard output to stderr.
    pub(super) fn start(
        command: &[OsString],
        uri: &str,
        output_to_stderr: bool,
    ) -> Result<Self, Error> {
        let (program, arguments) = command
            .split_first()
            .map_or((OsStr::new(""), &[][..]), |all| (all.0.as_os_str(), all.1));
        let failed = |source| Error::Start { program: program.to_owned(), source };
        let has_own_group = !std::io::stdin().is_terminal();
        let mut start = Command::new(program);
        start
            .args(arguments.iter().map(|argument| with_uri(argument, uri)))
            .env(URI_VARIABLE, uri)
            .kill_on_drop(true);
        if has_own_group {
            start.process_group(0);
        }
        if output_to_stderr {
            let stderr = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
            start.stdout(Stdio::from(stderr));
        }
        let process = start.spawn().map_err(failed)?;
        Ok(Self { process, has_own_group, last_signal: None })
    }

    /// Waits for the end of the job; after `cancel`, sends it stronger and stronger signals. The future may be
    /// dropped and the function called again.
    pub(super) async fn wait(&mut self, cancel: &CancellationToken) -> Result<Ended, Error> {
        loop {
            let next = self.last_signal.map_or_else(Instant::now, |(at, _)| at + END_WITHIN);
            tokio::select! {
                status = self.process.wait() => {
                    let status = status.map_err(Error::Wait)?;
                    return Ok(Ended { status, was_signalled: self.last_signal.is_some() });
                }
                () = cancel.cancelled(), if self.last_signal.is_none() => {
                    self.send_signal(Signal::INT);
                }
                () = sleep_until(next), if self.last_signal.is_some() => {
                    let last = self.last_signal.map(|(_, signal)| signal);
                    let is_first = last == Some(Signal::INT);
                    self.send_signal(if is_first { Signal::TERM } else { Signal::KILL });
                }
            }
        }
    }

    /// Sends a signal to the job's process, or to its process group if it has its own.
    fn send_signal(&mut self, signal: Signal) {
        self.last_signal = Some((Instant::now(), signal));
        let id = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let Some(id) = id else { return };
        let sent = match (self.has_own_group, signal) {
            (true, _) => kill_process_group(id, signal),
            // A terminal on which Ctrl-C was typed has sent the signal already; a second one is harmless.
            (false, _) => kill_process(id, signal),
        };
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot send the job a signal to end");
        }
    }
}

/// Returns a job's argument with each [`URI_ARGUMENT`] (`{uri}`) replaced by the URI.
fn with_uri(argument: &OsStr, uri: &str) -> OsString {
    let (mut rest, place) = (argument.as_bytes(), URI_ARGUMENT.as_bytes());
    let mut replaced = Vec::with_capacity(rest.len());
    while let Some(at) = rest.windows(place.len()).position(|window| window == place) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(uri.as_bytes());
        rest = &rest[at + place.len()..];
    }
    replaced.extend_from_slice(rest);
    OsString::from_vec(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_an_argument_gets_the_uri() {
        let replaced = |text: &str| with_uri(OsStr::new(text), "mongodb://here");
        assert_eq!(replaced("{uri}"), "mongodb://here");
        assert_eq!(replaced("a={uri} b={uri}"), "a=mongodb://here b=mongodb://here");
        assert_eq!(replaced("{url}"), "{url}");
    }

    async fn ended(script: &str, cancel: &CancellationToken) -> Option<String> {
        let command = ["sh", "-c", script].map(OsString::from);
        let mut child = Child::start(&command, "mongodb://here", true).unwrap();
        child.wait(cancel).await.unwrap().incomplete()
    }

    #[tokio::test]
    async fn the_job_gets_the_uri_and_its_end_is_told() {
        let never = CancellationToken::new();
        assert_eq!(ended("test $IMAGO_RECORD_URI = mongodb://here", &never).await, None);
        assert_eq!(ended("exit 3", &never).await.unwrap(), "the job ended with exit code 3");
        assert_eq!(ended("kill -9 $$", &never).await.unwrap(), "signal 9 ended the job");
    }

    #[tokio::test]
    async fn a_request_to_end_is_passed_on_and_the_job_may_end_in_order() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        let script = "trap 'exit 0' INT; while :; do sleep 0.01; done";
        assert_eq!(ended(script, &cancel).await.unwrap(), "the job was interrupted");
    }
}

//! Child processes that cannot outlive this process, and unambiguous identities of processes.
//!
//! The kernel's parent-death signal is sent when the *thread* that created the child ends, so every child is
//! created by one thread that lives as long as this process. A process is identified by its id and its start time
//! together: ids are reused, and a signal must never reach an unrelated process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Time allowed for SIGSTOP to take effect, which takes less than a millisecond on an idle machine.
const STOP_BOUND: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_micros(200);

type SpawnRequest = (Command, Sender<io::Result<Child>>);

/// Starts `command` in its own process group. The kernel kills the child when this process ends, for any reason.
pub fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<SpawnRequest>();
        let run = move || {
            for (command, reply) in requests {
                // The requester may be gone. Dropping the child's handle is right then, because the requester can
                // only be gone when this process is ending.
                let _ = reply.send(spawn_bound_to_this_thread(command));
            }
        };
        thread::Builder::new()
            .name("testbed-spawner".into())
            .spawn(run)
            .expect("a process that can start servers can start one thread");
        sender
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts servers has ended");
    spawner.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

#[allow(unsafe_code, reason = "there is no safe way to act between fork and exec")]
fn spawn_bound_to_this_thread(mut command: Command) -> io::Result<Child> {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes
    // two system calls (prctl, getppid) and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the parent died before the call above, no signal is ever sent.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
            }
            Ok(())
        });
    }
    command.spawn()
}

/// Identity of a process: distinct from that of a later process with the same process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id, which the kernel may reuse after the process has ended.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

/// State of a process according to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// The process runs, or is ready to run.
    Running,
    /// The process is suspended by a signal until it is resumed.
    Stopped,
    /// The process has ended, is a zombie, or another process has its id now.
    Gone,
}

impl ProcessId {
    /// Returns the identity of the process that has the id `pid` now; `None` if there is no such process.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        read_stat(pid).map(|(start_ticks, _)| Self { pid, start_ticks })
    }

    /// Returns the identity of the calling process.
    #[must_use]
    pub fn own() -> Self {
        Self::of(std::process::id()).expect("a running process has an entry in /proc")
    }

    /// Returns the present state of the process. A zombie counts as gone.
    #[must_use]
    pub fn liveness(self) -> Liveness {
        match read_stat(self.pid) {
            Some((start_ticks, state)) if start_ticks == self.start_ticks => match state {
                'T' | 't' => Liveness::Stopped,
                'Z' | 'X' | 'x' => Liveness::Gone,
                _ => Liveness::Running,
            },
            _ => Liveness::Gone,
        }
    }

    /// Sends `signal` to this process and to no other. Returns false if the process is gone.
    ///
    /// When this returns after SIGSTOP, the process is suspended: the kernel delivers the signal later than it
    /// accepts it, and a caller of [`Self::liveness`] in between would see a running process.
    pub fn signal(self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        // The descriptor pins the process, so a later process with the same id cannot receive the signal.
        let pinned = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pinned) => pinned,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if self.liveness() == Liveness::Gone {
            return Ok(false);
        }
        match pidfd_send_signal(&pinned, signal) {
            Ok(()) if signal == Signal::STOP => self.wait_stopped().map(|()| true),
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process is suspended or gone, at most [`STOP_BOUND`].
    fn wait_stopped(self) -> io::Result<()> {
        let sent = Instant::now();
        while self.liveness() == Liveness::Running {
            if sent.elapsed() > STOP_BOUND {
                let message = format!(
                    "process {} still runs {} s after the stop signal",
                    self.pid,
                    STOP_BOUND.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            thread::sleep(STOP_POLL);
        }
        Ok(())
    }
}

/// Returns the start time, in clock ticks since boot, and the state letter of the process `pid` from
/// `/proc/PID/stat`; `None` if there is no such process.
fn read_stat(pid: u32) -> Option<(u64, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may contain any characters.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    Some((fields.get(19)?.parse().ok()?, fields.first()?.chars().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let asked = thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            spawn(command).unwrap()
        });
        let mut child = asked.join().unwrap();
        thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_stop_has_taken_effect_when_it_returns() {
        let mut busy = Command::new("sh");
        busy.args(["-c", "while :; do :; done"]);
        let mut child = spawn(busy).unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        for _ in 0..100 {
            assert!(id.signal(Signal::STOP).unwrap());
            assert_eq!(id.liveness(), Liveness::Stopped);
            assert!(id.signal(Signal::CONT).unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!id.signal(Signal::STOP).unwrap(), "it is gone");
    }

    #[test]
    fn a_reused_pid_is_not_signalled() {
        let mut child = spawn({
            let mut command = Command::new("sleep");
            command.arg("60");
            command
        })
        .unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        let stranger = ProcessId { start_ticks: id.start_ticks + 1, ..id };
        assert!(!stranger.signal(Signal::KILL).unwrap());
        assert_eq!(id.liveness(), Liveness::Running);
        assert!(id.signal(Signal::KILL).unwrap());
        child.wait().unwrap();
        assert_eq!(id.liveness(), Liveness::Gone);
    }
}

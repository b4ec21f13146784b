//! Measurement of a process: its elapsed time, its CPU time, its peak memory, and its output.
//!
//! CPU time is read from `/proc/PID/stat` when the process has ended but has not been waited for yet: the kernel
//! keeps the final values until then.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use imago_job::event::{Body, Event, Progress};
use imago_testbed::process::{ProcessId, Signal};

use crate::error::{Error, Result, process};

/// Interval between two reads of the state of the process. The measured work takes at least a second.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum duration of one measured process.
const RUN_MAX: Duration = Duration::from_secs(1800);
/// Unit of CPU time in `/proc`: Linux reports hundredths of a second to user space, at any tick rate of its own.
const TICKS_PER_S: f64 = 100.0;
const LAST_LINES_MAX: usize = 20;

/// Returns the CPU time of a process so far, in seconds; `None` if there is no such process.
pub(crate) fn cpu_s(pid: u32) -> Option<f64> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|stat| stat.cpu_s)
}

/// Returns the CPU time so far of a process, of its children, and of the children for which either has waited, in
/// seconds. Processes that end meanwhile are counted once or not at all.
pub(crate) fn cpu_of_tree_s(pid: u32) -> f64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let stat = |pid| parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    let stats = pids.filter_map(|found| Some((found, stat(found)?)));
    let own = stats.filter(|(found, stat)| *found == pid || stat.parent == pid);
    own.map(|(_, stat)| stat.cpu_s + stat.cpu_of_waited_s).sum()
}

struct Stat {
    state: char,
    parent: u32,
    cpu_s: f64,
    /// CPU time of the children for which the process has waited, in seconds.
    cpu_of_waited_s: f64,
}

fn parse_stat(stat: &str) -> Option<Stat> {
    // The second field is the name of the program in parentheses, and may contain any character.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    let cpu_s = (ticks(11)? + ticks(12)?) / TICKS_PER_S;
    let cpu_of_waited_s = (ticks(13)? + ticks(14)?) / TICKS_PER_S;
    let (state, parent) = (fields.first()?.chars().next()?, fields.get(1)?.parse().ok()?);
    Some(Stat { state, parent, cpu_s, cpu_of_waited_s })
}

fn parse_peak_mb(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

/// The output of a process on stderr.
#[derive(Default)]
struct StderrEvents {
    /// Each report of progress, with its time in ms since the Unix epoch.
    progress: Vec<(u64, Progress)>,
    /// The phases in their order, with the start of each in ms since the Unix epoch.
    phases: Vec<(String, u64)>,
    /// Time of the last event, in ms since the Unix epoch.
    at_ms: u64,
    last: Vec<String>,
}

impl StderrEvents {
    fn phases(&self) -> Vec<(String, f64)> {
        let ends = self.phases.iter().skip(1).map(|(_, began)| *began).chain([self.at_ms]);
        let lasted = |((name, began), end): (&(String, u64), u64)| {
            (name.clone(), end.saturating_sub(*began) as f64 / 1_000.0)
        };
        self.phases.iter().zip(ends).map(lasted).collect()
    }
}

/// A process that is being measured. Dropping it kills it.
pub(crate) struct Measured {
    what: String,
    child: Child,
    began: Instant,
    peak_mb: f64,
    stderr_events: Arc<Mutex<StderrEvents>>,
    readers: Option<(JoinHandle<()>, JoinHandle<Vec<u8>>)>,
}

/// The measurements of a process that has ended.
pub(crate) struct Ended {
    pub wall_s: f64,
    pub cpu_s: f64,
    pub peak_mb: f64,
    /// Standard output of the process.
    pub output: Vec<u8>,
    /// The phases of the process in their order, with the duration of each in seconds.
    pub phases: Vec<(String, f64)>,
    /// The reports of progress, each with its time in ms since the Unix epoch.
    pub progress: Vec<(u64, Progress)>,
}

impl Measured {
    pub(crate) fn start(what: impl Into<String>, mut command: Command) -> Result<Self> {
        let what = what.into();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = imago_testbed::process::spawn(command)
            .map_err(process(format!("start the process for {what}")))?;
        let stderr_events = Arc::new(Mutex::new(StderrEvents::default()));
        let stderr = child.stderr.take().expect("stderr is piped");
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let to = Arc::clone(&stderr_events);
        let listener = std::thread::spawn(move || listen(stderr, &to));
        let reader = std::thread::spawn(move || {
            let mut output = Vec::new();
            // A broken pipe ends the output; the exit status shows whether the process failed.
            let _ = stdout.read_to_end(&mut output);
            output
        });
        let readers = Some((listener, reader));
        Ok(Self { what, child, began, peak_mb: 0.0, stderr_events, readers })
    }

    /// Returns the progress reports so far.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        lock(&self.stderr_events).progress.iter().map(|(_, one)| one.clone()).collect()
    }

    /// Sends SIGINT to the process, as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> Result<()> {
        let doing = || format!("interrupt {}", self.what);
        let Some(id) = ProcessId::of(self.child.id()) else { return Ok(()) };
        id.signal(Signal::INT).map(|_| ()).map_err(process(doing()))
    }

    /// Waits for the end of the process. Returns an error unless its exit code is `wanted`.
    pub(crate) async fn end(mut self, wanted: i32) -> Result<Ended> {
        let pid = self.child.id();
        let cpu_s = loop {
            if let Some(cpu_s) = self.read_usage(pid)? {
                break cpu_s;
            }
            if self.began.elapsed() > RUN_MAX {
                return Err(Error::TimedOut {
                    what: format!("the end of {}", self.what),
                    bound_s: RUN_MAX.as_secs(),
                });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let wall_s = self.began.elapsed().as_secs_f64();
        let doing = || format!("wait for {}", self.what);
        let status = self.child.wait().map_err(process(doing()))?;
        let (listener, reader) = self.readers.take().expect("it ends once");
        listener.join().expect("the listener does not panic");
        let output = reader.join().expect("the reader does not panic");
        let stderr_events = std::mem::take(&mut *lock(&self.stderr_events));
        if status.code() != Some(wanted) {
            return Err(Error::Ended {
                what: self.what.clone(),
                status: status.to_string(),
                wanted: format!("exit code {wanted}"),
                said: stderr_events.last.join("\n"),
            });
        }
        Ok(Ended {
            wall_s,
            cpu_s,
            peak_mb: self.peak_mb,
            output,
            phases: stderr_events.phases(),
            progress: stderr_events.progress,
        })
    }

    /// Updates the peak memory. Returns the final CPU time in seconds once the process has ended, and `None` before.
    fn read_usage(&mut self, pid: u32) -> Result<Option<f64>> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).map_err(process(format!("read {path}")))
        };
        let stat = read("stat")?;
        let stat = parse_stat(&stat)
            .ok_or_else(|| Error::Wrong(format!("/proc/{pid}/stat is not readable: {stat}")))?;
        if let Some(mb) = parse_peak_mb(&read("status")?) {
            self.peak_mb = self.peak_mb.max(mb);
        }
        Ok((stat.state == 'Z').then_some(stat.cpu_s))
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        // This fails only if the process has already ended, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stderr: impl Read, to: &Mutex<StderrEvents>) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        let mut stderr_events = lock(to);
        if let Ok(Event { body, at_ms, .. }) = serde_json::from_str(&line) {
            stderr_events.at_ms = at_ms;
            match body {
                Body::Progress(progress) => {
                    stderr_events.progress.push((at_ms, *progress));
                    continue;
                }
                Body::Phase { to, .. } => stderr_events.phases.push((to, at_ms)),
                _ => {}
            }
        }
        if stderr_events.last.len() == LAST_LINES_MAX {
            stderr_events.last.remove(0);
        }
        stderr_events.last.push(line);
    }
}

fn lock(stderr_events: &Mutex<StderrEvents>) -> MutexGuard<'_, StderrEvents> {
    stderr_events.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_of_user_and_system() {
        let stat = "77 (a) b) Z 1 77 77 0 -1 4194560 5 0 0 0 250 30 30 10 20 0 1 0 99 0 0";
        let stat = parse_stat(stat).unwrap();
        assert_eq!((stat.state, stat.cpu_s.to_bits()), ('Z', 2.8_f64.to_bits()));
        assert_eq!((stat.parent, stat.cpu_of_waited_s.to_bits()), (1, 0.4_f64.to_bits()));
    }

    #[test]
    fn the_largest_memory_is_read_in_mb() {
        let status = "Name:\timago\nVmPeak:\t  999 kB\nVmHWM:\t    1000 kB\n";
        assert_eq!(parse_peak_mb(status).map(f64::to_bits), Some(1.024_f64.to_bits()));
        assert_eq!(parse_peak_mb("Name:\timago\n"), None);
    }

    #[tokio::test]
    async fn a_process_that_burns_a_second_is_charged_for_it() {
        let mut command = Command::new("sh");
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done";
        command.args(["-c", burn]);
        let ended = Measured::start("burning", command).unwrap().end(0).await.unwrap();
        assert_eq!(ended.output, b"done\n");
        assert!(ended.cpu_s > 0.05, "{}", ended.cpu_s);
        assert!(ended.cpu_s < ended.wall_s + 0.05, "one thread uses one core");
        assert!(ended.peak_mb > 0.3, "{}", ended.peak_mb);
    }

    #[tokio::test]
    async fn a_process_that_ends_otherwise_than_wanted_is_an_error() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 7"]);
        let error = Measured::start("ending", command).unwrap().end(0).await.err().unwrap();
        assert!(matches!(&error, Error::Ended { said, .. } if said == "broken"), "{error}");
    }
}

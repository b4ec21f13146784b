//! The program as a user runs it, with what it says kept in files.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use imago_testbed::process::{self, ProcessId, Signal};
use imago_testbed::wait;
use serde_json::Value;

/// A process that does not outlive a failing test, nor the test program.
pub struct Process {
    child: Child,
    printed: PathBuf,
    errors: PathBuf,
}

impl Process {
    /// Starts it; what it prints goes into files of this name.
    pub fn start(mut command: Command, printed: PathBuf) -> Self {
        let errors = printed.with_extension("err");
        command
            .stdin(Stdio::null())
            .stdout(File::create(&printed).unwrap())
            .stderr(File::create(&errors).unwrap());
        Self { child: process::spawn(command).unwrap(), printed, errors }
    }

    /// Waits until it enters a phase, and returns its job.
    #[track_caller]
    pub fn phase(&mut self, phase: &str) -> String {
        let mut job = String::new();
        let is_it = |said: &Value| said["event"] == "phase" && said["to"] == phase;
        self.until(phase, |said| {
            job = said["job"].as_str().unwrap_or_default().to_owned();
            is_it(said)
        });
        job
    }

    /// Waits until it has said something.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut is_it: impl FnMut(&Value) -> bool) {
        let (mut file, mut text) = (File::open(&self.errors).unwrap(), String::new());
        let mut is_last = false;
        let errors = self.errors.clone();
        let last_words = || std::fs::read_to_string(&errors).unwrap();
        wait::until_or_report(what, last_words, || {
            file.read_to_string(&mut text).unwrap();
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            let lines: String = text.drain(..whole).collect();
            if lines.lines().filter_map(|line| serde_json::from_str(line).ok()).any(|l| is_it(&l)) {
                return true;
            }
            assert!(!is_last, "it ended before {what}: {}", self.errors());
            is_last = !self.is_running();
            false
        });
    }

    /// Waits for its end: exit code, and the JSON of the result or, when it failed, of the failure.
    #[track_caller]
    pub fn ended(&mut self) -> (i32, Value) {
        let errors = self.errors.clone();
        let last_words = || std::fs::read_to_string(&errors).unwrap();
        wait::until_or_report("the process ends", last_words, || !self.is_running());
        let exit = self.child.wait().unwrap().code().unwrap_or(-1);
        let value = if exit == 0 {
            // Lines that continue the result (of a job that follows) are printed after it.
            let printed = self.printed();
            let mut values = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
            values.next().and_then(Result::ok)
        } else {
            self.said().into_iter().rfind(|said| said["error"].is_object())
        };
        let all = || Value::String(format!("{} {}", self.printed(), self.errors()));
        (exit, value.unwrap_or_else(all))
    }

    /// The lines of JSON that it has said so far: events, and a failure at last.
    pub fn said(&self) -> Vec<Value> {
        self.errors().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The result, also of a command that failed with one.
    pub fn printed(&self) -> String {
        std::fs::read_to_string(&self.printed).unwrap()
    }

    /// All that it has said so far.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills it at once (kill -9).
    pub fn kill(&mut self) {
        assert!(self.is_running(), "it ended before it was killed: {}", self.errors());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Process {
    /// Stops it where it is (SIGSTOP).
    pub fn freeze(&self) {
        let process = ProcessId::of(self.child.id()).unwrap();
        assert!(process.signal(Signal::STOP).unwrap(), "it has ended already");
    }

    /// Lets it go on after that (SIGCONT).
    pub fn thaw(&self) {
        let process = ProcessId::of(self.child.id()).unwrap();
        assert!(process.signal(Signal::CONT).unwrap(), "it has ended already");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

//! The program, run as a user runs it, with what it says kept.

use std::process::Stdio;
use std::time::Duration;

use imago_testbed::process::{ProcessId, Signal};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(150);

/// A running program; killed when it is dropped.
pub struct Program {
    child: Child,
    says: mpsc::UnboundedReceiver<Value>,
    said: Vec<Value>,
    stdout: JoinHandle<String>,
}

/// The end of a program.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; none after a kill.
    pub code: Option<i32>,
    /// The result: the JSON on stdout, null if there is none.
    pub result: Value,
    /// The error on stderr, null if there is none.
    pub error: Value,
    /// The events on stderr.
    pub said: Vec<Value>,
}

impl Program {
    /// Starts it, with events and results as JSON.
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_imago"))
            .args(arguments)
            .args(["--json", "--progress", "json"])
            .env_clear()
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let stdout = tokio::spawn(async move {
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.unwrap();
            text
        });
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (say, says) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if say.send(value).is_err() {
                    return;
                }
            }
        });
        Self { child, says, said: Vec::new(), stdout }
    }

    /// Reads what it says until `wanted` accepts it.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let hear = async {
            while let Some(value) = self.says.recv().await {
                self.said.push(value.clone());
                if wanted(&value) {
                    return Some(value);
                }
            }
            None
        };
        let heard = tokio::time::timeout(PATIENCE, hear).await;
        let last = &self.said[self.said.len().saturating_sub(12)..];
        match heard {
            Ok(Some(value)) => value,
            Ok(None) => panic!("it ended before {what}; last words: {last:#?}"),
            Err(_) => panic!("no {what} in {PATIENCE:?}; last words: {last:#?}"),
        }
    }

    /// Waits until it has entered a phase, and returns the job's id.
    pub async fn phase(&mut self, phase: &str) -> String {
        let entered = |said: &Value| said["event"] == "phase" && said["to"] == phase;
        let event = self.until(phase, entered).await;
        event["job"].as_str().unwrap().to_owned()
    }

    /// Waits until it has copied this many documents of the bulk.
    pub async fn copied(&mut self, documents: u64) -> Value {
        let enough = |said: &Value| {
            said["event"] == "progress"
                && said["documents_done"].as_u64().is_some_and(|done| done >= documents)
        };
        self.until(&format!("{documents} documents"), enough).await
    }

    /// Waits until it has applied this many changes since it began.
    pub async fn applied(&mut self, changes: u64) -> Value {
        let enough = |said: &Value| {
            said["event"] == "progress"
                && said["changes_applied"].as_u64().is_some_and(|applied| applied >= changes)
        };
        self.until(&format!("{changes} changes"), enough).await
    }

    /// The newest progress that it has told of by now.
    pub fn progress(&mut self) -> Value {
        self.heard(|said| said["event"] == "progress").unwrap_or_default()
    }

    /// The newest of what it has said by now that `wanted` accepts.
    pub fn heard(&mut self, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        while let Ok(value) = self.says.try_recv() {
            self.said.push(value);
        }
        self.said.iter().rev().find(|said| wanted(said)).cloned()
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// kill -9.
    pub async fn kill(mut self) {
        assert!(self.is_running(), "it ended before it was killed: {:#?}", self.ended().await);
        self.child.kill().await.unwrap();
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP: it stands still until it is thawed.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = ProcessId::of(self.child.id().unwrap()).unwrap();
        assert!(process.signal(signal).unwrap(), "it has ended already");
    }

    /// Waits until it ends.
    pub async fn ended(mut self) -> Ended {
        let ending = async {
            while let Some(value) = self.says.recv().await {
                self.said.push(value);
            }
            self.child.wait().await.unwrap()
        };
        let Ok(status) = tokio::time::timeout(PATIENCE, ending).await else {
            let last = &self.said[self.said.len().saturating_sub(12)..];
            panic!("it did not end in {PATIENCE:?}; last words: {last:#?}");
        };
        let stdout = self.stdout.await.unwrap();
        let mut errors = self.said.iter().filter_map(|said| said.get("error"));
        let error = errors.rfind(|error| error.is_object());
        Ended {
            code: status.code(),
            result: serde_json::from_str(&stdout).unwrap_or_default(),
            error: error.cloned().unwrap_or_default(),
            said: self.said,
        }
    }
}

/// Runs it to its end, which must be this one.
pub async fn run(arguments: &[&str], code: i32) -> Ended {
    Program::start(arguments).ended().await.with(code)
}

impl Ended {
    /// It must have ended with this exit code.
    pub fn with(self, code: i32) -> Self {
        let last = &self.said[self.said.len().saturating_sub(12)..];
        assert_eq!(self.code, Some(code), "{} {} {last:#?}", self.error, self.result);
        self
    }
}

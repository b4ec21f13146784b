//! Real nodes of Cassandra, shared by the tests of one function.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use imago_testbed::find_cassandra;
use serde_json::Value;

use crate::process::Process;
use crate::reshard::dice::is_long;

/// A testbed, and the file that says how they are reached.
pub(super) struct Ring {
    folder: tempfile::TempDir,
    pub(super) uri: String,
    pub(super) cluster: String,
}

impl Ring {
    /// Three nodes in three racks. None where they cannot or need not be started; that is said.
    pub(super) fn start() -> Option<Self> {
        Self::of(3)
    }

    /// So many nodes, each in a rack of its own.
    pub(super) fn of(nodes: u8) -> Option<Self> {
        if !is_long() {
            eprintln!("skipped: {nodes} nodes of Java are started by make test-long");
            return None;
        }
        if let Err(missing) = find_cassandra() {
            eprintln!("skipped: {missing}");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Self { folder, uri: String::new(), cluster: String::new() };
        let nodes = nodes.to_string();
        let up = ["testbed", "up", "cassandra", "--name", "ring", "--nodes", &nodes, "--racks"];
        let up = ring.json(&[&up[..], &[&nodes, "--heap-mb", "256"]].concat());
        ring.uri = up["uri"].as_str().unwrap().to_owned();
        ring.cluster = up["cluster_file"].as_str().unwrap().to_owned();
        Some(ring)
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command
            .args(arguments)
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .env("TMPDIR", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The result of a command that succeeds.
    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The failure of a command that has this exit code.
    pub(super) fn refused(&self, arguments: &[&str], exit: i32) -> String {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {said}");
        said
    }

    pub(super) fn start_process(&self, arguments: &[&str], name: &str) -> Process {
        let arguments = [arguments, &["--json", "--progress", "json"]].concat();
        Process::start(self.command(&arguments), self.path(name))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn configuration(&self, node: &str) -> PathBuf {
        let folder = PathBuf::from(&self.cluster);
        folder.parent().unwrap().join(format!("{node}.conf/cassandra.yaml"))
    }

    pub(super) fn roll<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["tune", "roll", "--cluster", &*self.cluster], more].concat()
    }

    pub(super) fn pids(&self) -> Vec<Value> {
        let status = self.json(&["testbed", "status", "ring"]);
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["process"]["pid"].clone()).collect()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = self.run(&["testbed", "down", "--all"]);
    }
}

//! A testbed in the background, as a user has it, and commands beside it; it ends with the test.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::process::Process;

/// A testbed, and the file that says how its nodes are reached.
pub(crate) struct Standing {
    folder: tempfile::TempDir,
    name: String,
    pub(crate) uri: String,
    /// The administrator's URI of a MongoDB cluster; empty for others.
    pub(crate) admin_uri: String,
    pub(crate) cluster: String,
}

impl Standing {
    /// Starts a testbed of this name: `imago testbed up` with these arguments.
    pub(crate) fn start(name: &str, up: &[&str]) -> Self {
        Self::start_with(name, up, &[])
    }

    /// The same, with these variables in its environment, and so in that of its nodes.
    pub(crate) fn start_with(name: &str, up: &[&str], variables: &[(&str, &OsStr)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (name, none) = (name.to_owned(), String::new());
        let (uri, admin_uri) = (none.clone(), none.clone());
        let mut standing = Self { folder, name, uri, admin_uri, cluster: none };
        let name = standing.name.clone();
        let mut up =
            standing.command(&[&["testbed", "up"], up, &["--name", &name, "--json"]].concat());
        let output = up.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let up: Value = serde_json::from_slice(&output.stdout).unwrap();
        standing.uri = up["uri"].as_str().unwrap().to_owned();
        standing.admin_uri = up["admin_uri"].as_str().unwrap_or_default().to_owned();
        standing.cluster = up["cluster_file"].as_str().unwrap_or_default().to_owned();
        standing
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command
            .args(arguments)
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .env("TMPDIR", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The result of a command that succeeds.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The failure of a command that has this exit code.
    pub(crate) fn refused(&self, arguments: &[&str], exit: i32) -> String {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {said}");
        said
    }

    pub(crate) fn start_process(&self, arguments: &[&str], name: &str) -> Process {
        let arguments = [arguments, &["--json", "--progress", "json"]].concat();
        Process::start(self.command(&arguments), self.path(name))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of a node's configuration.
    pub(crate) fn configuration(&self, node: &str, file: &str) -> PathBuf {
        let folder = PathBuf::from(&self.cluster);
        folder.parent().unwrap().join(format!("{node}.conf/{file}"))
    }

    /// Gives a node a fault.
    pub(crate) fn inject(&self, fault: &str, node: &str) {
        self.json(&["testbed", "inject", &self.name, fault, "--node", node]);
    }

    pub(crate) fn roll<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["tune", "roll", "--cluster", &*self.cluster], more].concat()
    }

    pub(crate) fn pids(&self) -> Vec<Value> {
        let status = self.json(&["testbed", "status", &self.name]);
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["process"]["pid"].clone()).collect()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = self.run(&["testbed", "down", "--all"]);
    }
}

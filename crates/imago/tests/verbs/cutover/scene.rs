//! Two clusters, a load against the old one, and the program as a user runs it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use bson::{Document, doc};
use imago_mongo::error::{Error, code};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased, replica_set};
use imago_testbed::{Cluster, ClusterSpec, wait};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Process;

/// The collection that moves.
pub const NS: &str = "shop.reviews";
/// Error code of a user's write while writes are blocked.
pub const BLOCKED: i32 = 371;
const DOCUMENTS: &str = "2000";

/// An old and a new cluster, and a folder for histories, sockets and what processes print.
pub struct Scene {
    /// The cluster that has the collection.
    pub old: Leased,
    /// The cluster to which it moves.
    pub new: Leased,
    folder: TempDir,
}

impl Scene {
    /// Two replica sets with authorisation.
    pub async fn start() -> Self {
        Self::of(replica_set(1).with_auth(), replica_set(1).with_auth()).await
    }

    /// Clusters of any kind.
    pub async fn of(old: ClusterSpec, new: ClusterSpec) -> Self {
        let [old, new] = Box::pin(pool::lease_all([old, new])).await.unwrap();
        Self { old, new, folder: tempfile::tempdir().unwrap() }
    }

    /// The program with these words, in the scene's folder.
    pub fn imago(&self, words: &[&str]) -> Command {
        self.program(words, "none")
    }

    /// The same with every event as a line of JSON.
    pub fn telling(&self, words: &[&str]) -> Command {
        self.program(words, "json")
    }

    fn program(&self, words: &[&str], progress: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.current_dir(self.folder.path()).args(words);
        command.args(["--json", "--progress", progress]);
        command
    }

    /// The same with both clusters, as their administrators.
    pub fn between(&self, words: &[&str]) -> Command {
        let mut command = self.imago(words);
        command.args(["--from", &self.old.admin_uri(), "--to", &self.new.admin_uri()]);
        command
    }

    /// Starts a process whose output goes into files, so that its orphans hold no pipe open.
    pub fn spawn(&self, command: Command, name: &str) -> Process {
        Process::start(command, self.folder.path().join(name))
    }

    /// Runs to the end: exit code, and the JSON of the result or, when it failed, of the failure.
    pub fn run(&self, command: Command) -> (i32, Value) {
        self.spawn(command, &format!("run-{:?}", Instant::now())).ended()
    }

    /// A path within the scene's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Fills the collection, and begins a load that goes on until it is stopped.
    pub fn load(&self) -> Process {
        self.load_of("80", "20s", "read=20,update=45,insert=25,delete=10")
    }

    /// The same with so many operations a second, each of which waits so long for its answer.
    pub fn load_of(&self, rate: &str, op_timeout: &str, mix: &str) -> Process {
        let uri = self.old.uri();
        let what = ["load", "--uri", &uri, "--ns", NS, "--documents", DOCUMENTS, "--size-bytes"];
        let how = ["500", "--until-stopped", "--rate", rate, "--op-timeout", op_timeout, "--mix"];
        let record = [mix, "--record", "h", "--control", "s"];
        let mut load = self.spawn(self.imago(&[&what[..], &how, &record].concat()), "load");
        wait::until_blocking("the load runs", || {
            assert!(load.is_running(), "the load ended: {}", load.errors());
            self.acknowledged() > Some(50)
        });
        load
    }

    /// Writes of the load that were acknowledged.
    fn acknowledged(&self) -> Option<u64> {
        let status = self.imago(&["load", "status", "--control", "s"]).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).ok()?;
        status["writes"]["ok"].as_u64()
    }

    /// Waits until so many further writes of the load are acknowledged.
    pub fn load_goes_on(&self, by: u64) {
        let before = self.acknowledged().unwrap_or(0);
        wait::until_blocking("the load's writes are acknowledged again", || {
            self.acknowledged().is_some_and(|now| now >= before + by)
        });
    }

    /// Ends the load, and compares every acknowledged operation with the content of a cluster.
    pub fn nothing_lost(&self, mut load: Process, at: &Cluster) {
        assert_eq!(self.run(self.imago(&["load", "stop", "--control", "s"])).0, 0);
        assert_eq!(load.ended().0, 0);
        let check = self.imago(&["load", "check", "--uri", &at.uri(), "--history", "h"]);
        let mut check = self.spawn(check, "check");
        let (exit, verdict) = check.ended();
        assert_eq!(exit, 0, "{verdict} {}", check.printed());
        assert!(verdict["writes_acknowledged"].as_u64() > Some(50), "{verdict}");
        assert_eq!(verdict["lost"], 0, "{verdict}");
    }

    /// Copies until the new cluster has caught up; the job.
    pub fn copied(&self) -> String {
        let (exit, ended) = self.run(self.between(&["copy", "--ns", NS, "--until", "caught-up"]));
        assert_eq!(exit, 0, "{ended}");
        ended["job"].as_str().unwrap().to_owned()
    }

    /// A cut-over of the job with these further words.
    pub fn cutover(&self, job: &str, words: &[&str]) -> Command {
        let mut command = self.between(&["cutover", job, "--sample", "200"]);
        command.args(words);
        command
    }

    /// A hook that sends the load to a cluster.
    pub fn switch_to(&self, cluster: &Cluster) -> String {
        let program = env!("CARGO_BIN_EXE_imago");
        format!("exec '{program}' load switch --control s --uri '{}'", cluster.uri())
    }

    /// The path of a file as a word of a command.
    pub fn path(&self, name: &str) -> String {
        self.folder().join(name).display().to_string()
    }
}

/// One write of an application, to a collection that is not moved; the server's refusal.
pub async fn application_writes(cluster: &Cluster) -> Result<(), i32> {
    let command = doc! {"insert": "notes", "documents": [{"text": "written"}]};
    let app = Endpoint::connect(&cluster.uri(), "source").await.unwrap();
    match app.run("other", command).await {
        Ok(reply) => match reply.get_array("writeErrors").ok().and_then(|all| all.first()) {
            Some(error) => Err(error.as_document().unwrap().get_i32("code").unwrap()),
            None => Ok(()),
        },
        Err(Error::Server { cause, .. }) => Err(code(&cause).unwrap()),
        Err(error) => panic!("{error}"),
    }
}

/// Runs a command as the administrator.
pub async fn administer(cluster: &Cluster, db: &str, command: Document) -> Document {
    let admin = Endpoint::connect(&cluster.admin_uri(), "source").await.unwrap();
    admin.run(db, command).await.unwrap()
}

/// The output of a command that is to end, as JSON.
pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

//! `imago testbed` as a user has it: clusters in the background, by name, and nothing after `down`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use imago_testbed::process::{Liveness, ProcessId, Signal};
use imago_testbed::supervisor::registry::{Registry, RegistryEntry};
use imago_testbed::{require, wait};
use serde_json::Value;

/// A state folder and a temporary folder of its own; its testbeds end with it.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn imago(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command
            .arg("testbed")
            .args(arguments)
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .env("TMPDIR", self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.imago(arguments).output().unwrap()
    }

    /// The output of a command that succeeds, as JSON.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn registry(&self) -> Registry {
        Registry::at(self.0.path().join("state/imago/testbed"))
    }

    fn standing(&self, name: &str) -> RegistryEntry {
        self.registry().get(name).unwrap()
    }

    fn assert_nothing_is_left(&self) {
        let left = |folder: &Path| -> Vec<String> {
            let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
            let names = entries.map(|entry| entry.unwrap().file_name());
            names.map(|name| name.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(left(self.registry().folder()), Vec::<String>::new());
        assert_eq!(left(self.0.path()), ["state"]);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Only a test that failed leaves something to end.
        let _ = self.run(&["down", "--all"]);
    }
}

fn processes(standing: &RegistryEntry) -> Vec<ProcessId> {
    let nodes = standing.nodes.iter().filter_map(|node| node.process);
    nodes.chain([standing.supervisor]).collect()
}

fn all_gone(processes: &[ProcessId]) -> bool {
    processes.iter().all(|process| process.liveness() == Liveness::Gone)
}

fn wait(what: &str, done: impl Fn() -> bool) {
    wait::until_blocking(what, done);
}

#[test]
fn a_cluster_stands_under_its_name_and_leaves_nothing_after_down() {
    let home = Home::new();
    let up = home.json(&["up", "mongodb", "--name", "stands"]);
    assert!(up["uri"].as_str().unwrap().starts_with("mongodb://127.0.0.1:"), "{up}");
    let status = home.json(&["status", "stands"]);
    assert_eq!(status["health"], "up");
    assert_eq!(status["nodes"][0]["state"], "primary");
    assert_eq!(home.json(&["list"]).as_array().unwrap().len(), 1);

    let standing = home.standing("stands");
    assert_eq!(home.json(&["down", "stands"])[0]["ended"], "orderly");
    assert!(all_gone(&processes(&standing)));
    home.assert_nothing_is_left();
}

#[test]
fn a_name_that_is_taken_is_refused_and_what_stands_is_unharmed() {
    let home = Home::new();
    home.json(&["up", "mongodb", "--name", "taken"]);
    let again = home.run(&["up", "mongodb", "--name", "taken"]);
    assert_eq!(again.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&again.stderr).contains("already running"));
    assert_eq!(home.json(&["status", "taken"])["health"], "up");
    home.json(&["down", "--all"]);
    home.assert_nothing_is_left();
}

#[test]
fn a_killed_node_is_reported_down_and_comes_back_on_its_port() {
    let home = Home::new();
    home.json(&["up", "mongodb", "--name", "inject"]);
    let port = home.standing("inject").nodes[0].port;
    home.json(&["inject", "inject", "kill", "--node", "inject-0"]);
    let status = home.json(&["status", "inject"]);
    assert_eq!(
        (&status["health"], &status["nodes"][0]["liveness"]),
        (&"impaired".into(), &"gone".into())
    );
    home.json(&["inject", "inject", "restart", "--node", "inject-0"]);
    assert_eq!(home.json(&["status", "inject"])["health"], "up");
    assert_eq!(home.standing("inject").nodes[0].port, port);
    home.json(&["inject", "inject", "stepdown", "--node", "inject-0"]);
    home.json(&["down", "inject"]);
}

#[test]
fn a_killed_supervisor_takes_its_servers_along_and_down_removes_the_rest() {
    let home = Home::new();
    home.json(&["up", "mongodb", "--name", "orphan"]);
    let standing = home.standing("orphan");
    assert!(standing.supervisor.signal(Signal::KILL).unwrap());
    wait("the servers to end", || all_gone(&processes(&standing)));
    assert_eq!(home.json(&["status", "orphan"])["health"], "dead");
    assert_eq!(home.json(&["down", "orphan"])[0]["ended"], "removed");
    home.assert_nothing_is_left();
}

#[test]
fn a_launcher_that_is_killed_leaves_no_cluster_behind() {
    let home = Home::new();
    let mut launcher = home.imago(&["up", "mongodb", "--name", "lost"]).spawn().unwrap();
    wait("the supervisor to claim the name", || home.registry().find("lost").unwrap().is_some());
    let supervisor = home.standing("lost").supervisor;
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait("the supervisor to end", || all_gone(&[supervisor]));
    home.assert_nothing_is_left();
}

#[test]
fn in_the_foreground_an_interrupt_ends_everything() {
    let home = Home::new();
    let up = ["up", "mongodb", "--name", "front", "--foreground"];
    let mut command = home.imago(&up);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ready =
        |standing: Option<RegistryEntry>| standing.is_some_and(|found| !found.uri.is_empty());
    wait("the cluster", || ready(home.registry().find("front").unwrap()));
    let standing = home.standing("front");
    assert!(ProcessId::of(child.id()).unwrap().signal(Signal::INT).unwrap());
    assert!(child.wait().unwrap().success());
    assert!(all_gone(&processes(&standing)));
    home.assert_nothing_is_left();
}

#[test]
fn what_cannot_be_built_is_refused_before_anything_is_started() {
    let home = Home::new();
    for wrong in [["--name", "../up", "--members", "1"], ["--name", "many", "--members", "9"]] {
        let refused = home.run(&[&["up", "mongodb"], &wrong[..]].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
    let unknown = home.run(&["status", "absent"]);
    assert_eq!(unknown.status.code(), Some(4));
}

#[test]
fn without_a_server_program_the_error_says_what_to_do() {
    let home = Home::new();
    let nowhere = home.0.path().join("nowhere");
    for database in ["mongodb", "redis", "kafka"] {
        let mut up = home.imago(&["up", database, "--name", "none"]);
        up.env("PATH", &nowhere).env("XDG_CACHE_HOME", &nowhere);
        for named in ["IMAGO_MONGOD", "IMAGO_REDIS", "IMAGO_KAFKA", "IMAGO_JAVA"] {
            up.env_remove(named);
        }
        let refused = up.output().unwrap();
        assert_eq!(refused.status.code(), Some(4), "{database}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("make setup"), "{database}");
    }
}

/// The life of a server that stands alone; without its program, only a word.
fn lives_alone(database: &str, found: Result<(), imago_testbed::Error>, uri_begins: &str) {
    let Some(()) = require(found) else { return };
    let home = Home::new();
    let up = home.json(&["up", database, "--name", "alone"]);
    assert!(up["uri"].as_str().unwrap().starts_with(uri_begins), "{up}");
    let status = home.json(&["status", "alone"]);
    assert_eq!((&status["health"], &status["database"]), (&"up".into(), &database.into()));
    let port = home.standing("alone").nodes[0].port;

    home.json(&["inject", "alone", "kill", "--node", "alone-0"]);
    assert_eq!(home.json(&["list"])[0]["health"], "impaired");
    home.json(&["inject", "alone", "restart", "--node", "alone-0"]);
    assert_eq!(home.json(&["status", "alone"])["nodes"][0]["state"], "serving");
    assert_eq!(home.standing("alone").nodes[0].port, port);
    home.json(&["inject", "alone", "stop", "--node", "alone-0"]);
    home.json(&["inject", "alone", "cont", "--node", "alone-0"]);
    let refused = home.run(&["inject", "alone", "stepdown", "--node", "alone-0"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stands alone"));

    let standing = home.standing("alone");
    assert_eq!(home.json(&["down", "alone"])[0]["ended"], "orderly");
    assert!(all_gone(&processes(&standing)));
    home.assert_nothing_is_left();
}

#[test]
fn a_redis_server_is_kept_like_a_cluster() {
    lives_alone("redis", imago_testbed::find_redis().map(drop), "redis://127.0.0.1:");
}

#[test]
fn a_redis_cluster_is_kept_with_its_masters_and_replicas() {
    let Some(_) = require(imago_testbed::find_redis()) else { return };
    let home = Home::new();
    let up = home.json(&["up", "redis", "--name", "slots", "--masters", "3", "--memory-mb", "32"]);
    assert_eq!((&up["shards"], &up["members"]), (&3.into(), &2.into()));
    let file = std::fs::read_to_string(up["cluster_file"].as_str().unwrap()).unwrap();
    assert!(file.contains("database = \"redis\"") && file.contains("name = \"slots-6\""), "{file}");
    let state = |node: usize| home.json(&["status", "slots"])["nodes"][node]["state"].clone();
    assert_eq!(home.json(&["status", "slots"])["health"], "up");
    assert_eq!((state(0), state(3)), ("master".into(), "replica".into()));

    let moved = home.json(&["inject", "slots", "stepdown", "--node", "slots-1"]);
    assert_eq!(moved["done"], "slots-4 has the place of slots-1 now");
    home.json(&["inject", "slots", "terminate", "--node", "slots-1"]);
    assert_eq!(home.json(&["status", "slots"])["health"], "impaired");
    home.json(&["inject", "slots", "restart", "--node", "slots-1"]);
    wait("the node to be a replica that has all", || state(0) == "replica");
    home.json(&["down", "slots"]);
    home.assert_nothing_is_left();
}

#[test]
fn a_kafka_server_is_kept_like_a_cluster() {
    lives_alone("kafka", imago_testbed::find_kafka().map(drop), "127.0.0.1:");
}

#[test]
fn a_postgres_server_is_kept_like_a_cluster() {
    let found = imago_testbed::find_postgres().map(drop);
    lives_alone("postgres", found, "postgres://postgres@127.0.0.1:");
}

#[test]
fn a_supervisor_killed_while_kafka_starts_leaves_nothing_that_down_does_not_find() {
    let Some(_) = require(imago_testbed::find_kafka()) else { return };
    let home = Home::new();
    let up = ["up", "kafka", "--name", "early"];
    let mut launcher = home.imago(&up).stderr(Stdio::null()).spawn().unwrap();
    wait("the supervisor to claim the name", || home.registry().find("early").unwrap().is_some());
    let is_there = |program: &str| {
        let of_ours = |entry: std::fs::DirEntry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains(home.0.path().to_str().unwrap()) && line.contains(program)
        };
        std::fs::read_dir("/proc").unwrap().flatten().any(of_ours)
    };
    wait("its storage to be formatted, or its server to start", || is_there("kafka"));
    assert!(home.standing("early").supervisor.signal(Signal::KILL).unwrap());
    assert!(!launcher.wait().unwrap().success());
    home.json(&["down", "--all"]);
    wait("all of it to end", || !is_there(""));
}

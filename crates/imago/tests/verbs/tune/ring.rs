//! Real nodes of Cassandra, shared by the tests of one function; clients of theirs; and a roll that another process goes on
//! with.

use std::ffi::OsStr;

use imago_testbed::{find_cassandra, require, wait};
use serde_json::Value;

use crate::process::Process;
use crate::standing::Standing;

pub(super) const NODES: [&str; 3] = ["ring-1", "ring-2", "ring-3"];

/// Three nodes in three racks. None where they cannot or need not be started; that is said.
pub(super) fn ring() -> Option<Standing> {
    ring_of(3, &[])
}

/// So many nodes, each in a rack of its own, started with these variables.
pub(super) fn ring_of(nodes: u8, variables: &[(&str, &OsStr)]) -> Option<Standing> {
    nodes_of("ring", nodes, variables)
}

/// The same in every run of the tests, so that there is one test of it alone.
pub(super) fn pair() -> Option<Standing> {
    nodes_of("pair", 2, &[])
}

fn nodes_of(name: &str, nodes: u8, variables: &[(&str, &OsStr)]) -> Option<Standing> {
    require(find_cassandra())?;
    let nodes = nodes.to_string();
    let up = ["cassandra", "--nodes", &nodes, "--racks", &nodes, "--heap-mb", "256"];
    Some(Standing::start_with(name, &up, variables))
}

/// True if the file of a node has this line.
pub(super) fn has_line(ring: &Standing, node: &str, line: &str) -> bool {
    let text = std::fs::read_to_string(ring.configuration(node, "cassandra.yaml")).unwrap();
    text.lines().any(|one| one == line)
}

/// Waits until nothing speaks against a roll with these arguments: a busy machine leaves writes behind that a node has missed,
/// and a node that came back is a member again only when the others say so.
pub(super) fn settle(ring: &Standing, roll: &[&str]) {
    let dry_run = [roll, &["--dry-run", "--json"]].concat();
    wait::until_blocking("the cluster has settled", || {
        let output = ring.run(&dry_run);
        let plan: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        output.status.success()
            && plan.is_some_and(|plan| plan["obstacles"] == Value::Array(vec![]))
    });
}

/// Clients that ask without end, and whose every operation is recorded.
pub(super) struct Clients<'r> {
    ring: &'r Standing,
    process: Process,
    history: String,
    socket: String,
}

impl<'r> Clients<'r> {
    /// Clients that read and write 500 rows 60 times a second; they are at work when this returns.
    pub(super) fn start(ring: &'r Standing, mix: &[&str]) -> Self {
        let path = |name: &str| ring.path(name).to_str().unwrap().to_owned();
        let (history, socket) = (path("history"), path("load.sock"));
        let load = ["load", "--uri", &*ring.uri, "--ns", "shop.reviews", "--documents", "500"];
        let more = [
            "--rate",
            "60",
            "--until-stopped",
            "--record",
            &*history,
            "--control",
            &*socket,
            "--no-timeline",
        ];
        let process = ring.start_process(&[&load[..], mix, &more].concat(), "load");
        let mut clients = Self { ring, process, history, socket };
        clients.go_on_for(60);
        clients
    }

    /// Waits until they have begun so many operations more.
    pub(super) fn go_on_for(&mut self, operations: u64) {
        let started = |process: &Process| {
            process.said().iter().rev().find_map(|said| said["started"].as_u64()).unwrap_or(0)
        };
        let until = started(&self.process) + operations;
        let ring = self.ring;
        let process = &mut self.process;
        wait::until_or_report(
            "clients ask",
            || format!("{:?}", ring.pids()),
            || {
                assert!(process.is_running(), "{}", process.errors());
                started(process) >= until
            },
        );
    }

    /// Ends them. None was refused anything, and all that they were told is so; of so many acknowledged writes at least.
    pub(super) fn end(mut self, acknowledged: u64) {
        self.ring.json(&["load", "stop", "--control", &self.socket]);
        let (exit, report) = self.process.ended();
        assert_eq!((exit, &report["unavailable"]), (0, &0.into()), "{report}");
        assert_eq!(report["reads"]["failed"], 0, "{report}");
        assert_eq!(report["writes"]["failed"], 0, "{report}");
        let check = ["load", "check", "--uri", &*self.ring.uri, "--history", &*self.history];
        let verdict = self.ring.json(&check);
        assert!(verdict["writes_acknowledged"].as_u64() > Some(acknowledged), "{verdict}");
        for fault in ["lost", "resurrected", "stale", "unknown", "stale_reads"] {
            assert_eq!(verdict[fault], 0, "{verdict}");
        }
    }
}

/// A process that goes on with the roll of a dead one, as soon as that must be dead.
pub(super) fn resumed(ring: &Standing, job: &str) -> Process {
    let mut successor = None;
    wait::until_blocking("the job can be taken over", || {
        let mut process = ring.start_process(&ring.roll(&["--resume", job]), "resumed");
        let begins = |process: &Process| process.said().iter().any(|said| said["event"] == "phase");
        wait::until_blocking("it begins or ends", || begins(&process) || !process.is_running());
        let has_begun = begins(&process);
        assert!(has_begun || process.errors().contains("sign of life"), "{}", process.errors());
        successor = has_begun.then_some(process);
        has_begun
    });
    successor.unwrap()
}

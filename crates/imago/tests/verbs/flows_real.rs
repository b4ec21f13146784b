//! `imago bench run flows-real`: real processes in network namespaces, of which nothing stays.
//!
//! A namespace is identified by its number in `/proc/PID/ns/net`. It lives as long as a process is
//! in it or it is mounted, so that one of which neither is true is gone, with its devices.

use imago_testbed::{require, wait};
use std::collections::BTreeSet;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nine hosts and the switches.
const NAMESPACES: usize = 10;

/// True if this user can have namespaces; then the benchmark must run.
fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
    let has = made.is_ok_and(|status| status.success());
    require(has.then_some(()).ok_or("this user cannot have network namespaces")).is_some()
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.args(["bench", "run", "flows-real", "--json"]).args(arguments);
    command
}

fn namespace_of(pid: &str) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn processes() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).collect()
}

/// The namespaces of a process' children that are not its own.
fn namespaces_below(pid: u32) -> BTreeSet<String> {
    let parent = format!("PPid:\t{pid}");
    let is_child = |child: &String| {
        let status = std::fs::read_to_string(format!("/proc/{child}/status"));
        status.is_ok_and(|status| status.lines().any(|line| line == parent))
    };
    let children = processes().into_iter().filter(is_child);
    let own = namespace_of("self");
    children
        .filter_map(|child| namespace_of(&child))
        .filter(|one| Some(one) != own.as_ref())
        .collect()
}

fn remaining(namespaces: &BTreeSet<String>) -> BTreeSet<String> {
    let held: BTreeSet<String> = processes().iter().filter_map(|pid| namespace_of(pid)).collect();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let remains = |one: &&String| held.contains(*one) || mounts.contains(one.as_str());
    namespaces.iter().filter(remains).cloned().collect()
}

fn assert_gone(namespaces: &BTreeSet<String>) {
    wait::until_blocking("no namespace remains", || remaining(namespaces).is_empty());
}

/// A benchmark that would go on for hours.
struct Endless(Child);

impl Endless {
    /// It, and its namespaces once all of them are there.
    fn start() -> (Self, BTreeSet<String>) {
        let mut command = bench(&["--runs", "100", "--data-mb", "1000"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let endless = Self(command.spawn().unwrap());
        let mut namespaces = BTreeSet::new();
        wait::until_blocking("all namespaces are there", || {
            namespaces = namespaces_below(endless.0.id());
            namespaces.len() == NAMESPACES
        });
        (endless, namespaces)
    }

    fn end_by(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(self.0.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_strategy_moves_everything_no_faster_than_links_and_windows_allow() {
    if !has_namespaces() {
        return;
    }
    let output = bench(&["--quick", "--window-kib", "4"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Latency is made, and what is measured is never less than it.
    assert!(report["within_ms"].as_f64() >= Some(1.0), "{report}");
    assert!(report["between_ms"].as_f64() >= Some(2.0), "{report}");
    let strategies = report["strategies"].as_array().unwrap();
    let names: Vec<_> = strategies.iter().map(|one| one["strategy"].as_str().unwrap()).collect();
    let bars = ["fixed", "chunk-based", "orchestra", "wfs", "wfs"];
    assert_eq!(names, [bars, bars].concat());
    for one in strategies {
        let of = |name: &str| one[name].as_f64().unwrap();
        // 3 MB a server are so few that what a bucket lets through at once counts.
        assert!(of("ratio_to_floor") > 0.95, "{one}");
        assert!(of("ratio_to_simulated") > 0.0 && of("simulated_s") > 0.0, "{one}");
        assert!(of("lost_packets") >= 0.0, "{one}");
        // So small a window is all that holds one socket back in the simulator, to which a window
        // each round trip is the most.
        assert!(one["strategy"] != "fixed" || of("ratio_to_simulated") > 0.95, "{one}");
        let tenths: Vec<f64> = one["chunk_tenths_s"]
            .as_array()
            .unwrap()
            .iter()
            .map(|at| at.as_f64().unwrap())
            .collect();
        assert!(tenths.len() == 11 && tenths.is_sorted() && tenths[0] > 0.0, "{one}");
    }
}

#[test]
fn nothing_stays_when_it_is_asked_to_stop() {
    if !has_namespaces() {
        return;
    }
    let (mut endless, namespaces) = Endless::start();
    assert_eq!(endless.end_by(Signal::TERM).code(), Some(1));
    assert_gone(&namespaces);
}

#[test]
fn nothing_stays_when_it_is_killed() {
    if !has_namespaces() {
        return;
    }
    let (mut endless, namespaces) = Endless::start();
    assert_eq!(endless.end_by(Signal::KILL).code(), None);
    assert_gone(&namespaces);
}

#[test]
fn without_what_it_needs_it_says_what_is_missing() {
    let empty = tempfile::tempdir().unwrap();
    let output = bench(&["--quick"]).env("PATH", empty.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("install iproute2") || said.contains("as root"), "{said}");
}

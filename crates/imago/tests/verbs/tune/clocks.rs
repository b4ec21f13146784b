//! Rolls of three real nodes of which one, or Imago itself, has a wrong clock.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use imago_testbed::require;

use super::ring::{Clients, NODES, has_line, ring_of, settle};
use crate::process::Process;

/// What gives a process another clock; none without a C compiler.
fn another_clock(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, include_str!("clock.c")).unwrap();
    let mut built = Command::new("cc");
    built.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    let built = built.output().map_err(|missing| format!("there is no C compiler (cc): {missing}"));
    let output = require(built)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(library)
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn clocks_that_are_apart_are_no_time_for_a_roll_and_a_wrong_one_of_its_own_is_outlived() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = another_clock(folder.path()) else { return };
    let ahead = folder.path().join("ahead");
    let set_clock = |seconds: &str| std::fs::write(&ahead, seconds).unwrap();
    set_clock("0");
    let preload = ("LD_PRELOAD", library.as_os_str());
    let of = |what: &'static str| ("CLOCK_OF", OsStr::new(what));
    let wrong = [preload, of("ring-3.conf/"), ("CLOCK_AHEAD", ahead.as_os_str())];
    let Some(ring) = ring_of(3, &wrong) else { return };
    let change = ["--set", "native_transport_max_threads=48"];
    // No clock is set back: nodes take no news from one that seems to have started earlier than it did.
    let restart = |ahead: &str| {
        set_clock(ahead);
        ring.inject("kill", "ring-3");
        ring.inject("restart", "ring-3");
    };

    // A little is borne: of more than two seconds a node takes others' writes for too old, and drops them. And a roll goes by
    // the clocks of the nodes, not by its own, which is an hour behind.
    restart("1");
    settle(&ring, &ring.roll(&change));
    let clients = Clients::start(&ring, &["--mix", "read=45,update=45,delete=5,insert=5"]);
    let behind = folder.path().join("behind");
    std::fs::write(&behind, "-3600").unwrap();
    let arguments = [&ring.roll(&change)[..], &["--json", "--progress", "json"]].concat();
    let mut roll = ring.command(&arguments);
    roll.envs([preload, of(change[1]), ("CLOCK_AHEAD", behind.as_os_str())]);
    let mut roll = Process::start(roll, ring.path("roll"));
    let (exit, outcome) = roll.ended();
    assert_eq!(exit, 0, "{outcome}");
    assert!(NODES.iter().all(|node| has_line(&ring, node, "native_transport_max_threads: 48")));
    clients.end(1_000);

    // Of two writes the later one wins, by clocks that are apart.
    restart("90");
    let pids = ring.pids();
    let said = ring.refused(&ring.roll(&["--unset", "native_transport_max_threads"]), 4);
    assert!(said.contains("s ahead of that of"), "{said}");
    let seconds = said.split("the clock of ring-3 is ").nth(1).unwrap();
    let seconds: f64 = seconds.split(' ').next().unwrap().parse().unwrap();
    assert!((85.0..95.0).contains(&seconds), "{said}");
    assert_eq!(ring.pids(), pids, "nothing was stopped");
}

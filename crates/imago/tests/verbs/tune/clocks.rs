//! Rolls of three real nodes of which one, or Imago itself, has a wrong clock.

use super::ring::{Clients, NODES, has_line, ring_of, settle};
use crate::clock::OtherClock;
use crate::process::Process;

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn clocks_that_are_apart_are_no_time_for_a_roll_and_a_wrong_one_of_its_own_is_outlived() {
    let (folder, folder_of_imago) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(clock) = OtherClock::build(folder.path()) else { return };
    let Some(clock_of_imago) = OtherClock::build(folder_of_imago.path()) else { return };
    let Some(ring) = ring_of(3, &clock.variables("ring-3.conf/")) else { return };
    let change = ["--set", "native_transport_max_threads=48"];
    // No clock is set back: nodes take no news from one that seems to have started earlier than it did.
    let restart = |ahead: &str| {
        clock.set(ahead);
        ring.inject("kill", "ring-3");
        ring.inject("restart", "ring-3");
    };

    // A little is borne: of more than two seconds a node takes others' writes for too old, and drops them. And a roll goes by
    // the clocks of the nodes, not by its own, which is an hour behind.
    restart("1");
    settle(&ring, &ring.roll(&change));
    let clients = Clients::start(&ring, &["--mix", "read=45,update=45,delete=5,insert=5"]);
    // The roll restarts the node, which must not come back an hour before it started.
    clock_of_imago.set("-3600");
    let arguments = [&ring.roll(&change)[..], &["--json", "--progress", "json"]].concat();
    let mut roll = ring.command(&arguments);
    roll.envs(clock_of_imago.variables(change[1]));
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

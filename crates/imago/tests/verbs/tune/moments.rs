//! A roll of three real nodes whose process dies at moments that are drawn, again and again, under load.

use serde_json::Value;

use super::ring::{Clients, NODES, has_line, resumed, ring, settle};
use crate::process::Process;
use crate::reshard::dice::Dice;
use crate::standing::Standing;

const DEATHS: u32 = 6;
/// Operations of the clients between two deaths, at most: 20 s, in which a node is stopped and back.
const BETWEEN: u64 = 1_200;

/// The values that a restart brings, and the compaction that goes with each.
const CHANGES: [(&str, &str); 2] = [("48", "T8"), ("64", "L10")];

/// Begins a roll of one of them, and returns its job.
fn begun(ring: &Standing, (threads, scaling): (&str, &str)) -> (Process, String) {
    let threads = format!("native_transport_max_threads={threads}");
    let compaction = format!(
        r#"shop.reviews={{"class": "UnifiedCompactionStrategy", "scaling_parameters": "{scaling}"}}"#
    );
    let more =
        ["--set", &threads, "--set", "concurrent_reads=40", "--compaction", compaction.as_str()];
    let mut process = ring.start_process(&ring.roll(&more), "roll");
    let mut job = String::new();
    process.until("it begins", |said| {
        job = said["job"].as_str().unwrap_or_default().to_owned();
        said["event"] == "phase"
    });
    (process, job)
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn deaths_of_a_roll_at_any_moment_lose_nothing_and_fail_no_request() {
    let Some(ring) = ring() else { return };
    let mut dice = Dice::of_the_seed();
    let mix = ["--mix", "read=45,update=30,insert=15,delete=5,scan=5", "--reinsert", "0.3"];
    let mut clients = Clients::start(&ring, &mix);
    let pids = ring.pids();

    let mut changes = CHANGES.into_iter().cycle();
    let mut change = changes.next().unwrap();
    let (mut process, mut job) = begun(&ring, change);
    let mut deaths = 0;
    while deaths < DEATHS {
        clients.go_on_for(dice.throw(BETWEEN));
        if process.is_running() {
            process.kill();
            deaths += 1;
            let jobs = ring.json(&["tune", "jobs", "--uri", &ring.uri]);
            let is_it = |one: &&Value| one["id"] == *job;
            let left = jobs.as_array().unwrap().iter().find(is_it).unwrap_or(&jobs);
            println!("death {deaths}: {left}");
            if left["state"]["state"] != "done" {
                process = resumed(&ring, &job);
                continue;
            }
        } else {
            let (exit, outcome) = process.ended();
            assert_eq!(exit, 0, "{outcome}");
        }
        change = changes.next().unwrap();
        settle(&ring, &ring.roll(&["--set", "concurrent_reads=40"]));
        (process, job) = begun(&ring, change);
    }
    let (exit, outcome) = process.ended();
    assert_eq!(exit, 0, "{outcome}");

    let line = format!("native_transport_max_threads: {}", change.0);
    assert!(NODES.iter().all(|node| has_line(&ring, node, &line)), "{line}");
    let after = ring.pids();
    assert!(pids.iter().zip(&after).all(|(before, after)| before != after), "{pids:?} {after:?}");
    settle(&ring, &ring.roll(&["--set", "concurrent_reads=32"]));
    let next = ring.json(&ring.roll(&["--set", "concurrent_reads=32"]));
    assert_eq!(next["nodes"].as_array().unwrap().len(), 3, "the lock was given up: {next}");
    clients.end(1_000);
}

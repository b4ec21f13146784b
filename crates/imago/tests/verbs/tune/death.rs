//! A controller that dies in the middle of a roll: the next one finishes what it had begun. And a canary that refuses.

use imago_testbed::wait;
use serde_json::Value;

use super::ring::{Clients, NODES, has_line, ring, settle};

const MEASURED: &str = "\
configuration,operations_s,reads,updates
few threads,5000,0,1
few threads,2500,1,0
many threads,4000,0,1
many threads,4000,1,0
";

const CONFIGURATIONS: &str = "\
[[configuration]]
name = \"few threads\"

[[configuration]]
name = \"many threads\"
settings = { native_transport_max_threads = 48 }
";

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn the_next_controller_finishes_the_roll_of_a_dead_one_and_a_canary_that_refuses_is_put_back() {
    let Some(ring) = ring() else { return };
    let write = |name: &str, text: &str| {
        std::fs::write(ring.path(name), text).unwrap();
        ring.path(name).to_str().unwrap().to_owned()
    };
    let (two, measured) = (write("two.toml", CONFIGURATIONS), write("here.csv", MEASURED));
    let seen = ring.path("seen.csv").to_str().unwrap().to_owned();
    let clients = Clients::start(&ring, &["--mix", "read=90,update=10"]);

    let tune = [
        "tune",
        "run",
        "--cluster",
        &*ring.cluster,
        "--ns",
        "shop.reviews",
        "--configurations",
        &*two,
        "--measurements",
        &*measured,
        "--trace",
        &*seen,
        "--interval",
        "5s",
        "--look-ahead",
        "200",
        "--busy-min",
        "0.0001",
        "--approve",
        "restart",
    ];
    let has_new = |node: &str| has_line(&ring, node, "native_transport_max_threads: 48");
    let mut first = ring.start_process(&tune, "first");
    wait::until_blocking("the first node has its new file", || {
        assert!(first.is_running(), "{}", first.errors());
        has_new("ring-1")
    });
    first.kill();
    assert!(!has_new("ring-3"), "it died in the middle");

    // The dead one leads until its lease ends, and its job is its own until it must be dead.
    let mut second = None;
    wait::until_blocking("another controller begins", || {
        let mut process =
            ring.start_process(&[&tune[..], &["--duration", "1s"]].concat(), "second");
        wait::until_blocking("it finishes the roll, or ends", || {
            NODES.into_iter().all(has_new) || !process.is_running()
        });
        let begins = process.is_running() || NODES.into_iter().all(has_new);
        assert!(
            begins
                || process.errors().contains("decides for this")
                || process.errors().contains("sign of life"),
            "{}",
            process.errors()
        );
        second = begins.then_some(process);
        begins
    });
    let mut second = second.unwrap();
    let (exit, _) = second.ended();
    assert_eq!(exit, 0, "{}", second.errors());
    let said: Vec<Value> =
        second.printed().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let begins = said.iter().find(|one| one["event"] == "begins");
    assert_eq!(begins.unwrap()["configuration"], "many threads", "{said:?}");
    let jobs = ring.json(&["tune", "jobs", "--uri", &ring.uri]);
    let states: Vec<&Value> =
        jobs.as_array().unwrap().iter().map(|job| &job["state"]["state"]).collect();
    assert_eq!(states, ["done"], "{jobs}");

    // Threads that nothing waits for make no node quicker: no other one gets fewer.
    let before = std::fs::read_to_string(ring.configuration("ring-1", "cassandra.yaml")).unwrap();
    let no_gain = ["--set", "native_transport_max_threads=40", "--canary", "24s"];
    settle(&ring, &ring.roll(&["--set", "native_transport_max_threads=40"]));
    let said = ring.refused(&ring.roll(&no_gain), 1);
    assert!(said.contains("ring-1"), "{said}");
    assert_eq!(
        std::fs::read_to_string(ring.configuration("ring-1", "cassandra.yaml")).unwrap(),
        before
    );
    assert!(NODES.into_iter().all(has_new), "{said}");
    let status = ring.json(&["testbed", "status", "ring"]);
    assert_eq!(status["health"], "up", "{status}");

    clients.end(500);
}

//! A table's compaction on real nodes, given to one node first: the roll goes on where that node does better, and only
//! there.

use std::process::Command;

use serde_json::Value;

use super::ring::ring;

const LATE: &str =
    r#"shop.reviews={"class": "UnifiedCompactionStrategy", "scaling_parameters": "T32"}"#;
const EARLY: &str =
    r#"shop.reviews={"class": "UnifiedCompactionStrategy", "scaling_parameters": "L10"}"#;

/// Files of the table in each node: fewer than the late merging waits for, and more than a scan merges without notice.
const FILES: usize = 28;

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_compaction_is_given_to_all_nodes_only_if_the_first_one_does_better_with_it() {
    let Some(ring) = ring() else { return };
    let load = ["load", "--uri", &*ring.uri, "--ns", "shop.reviews", "--documents", "10000"];
    let load = [&load[..], &["--arrival", "closed", "--in-flight", "12", "--no-timeline"]].concat();
    let filled = ring.run(&[&load[..], &["--duration", "0s"]].concat());
    assert!(filled.status.success(), "{filled:?}");
    // Data that are merged late: a scan has to merge many files.
    let many = ["--set", "memtable_heap_space=16MiB", "--compaction", LATE, "--at-once"];
    ring.json(&ring.roll(&many));
    for _ in 0..FILES {
        let updates = ["--preloaded", "--mix", "update=100", "--duration", "3s"];
        let written = ring.json(&[&load[..], &updates].concat());
        assert_eq!(written["writes"]["failed"], 0, "{written}");
        for node in ["ring-1", "ring-2", "ring-3"] {
            let flush = ["flush", "shop", "reviews"];
            let flushed = Command::new(ring.configuration(node, "nodetool")).args(flush).output();
            assert!(flushed.as_ref().is_ok_and(|output| output.status.success()), "{flushed:?}");
        }
    }

    let socket = ring.path("load.sock").to_str().unwrap().to_owned();
    let reads =
        ["--preloaded", "--mix", "read=20,scan=80", "--until-stopped", "--control", &socket];
    let mut reads = ring.start_process(&[&load[..], &reads].concat(), "reads");
    reads.until("clients read", |said| said["started"].as_u64() > Some(1_000));
    let before = ring.pids();
    let canary = ["--canary", "96s", "--compaction"];
    let roll = |compaction| ring.roll(&[&canary[..], &[compaction]].concat());
    let rolled = ring.json(&roll(EARLY));
    assert_eq!(rolled["tables"], Value::from(vec!["shop.reviews"]), "{rolled}");
    assert_eq!(rolled["nodes"], Value::Array(vec![]), "no setting of a node was changed");
    let explained =
        ring.json(&["tune", "explain", rolled["job"].as_str().unwrap(), "--uri", &ring.uri]);
    let whats: Vec<&str> = explained["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| action["what"].as_str().unwrap())
        .collect();
    let at = |part: &str| whats.iter().position(|what| what.contains(part));
    let order = [
        at("ring-1: is compared with the others"),
        at("in this node alone"),
        at("is faster than before, and the roll goes on"),
        at("shop.reviews: compaction becomes"),
    ];
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{whats:?}");

    // To merge late again makes no node quicker.
    let said = ring.refused(&roll(LATE), 1);
    assert!(said.contains("ring-1 is no faster"), "{said}");
    let preview = ring.json(&ring.roll(&["--compaction", EARLY, "--dry-run"]));
    assert_eq!(preview["tables"], Value::Array(vec![]), "the table has it still: {preview}");
    assert_eq!(ring.pids(), before, "no node was restarted");

    // What a canary could not be put back from is said before anything is touched.
    let unknown = ["--canary", "96s", "--set", "concurrent_compactors=1"];
    let said = ring.refused(&ring.roll(&unknown), 4);
    assert!(said.contains("concurrent_compactors follows the machine on ring-1"), "{said}");
    ring.json(&["load", "stop", "--control", &socket]);
    let (exit, report) = reads.ended();
    assert_eq!((exit, &report["reads"]["failed"]), (0, &0.into()), "{report}");
}

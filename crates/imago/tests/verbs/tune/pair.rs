//! `imago tune roll` on two real nodes of Cassandra whose clients need one answer: what every run of the tests shows of it. The
//! rest takes three nodes or more, and is of `make test-long`.

use serde_json::Value;

use super::ring::{has_line, pair, settle};

const NODES: [&str; 2] = ["pair-1", "pair-2"];

#[test]
fn two_nodes_are_rolled_under_load_and_one_that_a_range_needs_is_not_stopped() {
    let Some(pair) = pair() else { return };
    let path = |name: &str| pair.path(name).to_str().unwrap().to_owned();
    let (history, socket) = (path("history"), path("load.sock"));
    let mut load = pair.start_process(
        &[
            "load",
            "--uri",
            &pair.uri,
            "--ns",
            "shop.reviews",
            "--documents",
            "200",
            "--consistency",
            "one",
            "--mix",
            "read=45,update=35,insert=10,delete=5,scan=5",
            "--rate",
            "20",
            "--until-stopped",
            "--record",
            &history,
            "--control",
            &socket,
            "--no-timeline",
        ],
        "load",
    );
    load.until("the load runs", |said| said["started"].as_u64() > Some(20));

    // Both replicas of every range are a quorum of two.
    let restarts = ["--set", "native_transport_max_threads=48"];
    let pids = pair.pids();
    let said = pair.refused(&pair.roll(&restarts), 4);
    assert!(said.contains("keyspace shop, the range that ends at token"), "{said}");
    assert!(said.contains("cannot be stopped"), "{said}");
    // A file with which a node would not start is found before any node is touched, for a live setting, too.
    let mut roll = [&pair.roll(&restarts)[..], &["--consistency", "one"]].concat();
    let live = pair.roll(&["--set", "compaction_throughput=32MiB/s"]);
    let (settings, place) = (
        pair.configuration("pair-2", "cassandra.yaml"),
        pair.configuration("pair-2", "cassandra-rackdc.properties"),
    );
    let before = ["pair-1", "pair-2"]
        .map(|node| std::fs::read(pair.configuration(node, "cassandra.yaml")).unwrap());
    let lines = before[1].iter().filter(|byte| **byte == b'\n').count();
    for (broken, part) in
        [("hints_flush_period:\t10s\n", "whitespace"), ("num_tokens: 4\n", "is there twice")]
    {
        std::fs::write(&settings, [&before[1], broken.as_bytes()].concat()).unwrap();
        for command in [&roll, &live] {
            let said = pair.refused(command, 4);
            let place = format!("cassandra.yaml of pair-2, line {}", lines + 1);
            assert!(said.contains(&place) && said.contains(part), "{said}");
        }
    }
    std::fs::write(&settings, &before[1]).unwrap();
    let rack = std::fs::read_to_string(&place).unwrap();
    std::fs::write(&place, "dc=dc1\nrack=rack9\n").unwrap();
    let said = pair.refused(&roll, 4);
    assert!(said.contains("says data center dc1 and rack rack9"), "{said}");
    std::fs::write(&place, rack).unwrap();
    let after = ["pair-1", "pair-2"]
        .map(|node| std::fs::read(pair.configuration(node, "cassandra.yaml")).unwrap());
    assert_eq!((after, pair.pids()), (before, pids.clone()), "no node was touched");

    // A node that does not start with its new file gets its old one back byte for byte, and it is said for how long it was
    // away: its command starts it only with the old one.
    let text = std::fs::read_to_string(&pair.cluster).unwrap();
    let own = pair.configuration("{name}", "cassandra.yaml");
    let picky = format!("start = \"! grep -q native_transport_max_threads '{}' && ", own.display());
    let cluster = path("picky.toml");
    std::fs::write(&cluster, text.replace("start = \"", &picky)).unwrap();
    roll[3] = &cluster;
    settle(&pair, &roll);
    let said = pair.refused(&roll, 1);
    assert!(
        said.contains("pair-1 does not start") && said.contains("took no clients for"),
        "{said}"
    );
    let first = pair.configuration("pair-1", "cassandra.yaml");
    assert!(!std::fs::read_to_string(first).unwrap().contains("native_transport_max_threads"));
    assert_eq!(pair.pids()[1], pids[1], "pair-2 was not touched");
    let pids = pair.pids();

    // A live setting stops none, and clients' writes go on meanwhile.
    settle(&pair, &live);
    let live = pair.json(&live);
    assert_eq!(live["nodes"].as_array().unwrap().len(), 2, "{live}");
    assert_eq!(pair.pids(), pids, "nothing was stopped");

    let roll = [&pair.roll(&restarts)[..], &["--consistency", "one"]].concat();
    settle(&pair, &roll);
    let done = pair.json(&roll);
    assert_eq!(done["nodes"].as_array().unwrap().len(), 2, "{done}");
    let after = pair.pids();
    assert!(pids.iter().zip(&after).all(|(before, after)| before != after), "{pids:?} {after:?}");
    for line in ["native_transport_max_threads: 48", "compaction_throughput: 32MiB/s"] {
        assert!(NODES.iter().all(|node| has_line(&pair, node, line)), "{line}");
    }
    let explained =
        pair.json(&["tune", "explain", done["job"].as_str().unwrap(), "--uri", &pair.uri]);
    let whats: Vec<&Value> =
        explained["actions"].as_array().unwrap().iter().map(|one| &one["what"]).collect();
    // The first action on a node is journalled before anything is done. Later ones are journalled if the journal
    // replies in time: while one of two nodes is away it has no quorum, and a busy machine is late besides.
    let at = |what: &str| whats.iter().position(|one| **one == what);
    let first = [at("pair-1: takes no more clients"), at("pair-2: takes no more clients")];
    assert!(first.iter().all(Option::is_some), "{explained}");
    let order = [
        first[0],
        at("pair-1: drains"),
        at("pair-1: is back"),
        first[1],
        at("pair-2: drains"),
        at("pair-2: is back"),
    ];
    assert!(order.iter().flatten().is_sorted(), "{explained}");

    pair.json(&["load", "stop", "--control", &socket]);
    let (exit, report) = load.ended();
    assert_eq!((exit, &report["unavailable"]), (0, &0.into()), "{report}");
    // A machine that is busy with other tests may let an answer or two come too late.
    let failed = ["reads", "writes"].map(|of| report[of]["failed"].as_u64().unwrap());
    assert!(failed[0] + failed[1] <= report["started"].as_u64().unwrap() / 100, "{report}");
    let verdict = pair.json(&["load", "check", "--uri", &pair.uri, "--history", &history]);
    assert!(verdict["writes_acknowledged"].as_u64() > Some(100), "{verdict}");
    for fault in ["lost", "resurrected", "unknown"] {
        assert_eq!(verdict[fault], 0, "{verdict}");
    }
}

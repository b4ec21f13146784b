//! `imago tune roll` on three real nodes of Cassandra, under load.

use imago_job::id::JobId;
use imago_job::journal::{Journal as _, Update};
use imago_job::record::Record;
use imago_job::state::State;
use imago_tune::cassandra::journal::CassandraJournal;
use serde_json::Value;

use super::ring::{Clients, NODES, has_line, resumed, ring, settle};
use crate::standing::Standing;

/// The journal in the cluster does what every journal does.
fn keeps_its_contract(uri: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let journal = CassandraJournal::open(&uri.parse().unwrap()).await.unwrap();
        imago_job::journal::contract::check(&journal).await;
        let ids = [Record::new("roll", Value::Null, 1), Record::new("roll", Value::Null, 2)];
        for record in &ids {
            journal.create(record).await.unwrap();
        }
        let [first, second] = ids.map(|record| record.id);
        journal.lock(&first).await.unwrap();
        journal.lock(&first).await.unwrap();
        let refused = journal.lock(&second).await.unwrap_err().to_string();
        assert!(refused.contains(first.as_str()), "{refused}");
        let epoch = journal.claim(&first, "host/1", 0).await.unwrap().epoch;
        let cancelled = Update { state: Some(State::Cancelled), ..Update::default() };
        journal.save(&first, epoch, &cancelled).await.unwrap();
        journal.lock(&second).await.unwrap();
        journal.unlock(&first).await.unwrap();
        assert!(journal.lock(&another_job()).await.is_err(), "the second holds it");
        journal.unlock(&second).await.unwrap();
        journal.lock(&another_job()).await.unwrap();
        journal.unlock(&another_job()).await.unwrap();
    });
}

fn another_job() -> JobId {
    JobId::from_parts(1_498_442_107_000, 3)
}

/// Two configurations are measured, forth and back; and not again.
fn configurations_are_measured(ring: &Standing) {
    let (two, out) = (ring.path("two.toml"), ring.path("here.csv"));
    let text = "[[configuration]]\nname = \"writes\"\nsettings = { compaction_throughput = \"32MiB/s\" }\n\
        compaction = { class = \"UnifiedCompactionStrategy\", scaling_parameters = \"T8\" }\n\
        [[configuration]]\nname = \"reads\"\n\
        compaction = { class = \"UnifiedCompactionStrategy\", scaling_parameters = \"L10\" }\n";
    std::fs::write(&two, text).unwrap();
    let (two, out) = (two.to_str().unwrap(), out.to_str().unwrap());
    let sample = [
        "tune",
        "sample",
        "--cluster",
        &ring.cluster,
        "--ns",
        "shop.sampled",
        "--configurations",
        two,
        "--out",
        out,
        "--documents",
        "200",
        "--mix",
        "read=90,update=10",
        "--mix",
        "update=100",
        "--rounds",
        "2",
        "--clients",
        "8",
        "--window",
        "1s",
        "--windows",
        "2",
        "--warm-max",
        "3s",
    ];
    let measured = ring.json(&sample);
    let measured = measured.as_array().unwrap();
    let order: Vec<&Value> = measured.iter().map(|one| &one["configuration"]).collect();
    assert_eq!(order, ["writes", "writes", "reads", "reads", "reads", "reads", "writes", "writes"]);
    assert!(measured.iter().all(|one| one["operations_s"].as_f64() > Some(1.0)), "{measured:?}");
    assert_eq!(ring.json(&sample), Value::Array(vec![]), "the file has all of them");
    let interval = |n: u32| {
        let (reads, updates) = if n % 12 < 6 { (900, 100) } else { (100, 900) };
        format!("{},{reads},{updates}\n", 1_490_054_400 + n * 300)
    };
    let trace = format!("start,reads,updates\n{}", (0..96).map(interval).collect::<String>());
    let path = ring.path("trace.csv");
    std::fs::write(&path, trace).unwrap();
    let advice = ring.json(&[
        "tune",
        "plan",
        path.to_str().unwrap(),
        "--measurements",
        out,
        "--current",
        "writes",
    ]);
    assert_eq!(advice["current"], "writes", "{advice}");
    let plan = ["tune", "plan", path.to_str().unwrap(), "--measurements", out];
    let advice = ring.json(&[&plan[..], &["--cluster", &ring.cluster]].concat());
    // All nodes were restarted at once, within some ten seconds.
    let roll_s = advice["roll_s"].as_f64().unwrap();
    assert!((15.0..450.0).contains(&roll_s), "{advice}");
    let text = std::fs::read_to_string(&ring.cluster).unwrap();
    let two = ring.path("two-nodes.toml");
    std::fs::write(&two, text.rsplit_once("[[node]]").unwrap().0).unwrap();
    let said = ring.refused(&[&plan[..], &["--cluster", two.to_str().unwrap()]].concat(), 4);
    assert!(said.contains("leaves out the node"), "{said}");
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_node_that_does_not_start_gets_its_old_configuration_back() {
    let Some(ring) = ring() else { return };
    keeps_its_contract(&ring.uri);
    configurations_are_measured(&ring);
    let filled = ring.run(&[
        "load",
        "--uri",
        &ring.uri,
        "--ns",
        "shop.reviews",
        "--documents",
        "200",
        "--duration",
        "0s",
    ]);
    assert!(filled.status.success(), "{filled:?}");
    let file = ring.configuration("ring-2", "cassandra.yaml");
    let before = std::fs::read_to_string(&file).unwrap();
    let text = std::fs::read_to_string(&ring.cluster).unwrap();
    let start = text.lines().find_map(|line| line.strip_prefix("start = \"")).unwrap();
    let start = start.trim_end_matches('"').replace("{name}", "ring-2");
    let node = "name = \"ring-2\"\n";
    let own = format!(
        "{node}start = \"if grep -q 'native_transport_max_threads: 48' '{}'; then echo 'out of memory' >&2; exit 1; fi; {start}\"\n",
        file.display()
    );
    let cluster = ring.path("cluster.toml");
    std::fs::write(&cluster, text.replace(node, &own)).unwrap();
    let cluster = cluster.to_str().unwrap();
    let said = ring.refused(
        &["tune", "roll", "--cluster", cluster, "--set", "native_transport_max_threads=48"],
        1,
    );
    assert!(said.contains("ring-2 does not start") && said.contains("out of memory"), "{said}");
    assert!(said.contains("runs with the old one again"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    let has_new = |node: &str| has_line(&ring, node, "native_transport_max_threads: 48");
    assert_eq!(NODES.map(has_new), [true, false, false], "the roll ended there");
    let status = ring.json(&["testbed", "status", "ring"]);
    assert_eq!(status["health"], "up", "{status}");
    // Nothing is left that would keep the next one from beginning, once the node has the writes that it missed.
    settle(&ring, &ring.roll(&["--unset", "native_transport_max_threads"]));

    // A node that is away is no time for a roll.
    ring.json(&["testbed", "inject", "ring", "kill", "--node", "ring-3"]);
    let said = ring.refused(&ring.roll(&["--unset", "native_transport_max_threads"]), 4);
    assert!(said.contains("not settled") && said.contains("ring-3"), "{said}");
    assert_eq!(NODES.map(has_new), [true, false, false]);
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_roll_under_load_fails_no_request_and_loses_nothing_though_its_process_is_killed() {
    let Some(ring) = ring() else { return };
    let file = ring.configuration("ring-2", "cassandra.yaml");
    let written = format!("# by hand: \"$HOME\"\n{}", std::fs::read_to_string(&file).unwrap());
    std::fs::write(&file, written).unwrap();
    let mix = ["--mix", "read=45,update=30,insert=15,delete=5,scan=5", "--reinsert", "0.3"];
    let clients = Clients::start(&ring, &mix);

    // What must not be done is said before anything is touched.
    let before = std::fs::read_to_string(&file).unwrap();
    let said = ring.refused(
        &ring.roll(&["--set", "native_transport_max_threads=48", "--consistency", "all"]),
        4,
    );
    assert!(said.contains("keyspace shop") && said.contains("cannot be stopped"), "{said}");
    let said = ring.refused(&ring.roll(&["--set", "native_transport_max_threads=0"]), 2);
    assert!(said.contains("a whole number from 2"), "{said}");
    let preview = ring.json(&ring.roll(&["--set", "native_transport_max_threads=48", "--dry-run"]));
    assert_eq!(
        (&preview["restarts"], &preview["obstacles"]),
        (&true.into(), &Value::Array(vec![]))
    );
    assert_eq!(preview["steps"].as_array().unwrap().len(), 3, "{preview}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);

    // A live setting reaches all nodes, and none is restarted.
    let pids = ring.pids();
    let live = ["--set", "compaction_throughput=32MiB/s", "--set", "concurrent_reads=40"];
    let live = ring.json(&ring.roll(&live));
    assert_eq!(live["nodes"].as_array().unwrap().len(), 3, "{live}");
    assert_eq!(ring.pids(), pids);
    for node in NODES {
        let text = std::fs::read_to_string(ring.configuration(node, "cassandra.yaml")).unwrap();
        assert!(text.contains("compaction_throughput: 32MiB/s\n"), "{text}");
        assert!(text.contains("concurrent_reads: 40\n"), "{text}");
        let tool = ring.configuration(node, "nodetool");
        let told = std::process::Command::new(tool).arg("getconcurrency").output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let reads = told.lines().find(|line| line.starts_with("ReadStage")).unwrap_or(&told);
        assert!(reads.split_whitespace().any(|word| word == "40"), "{told}");
    }

    let unified =
        r#"shop.reviews={"class": "UnifiedCompactionStrategy", "scaling_parameters": "T8"}"#;
    let altered = ring.json(&ring.roll(&["--compaction", unified]));
    assert_eq!(altered["nodes"], Value::Array(vec![]), "no node is touched: {altered}");
    let preview = ring.json(&ring.roll(&["--compaction", unified, "--dry-run"]));
    assert_eq!(preview["tables"], Value::Array(vec![]), "it has it now: {preview}");
    assert_eq!(ring.pids(), pids);

    let settings =
        ["native_transport_max_threads=48", "memtable_heap_space=64MiB", "max_heap_size=288MiB"];
    let settings: Vec<&str> = settings.iter().flat_map(|one| ["--set", *one]).collect();
    let mut roll = ring.start_process(&ring.roll(&settings), "roll");
    let mut job = String::new();
    roll.until("the second node stops", |said| {
        job = said["job"].as_str().unwrap_or_default().to_owned();
        said["event"] == "decision"
            && said["what"].as_str().is_some_and(|what| what.ends_with("-2: stops"))
    });
    let said = ring.refused(&ring.roll(&["--set", "concurrent_writes=48"]), 4);
    assert!(said.contains(&job) || said.contains("not settled"), "{said}");
    roll.kill();

    let (exit, mut resumed) = resumed(&ring, &job).ended();
    assert_eq!(exit, 0, "{resumed}");
    assert_eq!(resumed["nodes"].as_array_mut().unwrap().len(), 3, "{resumed}");
    let after = ring.pids();
    assert!(pids.iter().zip(&after).all(|(before, after)| before != after), "{pids:?} {after:?}");
    for node in NODES {
        let text = std::fs::read_to_string(ring.configuration(node, "cassandra.yaml")).unwrap();
        assert!(text.contains("native_transport_max_threads: 48\n"), "{text}");
        assert!(text.contains("memtable_heap_space: 64MiB\n"), "{text}");
        let options = std::fs::read_to_string(ring.configuration(node, "jvm-server.options"));
        assert_eq!(options.unwrap(), "-Xms288M\n-Xmx288M\n");
    }
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("# by hand: \"$HOME\"\n"));
    let jobs = ring.json(&["tune", "jobs", "--uri", &ring.uri]);
    assert_eq!(jobs.as_array().unwrap().len(), 3, "{jobs}");

    let explained = ring.json(&["tune", "explain", &job, "--uri", &ring.uri]);
    let actions = explained["actions"].as_array().unwrap();
    let says = |what: &str| actions.iter().filter(|one| one["what"] == what).count();
    assert_eq!((says("ring-1: stops"), says("ring-3: stops")), (1, 1), "{explained}");
    assert!(says("ring-2: stops") >= 1, "its process died there: {explained}");
    assert_eq!(says("ring-3: is back"), 1, "{explained}");

    clients.end(2_000);
}

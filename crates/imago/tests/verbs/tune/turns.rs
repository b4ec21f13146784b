//! Configurations that take turns: `imago tune compare` and the judgement of live changes by `imago tune run`, on a real Redis
//! and on three real nodes of Cassandra.

use imago_testbed::wait;
use serde_json::Value;

use super::redis::{addresses, redis, value};
use super::ring::{NODES, has_line, ring};
use super::run::{events, of};
use crate::standing::Standing;

/// Both serve the same; what the measurements promise is another matter.
const LIVE: &str = "\
[[configuration]]
name = \"default\"

[[configuration]]
name = \"often\"
settings = { hz = 20 }
";

const MEASURED: &str = "\
configuration,operations_s,reads,updates
default,50000,0,1
default,50000,1,0
often,60000,0,1
often,60000,1,0
";

const ENCODINGS: &str = "\
[[configuration]]
name = \"tables\"
settings = { hash-max-listpack-entries = 8 }

[[configuration]]
name = \"compact\"
settings = { hash-max-listpack-entries = 512, hash-max-listpack-value = 128 }
";

fn write(server: &Standing, name: &str, text: &str) -> String {
    std::fs::write(server.path(name), text).unwrap();
    server.path(name).to_str().unwrap().to_owned()
}

/// Compares the configurations of the file with short windows, and checks the shape of what is said.
fn compared(server: &Standing, configurations: &str, more: &[&str]) -> Value {
    let files = ["--cluster", &*server.cluster, "--configurations", configurations];
    let load = ["--ns", "shop.sample", "--documents", "2000", "--clients", "8"];
    let windows = ["--window", "250ms", "--windows", "2", "--warm-max", "2s"];
    let bounds = ["--blocks-max", "3", "--alike", "0.001", "--seed", "1795"];
    let found =
        server.json(&[&["tune", "compare"], &files[..], &load, &windows, &bounds, more].concat());
    let turns = found["turns"].as_array().unwrap();
    assert_eq!((found["blocks"].as_u64(), turns.len()), (Some(3), 12), "{found}");
    for what in ["throughput", "median", "p99"] {
        let [change, low, high] =
            [&found[what]["change"], &found[what]["interval"][0], &found[what]["interval"][1]]
                .map(|number| number.as_f64().unwrap_or_else(|| panic!("{what}: {found}")));
        assert!(low <= change && change <= high, "{what}: {found}");
    }
    let names = found["configurations"].as_array().unwrap();
    for name in names {
        let own = turns.iter().filter(|turn| turn["configuration"] == *name);
        assert_eq!(own.count(), 6, "{found}");
    }
    assert!(turns.iter().all(|turn| turn["operations_s"].as_f64() > Some(1.0)), "{found}");
    assert!(found["placebo"].as_f64() > Some(0.0), "{found}");
    found
}

#[test]
fn configurations_of_redis_take_turns_and_the_first_one_is_there_at_last() {
    let Some(server) = redis("turns", &[]) else { return };
    let node = addresses(&server).remove(0);
    let live = write(&server, "live.toml", LIVE);
    let found = compared(&server, &live, &["--mix", "read=90,update=10"]);
    assert_eq!((&found["is_live"], &found["seed"]), (&true.into(), &1_795.into()), "{found}");
    assert_eq!(value(&node, "hz"), "10");

    // Keys keep the encoding that they were written with, so that the load ends and they are written anew.
    let encodings = write(&server, "encodings.toml", ENCODINGS);
    let found = compared(&server, &encodings, &[]);
    assert_eq!(found["is_live"], false, "{found}");
    assert_eq!(value(&node, "hash-max-listpack-entries"), "8");

    // Bad input is told before anything is touched.
    let three = format!("{LIVE}\n[[configuration]]\nname = \"rarely\"\nsettings = {{ hz = 5 }}\n");
    let three = write(&server, "three.toml", &three);
    let compare = ["tune", "compare", "--cluster", &*server.cluster, "--ns", "shop.sample"];
    let said = server.refused(&[&compare[..], &["--configurations", &*three]].concat(), 2);
    assert!(said.contains("two configurations are compared, and the file has 3"), "{said}");
    let deletes = ["--configurations", &*live, "--mix", "read=50,delete=50"];
    let said = server.refused(&[&compare[..], &deletes].concat(), 2);
    assert!(said.contains("contains deletes"), "{said}");

    a_live_change_is_judged_by_turns(&server, &node, &live);
}

fn a_live_change_is_judged_by_turns(server: &Standing, node: &str, live: &str) {
    server.json(&server.roll(&["--set", "hash-max-listpack-entries=512"]));
    let measured = write(server, "here.csv", MEASURED);
    let load = ["load", "--uri", &*server.uri, "--ns", "shop.reviews", "--documents", "500"];
    let reading = ["--mix", "read=95,update=5", "--rate", "200", "--until-stopped"];
    let mut reading = server.start_process(&[&load[..], &reading].concat(), "load");
    reading.until("the load runs", |said| said["started"].as_u64() > Some(50));
    let seen = server.path("seen.csv").to_str().unwrap().to_owned();
    let files = ["--cluster", &*server.cluster, "--configurations", live];
    let more_files = ["--measurements", &*measured, "--trace", &*seen];
    let usual = ["--interval", "6s", "--look-ahead", "20", "--busy-min", "0.0001"];
    // What is judged here is how, and not what a busy machine makes of it.
    let judged =
        ["--judged-by", "3", "--loss-max", "0.9", "--slowest-max", "1000", "--duration", "240s"];
    let words = [&["tune", "run"], &files[..], &more_files, &usual, &judged].concat();
    let mut controller = server.start_process(&words, "controller");
    wait::until_or_report(
        "the change is judged",
        || controller.printed() + &controller.errors(),
        || controller.printed().lines().any(|line| line.contains("\"judged\"")),
    );
    let said = events(controller.printed().as_bytes());
    let turns: Vec<&str> =
        of(&said, "turn").iter().map(|turn| turn["configuration"].as_str().unwrap()).collect();
    // Each time the other one; the change itself was the first.
    let (first, last) = (turns.first(), turns.last());
    assert_eq!((first, last), (Some(&"default"), Some(&"often")), "{said:?}");
    assert!(turns.windows(2).all(|two| two[0] != two[1]), "{turns:?}");
    assert!((4..=8).contains(&turns.len()), "{turns:?}");
    let judged = of(&said, "judged");
    assert!(judged[0]["realised"].is_number() && judged[0]["worse"].is_null(), "{judged:?}");
    assert!((judged[0]["predicted"].as_f64().unwrap() - 0.2).abs() < 1e-6, "{judged:?}");
    assert_eq!(value(node, "hz"), "20", "it stays");
    controller.kill();
    reading.kill();
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn live_settings_of_cassandra_take_turns_under_a_load() {
    let Some(ring) = ring() else { return };
    let text = "\
[[configuration]]
name = \"default\"

[[configuration]]
name = \"one at a time\"
settings = { concurrent_reads = 1 }
";
    let live = write(&ring, "live.toml", text);
    let found = compared(&ring, &live, &["--mix", "read=100"]);
    assert_eq!(found["is_live"], true, "{found}");
    let left = |node: &&str| has_line(&ring, node, "concurrent_reads: 1");
    assert!(!NODES.iter().any(left), "they have the default again");
}

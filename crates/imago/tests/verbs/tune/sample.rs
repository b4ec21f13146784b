//! `imago tune design`, `sample`, `search` and `plan` on a real Redis: from ranges of settings to advice.

use std::fs::{read_to_string, write};
use std::path::Path;

use imago_tune::configurations::{self, Configuration};
use imago_tune::redis::Redis;
use serde_json::Value;

use super::days;
use super::redis::{addresses, ask, redis, value};
use crate::standing::Standing;

/// The file of measurements that Cassandra's have.
const OF_CASSANDRA: &str =
    "configuration,operations_s,reads,updates,inserts,scans,round,warm_s,spread\n";

/// The arguments of a small measurement, with the file of configurations, that of measurements, and more.
fn sample<'a>(
    server: &'a Standing,
    [configurations, out]: [&'a str; 2],
    more: &[&'a str],
) -> Vec<&'a str> {
    let files = ["--configurations", configurations, "--out", out, "--cluster", &server.cluster];
    let load = ["--documents", "2000", "--clients", "8", "--rounds", "1"];
    let windows = ["--window", "200ms", "--windows", "2", "--warm-max", "500ms"];
    [&["tune", "sample"], &files[..], &load, &windows, more].concat()
}

/// True if records of sixteen fields, some of them a hundred bytes long, are compact.
fn is_compact(one: &Configuration) -> bool {
    let number = |name: &str, default: u32| {
        one.settings.get(name).map_or(default, |text| text.parse().unwrap())
    };
    number("hash-max-listpack-entries", 512) >= 32 && number("hash-max-listpack-value", 64) >= 100
}

fn encoding(node: &str) -> &'static str {
    let told = ask(node, "OBJECT ENCODING shop:sample:review-000000000007");
    ["listpack", "hashtable"].into_iter().find(|name| told.contains(name)).expect("a record")
}

fn read(path: &Path) -> Vec<Configuration> {
    configurations::read::<Redis>(path).unwrap()
}

#[test]
fn settings_of_redis_are_measured_with_records_that_are_kept_as_they_say() {
    let Some(server) = redis("measured", &[]) else { return };
    let node = &addresses(&server)[0];
    let path = |name: &str| server.path(name).to_str().unwrap().to_owned();
    let (sampled, here) = (path("sampled.toml"), path("here.csv"));
    let knobs =
        ["--knob", "hash-max-listpack-value=64,128", "--knob", "hash-max-listpack-entries=8,512"];
    let design =
        [&["tune", "design", "--database", "redis", "--out", &sampled], &knobs[..]].concat();
    let compaction = ["--compaction", r#"{"class": "UnifiedCompactionStrategy"}"#];
    let said = server.refused(&[&design[..], &compaction].concat(), 2);
    assert!(said.contains("tables of Cassandra alone"), "{said}");
    let drawn = server.json(&[&design[..], &["--runs", "3"]].concat());
    assert_eq!(drawn["knobs"][1]["class"], "live", "{drawn}");
    let all = read(Path::new(&sampled));
    assert_eq!((all.len(), all.iter().filter(|one| is_compact(one)).count()), (4, 1), "{all:?}");

    // What must not be done is said before anything is touched.
    let files = [&*sampled, &*here];
    let (to, mine) = (["--ns", "shop.sample"], "shop:other:mine");
    ask(node, &format!("SET {mine} x"));
    let said = server.refused(&sample(&server, files, &["--ns", "shop.other"]), 4);
    assert!(said.contains("shop:other:mine is no record of a load"), "{said}");
    let quorum = [&to[..], &["--consistency", "quorum"]].concat();
    let said = server.refused(&sample(&server, files, &quorum), 2);
    assert!(said.contains("--consistency is for Cassandra"), "{said}");
    write(&here, OF_CASSANDRA).unwrap();
    let said = server.refused(&sample(&server, files, &to), 2);
    assert!(said.contains("here.csv, line 1") && said.contains("name another --out"), "{said}");
    std::fs::remove_file(&here).unwrap();
    let count = || ask(node, "DBSIZE").lines().next().unwrap_or_default().to_owned();
    assert_eq!(
        (count(), ask(node, &format!("GET {mine}")).contains("\r\nx\r\n")),
        (":1".into(), true)
    );

    let mixes = [&to[..], &["--mix", "read=100", "--mix", "update=100"]].concat();
    let measure = sample(&server, files, &mixes);
    let samples = server.json(&measure);
    let samples = samples.as_array().unwrap();
    assert_eq!(samples.len(), 8, "{samples:?}");
    let memory = |one: &Configuration| -> Vec<u64> {
        let own = samples.iter().filter(|sample| sample["configuration"] == *one.name);
        own.map(|sample| sample["memory_bytes"].as_u64().unwrap()).collect()
    };
    let least = all.iter().filter(|one| !is_compact(one)).flat_map(memory).min().unwrap();
    let compact = all.iter().filter(|one| is_compact(one)).flat_map(memory).max().unwrap();
    assert!(samples.iter().all(|one| one["cpu_us"].as_f64() > Some(0.0)), "{samples:?}");
    // Buffers of the load's connections are in both, on a busy machine half a megabyte of them.
    assert!((compact as f64) < 0.95 * least as f64, "{compact} {least}: {samples:?}");
    let last = &samples.last().unwrap()["configuration"];
    let last = all.iter().find(|one| *last == *one.name).unwrap();
    let last = if is_compact(last) { "listpack" } else { "hashtable" };
    assert_eq!((encoding(node), count()), (last, ":2001".into()));

    // A second run finds nothing to measure, and does not write records anew.
    let text = read_to_string(&here).unwrap();
    ask(node, "HSET shop:sample:review-000000000007 mark 1");
    assert_eq!(server.json(&measure), Value::Array(Vec::new()));
    assert_eq!(read_to_string(&here).unwrap(), text);
    assert!(ask(node, "HGET shop:sample:review-000000000007 mark").contains("\r\n1\r\n"));

    let files = ["--configurations", &sampled, "--measurements", &here];
    let answer = server.json(&[&["tune", "search", "--database", "redis"], &files[..]].concat());
    assert_eq!(
        (&answer["configurations"], &answer["left_out"]),
        (&4.into(), &Value::Array(Vec::new()))
    );
    let by_cpu = [&["tune", "search", "--database", "redis", "--by", "cpu"], &files[..]].concat();
    let by_cpu = server.json(&by_cpu);
    assert_eq!((&answer["by"], &by_cpu["by"]), (&"throughput".into(), &"cpu".into()));
    assert_ne!(answer["ranking"]["mixes_share"], by_cpu["ranking"]["mixes_share"], "{by_cpu}");
    let names = |of: &Value| -> Vec<String> {
        let all = of.as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut ranked = names(&answer["ranking"]["knobs"]);
    ranked.sort();
    assert_eq!(ranked, ["hash-max-listpack-entries", "hash-max-listpack-value"]);
    let trace = path("trace.csv");
    write(&trace, days()).unwrap();
    let advice = server.json(&["tune", "plan", &trace, "--measurements", &here, "--class", "live"]);
    assert_eq!(advice["current"], "default", "{advice}");

    // From compact records to tables, by a restart of the only server.
    let (two, there) = (path("two.toml"), path("there.csv"));
    let file = "[[configuration]]\nname = \"compact\"\nsettings = { hash-max-listpack-value = 128 }\n\
                [[configuration]]\nname = \"tables\"\nsettings = { hash-max-listpack-entries = 8, io-threads = 2 }\n";
    write(&two, file).unwrap();
    let pids = server.pids();
    let reads = [&to[..], &["--mix", "read=100"]].concat();
    let told = server.run(&sample(&server, [&two, &there], &reads));
    let (shown, progress) =
        (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{progress}");
    assert!(shown.contains("MEMORY") && shown.contains(" MB"), "{shown}");
    assert_eq!(progress.matches("writing all 2000 records anew").count(), 2, "{progress}");
    assert_eq!((encoding(node), value(node, "io-threads")), ("hashtable", "2".into()));
    assert_ne!(server.pids(), pids);
    let lines = read_to_string(&there).unwrap();
    let memory = |name: &str| -> u64 {
        let line = lines.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(',').nth(1).unwrap().parse().unwrap()
    };
    assert!(memory("compact,") < memory("tables,"), "{lines}");
}

//! `imago tune run` on a real Redis server: what it decides, does, judges and takes back; and that a dead one is followed.

use imago_job::clock;
use imago_job::file::FileJournal;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_testbed::wait;
use serde_json::Value;

use super::redis::{addresses, ask, redis, value};
use super::run::{assert_worse, events, of};
use crate::process::Process;

/// By these, reads are served best by `quick`, and by `middle` second best.
const MEASURED: &str = "\
configuration,operations_s,reads,updates
compact,80000,0,1
compact,50000,1,0
middle,70000,0,1
middle,70000,1,0
quick,60000,0,1
quick,90000,1,0
";

const CONFIGURATIONS: &str = "\
[[configuration]]
name = \"compact\"
settings = { hash-max-listpack-entries = 512 }

[[configuration]]
name = \"middle\"
settings = { hash-max-listpack-entries = 14, hash-max-listpack-value = \"1kb\" }

[[configuration]]
name = \"quick\"
settings = { hash-max-listpack-entries = 8 }
";

/// Waits until a controller has said something with all of these words.
#[track_caller]
fn until_said(controller: &Process, words: &[&str]) {
    wait::until_or_report(
        &words.join(" "),
        || controller.printed() + &controller.errors(),
        || controller.printed().lines().any(|line| words.iter().all(|word| line.contains(word))),
    );
}

#[test]
fn a_server_is_tuned_and_a_bad_change_undone_and_a_dead_controller_followed() {
    let Some(server) = redis("tuned", &[]) else { return };
    let node = addresses(&server).remove(0);
    let write = |name: &str, text: &str| {
        std::fs::write(server.path(name), text).unwrap();
        server.path(name).to_str().unwrap().to_owned()
    };
    let (all, measured) = (write("all.toml", CONFIGURATIONS), write("here.csv", MEASURED));
    let seen = server.path("seen.csv").to_str().unwrap().to_owned();
    let tune = |more: &[&'static str]| -> Vec<String> {
        let files = ["--cluster", &*server.cluster, "--configurations", &*all];
        let more_files = ["--measurements", &*measured, "--trace", &*seen];
        let usual = ["--interval", "5s", "--look-ahead", "20", "--busy-min", "0.0001"];
        let judged = ["--judged-by", "3"];
        let words = [&["tune", "run"], &files[..], &more_files, &usual, &judged, more].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let refused = |more: &[&'static str], exit: i32| {
        let words = tune(more);
        server.refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), exit)
    };
    let start = |name: &str, more: &[&'static str]| {
        let words = tune(more);
        server.start_process(&words.iter().map(String::as_str).collect::<Vec<_>>(), name)
    };

    // What is for Cassandra, and a server that has none of the configurations, are refused.
    let said = refused(&["--ns", "shop.reviews"], 2);
    assert!(said.contains("--ns is for Cassandra"), "{said}");
    server.json(&server.roll(&["--set", "hash-max-listpack-entries=100"]));
    let said = refused(&["--duration", "1s"], 4);
    assert!(said.contains("quick differs on 1 nodes"), "{said}");
    server.json(&server.roll(&["--set", "hash-max-listpack-entries=512"]));

    let load = ["load", "--uri", &*server.uri, "--ns", "shop.reviews", "--documents", "500"];
    let reading = ["--mix", "read=95,update=5", "--rate", "200", "--until-stopped"];
    let mut reading = server.start_process(&[&load[..], &reading].concat(), "load");
    reading.until("the load runs", |said| said["started"].as_u64() > Some(50));

    // Held back, it says what it would do; another one is refused meanwhile.
    let of_cluster = ["--cluster", &*server.cluster];
    server.json(&[&["tune", "hold"], &of_cluster[..]].concat());
    // On any machine.
    let elsewhere = server.path("elsewhere.toml");
    std::fs::copy(&server.cluster, &elsewhere).unwrap();
    let asked = ["tune", "decisions", "--cluster", elsewhere.to_str().unwrap()];
    assert!(server.json(&asked)["held_by"].is_string());
    let mut held = start("held", &["--duration", "60s"]);
    until_said(&held, &["decided", "has suspended changes"]);
    let said = refused(&["--duration", "1s"], 4);
    assert!(said.contains("decides for this cluster"), "{said}");
    assert_eq!(value(&node, "hash-max-listpack-entries"), "512");
    held.kill();
    server.json(&[&["tune", "go-on"], &of_cluster[..]].concat());
    assert!(server.json(&asked)["held_by"].is_null());

    // Its lease outlives it for a minute; here the time is made to pass.
    let said = refused(&["--duration", "1s"], 4);
    assert!(said.contains("decides for this cluster"), "{said}");
    let pass_the_time = || assert!(ask(&node, "PEXPIRE imago:controller 1").contains(":1"));
    pass_the_time();

    // Of a change any answer is too slow, so that it is undone.
    let mut undone = start("undone", &["--slowest-max", "0.0001", "--duration", "120s"]);
    until_said(&undone, &["\"changed\"", "\"is_undoing\":true"]);
    let said = events(undone.printed().as_bytes());
    let changing = of(&said, "changing");
    assert_eq!(changing.len(), 2, "{said:?}");
    assert_eq!(changing[0]["change"]["to"], "quick", "{changing:?}");
    assert_eq!(changing[1]["change"]["to"], "compact", "{changing:?}");
    let judged = of(&said, "judged");
    assert_worse(judged[0]);
    assert_eq!(value(&node, "hash-max-listpack-entries"), "512");
    undone.kill();
    pass_the_time();

    // The next one knows that, and takes the second best; it dies, and the one behind it finds what it had done.
    let mut second = start("second", &["--duration", "120s"]);
    until_said(&second, &["\"changed\"", "middle"]);
    second.kill();
    let said = events(second.printed().as_bytes());
    assert!(of(&said, "changing").iter().all(|one| one["change"]["to"] == "middle"), "{said:?}");
    assert_eq!(value(&node, "hash-max-listpack-entries"), "14");
    let status = server.json(&["testbed", "status", "tuned"]);
    let name = status["nodes"][0]["name"].as_str().unwrap();
    let file = server.configuration(name, "redis.conf");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{}", file.display()));
    assert!(text.contains("hash-max-listpack-entries 14\n"), "{text}");
    pass_the_time();
    let words = tune(&["--duration", "12s", "--advise", "--json"]);
    let third = server.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(third.status.success(), "{}", String::from_utf8_lossy(&third.stderr));
    let said = events(&third.stdout);
    assert_eq!(of(&said, "begins")[0]["configuration"], "middle", "{said:?}");
    assert_eq!(of(&said, "changing").len(), 0, "{said:?}");

    // What was decided is kept beside the cluster file, and what changes took is learned from it.
    let decisions = server.json(&[&["tune", "decisions"], &of_cluster[..]].concat());
    let entries = decisions["entries"].as_array().unwrap();
    let of_kind = |kind: &str| entries.iter().filter(|one| one["kind"] == kind).count();
    assert_eq!((of_kind("changing"), of_kind("judged")), (2, 1), "{entries:?}");
    assert!(of_kind("decided") >= 3 && of_kind("changed") >= 3, "{entries:?}");
    let hours = (0..48).map(|n| format!("{},{},100\n", 1_795_737_600 + n * 3_600, 900 + n % 7));
    let hours =
        write("hours.csv", &("start,reads,updates\n".to_owned() + &hours.collect::<String>()));
    let plan = ["tune", "plan", &*hours, "--measurements", &*measured, "--current", "middle"];
    let advice: Value = server.json(&[&plan[..], &of_cluster].concat());
    assert!(advice["roll_s"].as_f64().unwrap() < 60.0, "{advice}");

    // What the dead one changed and did not judge, the next one judges by what was seen before the change.
    let mut judging = start("judging", &["--slowest-max", "0.0001", "--duration", "120s"]);
    until_said(&judging, &["\"changed\"", "\"is_undoing\":true"]);
    let said = events(judging.printed().as_bytes());
    let now = of(&said, "judged");
    assert_eq!(now[0]["change"]["to"], "middle", "{said:?}");
    assert_worse(now[0]);
    assert!(now[0]["realised"].is_number(), "{said:?}");
    assert_eq!(value(&node, "hash-max-listpack-entries"), "512");
    judging.kill();
    pass_the_time();

    // A roll that was begun by hand, and whose process died: it is not a controller's to finish, nor is another one begun.
    let spec = serde_json::json!({
        "changes": { "hz": "20" },
        "tolerate": 0,
        "unserved": false
    });
    let record = Record::new("redis_roll", spec, clock::wall()());
    let jobs = std::path::Path::new(&server.cluster).with_extension("jobs");
    let journal = FileJournal::open(jobs).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(journal.create(&record)).unwrap();
    let job = record.id.as_str();
    let said = refused(&["--duration", "1s"], 4);
    assert!(said.contains(job) && said.contains("no controller began it"), "{said}");
    let said = refused(&["--duration", "1s", "--advise"], 4);
    assert!(said.contains("only advises"), "{said}");
    let said = server.refused(&server.roll(&["--set", "hz=30"]), 4);
    assert!(said.contains(job) && said.contains("has not ended"), "{said}");
    assert_eq!(value(&node, "hz"), "10");
    server.json(&[&["tune", "cancel", job], &of_cluster[..]].concat());

    // One that died behind the judgement, and before it undid what was worse.
    let quick = ["--set", "hash-max-listpack-entries=8", "--set", "hash-max-listpack-value=64"];
    server.json(&server.roll(&quick));
    let judged = entries.iter().find(|one| one["kind"] == "judged").unwrap();
    let folder = std::path::Path::new(&server.cluster).with_extension("decisions");
    let last = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).max().unwrap();
    let text = std::fs::read_to_string(&last).unwrap();
    std::fs::write(&last, format!("{text}{judged}\n")).unwrap();
    let heir = start("heir", &["--duration", "120s"]);
    until_said(&heir, &["\"changed\"", "\"is_undoing\":true"]);
    assert_eq!(value(&node, "hash-max-listpack-entries"), "512");
    reading.kill();
}

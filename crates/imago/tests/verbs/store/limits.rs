//! `imago store adapt`: limits as their users change them, and what of adaptation is known after a restart.

use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;

use imago_testbed::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::store::misuse::{fails, run, serve, text};
use crate::store::served::{Served, anywhere, imago, request};

fn asked(admin: &str, words: &[&str]) -> Value {
    let output = run(&[words, &["--admin", admin]].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn set(served: &Served, key: &str, value: &[u8]) {
    let mut stream = TcpStream::connect(served.listen).unwrap();
    stream.write_all(&request(&[b"SET", key.as_bytes(), value])).unwrap();
    let mut reply = [0; 5];
    BufReader::new(stream).read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
}

#[test]
fn limits_are_changed_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--adapt", "advise", "--partitions-max", "20"];
    let served = Served::start_with(folder.path(), 3, anywhere(), anywhere(), &words);
    let admin = served.admin.to_string();
    let before = asked(&admin, &["adapt"]);
    let expected = json!({
        "mode": "advise", "horizon_s": 10.0, "partitions_max": 20, "replicas_max": null, "memory_max_mb": null,
        "changes_s_max": 10.0, "notes": [],
    });
    assert_eq!(before, expected);
    set(&served, "large", &vec![b'x'; 3_000_000]);
    for (words, exit, why) in [
        (&["--memory-max", "1"][..], 4, "memory-max 1 MB is less than site 0 holds now, 3.0 MB"),
        (&["--mode", "on", "--memory-max", "2"], 4, "site 0 holds now"),
        (&["--mode", "on", "--horizon", "0"], 2, "the horizon of 0 s is not valid"),
        (&["--mode", "on", "--horizon", "-1"], 2, "the horizon of -1 s is not valid"),
        (&["--mode", "on", "--partitions-max", "0"], 2, "partitions-max 0 is not valid"),
        (
            &["--replicas-max", "3", "--mode", "on"],
            2,
            "with 3 sites a partition has at most 2 replicas",
        ),
        (&["--changes-s-max", "0"], 2, "changes-s-max 0 is not valid"),
    ] {
        let error = fails(&[&["adapt"], words, &["--admin", &admin]].concat(), exit);
        assert!(text(&error).contains(why), "{error}");
        assert_eq!(asked(&admin, &["adapt"]), before, "{words:?} changed something");
    }
    for (body, why) in [
        (json!({ "mode": "off" }), "unknown variant `off`"),
        (json!({ "partition_max": 5 }), "unknown field `partition_max`"),
        (json!({ "memory_max_mb": "all" }), "a number, or \"none\""),
    ] {
        let (status, answer) = served.post("adapt/limits", &body).unwrap();
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(why), "{answer}");
    }
    let words =
        ["adapt", "--mode", "on", "--memory-max", "4", "--replicas-max", "1", "--horizon", "5"];
    let after = asked(&admin, &words);
    let expected = json!({
        "mode": "on", "horizon_s": 5.0, "partitions_max": 20, "replicas_max": 1, "memory_max_mb": 4,
        "changes_s_max": 10.0, "notes": [],
    });
    assert_eq!(after, expected);
    let report = asked(&admin, &["explain"]);
    assert_eq!((&report["mode"], &report["horizon_s"]), (&json!("on"), &json!(5.0)));
    let shown =
        imago(&["store", "adapt", "--memory-max", "none", "--admin", &admin]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let lines: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (&lines[1][..], &lines[5][..]),
        (&["mode", "on"][..], &["memory-max", "(MB)", "none"][..]),
        "{shown}"
    );
}

#[test]
fn a_limit_below_what_there_is_removes_nothing_and_is_told_also_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut served =
        Served::start_with(folder.path(), 2, anywhere(), anywhere(), &["--adapt", "on"]);
    let admin = served.admin.to_string();
    for key in ["0:b", "0:c", "0:d"] {
        asked(&admin, &["split", key]);
    }
    let report = asked(&admin, &["adapt", "--partitions-max", "2"]);
    assert!(
        report["notes"][0]
            .as_str()
            .unwrap()
            .contains("there are 4 partitions, more than partitions-max 2")
    );
    assert_eq!(asked(&admin, &["design"])["partitions"].as_array().unwrap().len(), 4);
    served.kill();
    let words = ["--adapt", "on", "--partitions-max", "3"];
    let served = Served::start_with(folder.path(), 2, anywhere(), anywhere(), &words);
    let admin = served.admin.to_string();
    assert_eq!(asked(&admin, &["design"])["partitions"].as_array().unwrap().len(), 4);
    served.signal(Signal::INT);
    let (exit, said) = served.ended_saying();
    assert_eq!(exit, Some(0));
    assert!(said.contains("there are 4 partitions, more than partitions-max 3"), "{said}");
    let error =
        fails(&serve("127.0.0.1:0", &["--adapt", "on", "--replicas-max", "1", "--sites", "1"]), 2);
    assert!(text(&error).contains("with 1 sites"), "{error}");
}

#[test]
fn what_adaptation_knows_outlives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start =
        |words: &[&str]| Served::start_with(folder.path(), 2, anywhere(), anywhere(), words);
    let served = start(&["--adapt", "advise"]);
    let admin = served.admin.to_string();
    assert_eq!(asked(&admin, &["explain"])["kept"]["refused"], json!(null));
    asked(&admin, &["adapt", "--partitions-max", "50", "--changes-s-max", "3"]);
    wait::until_blocking("it has learned", || {
        (0..500).for_each(|n| set(&served, &format!("user:{n}"), b"ann"));
        asked(&admin, &["explain"])["distrust"].is_null()
    });
    asked(&admin, &["explain", "--pause"]);
    let before = asked(&admin, &["explain"]);
    assert_eq!(served.interrupted(), Some(0));
    let served = start(&["--adapt", "advise", "--changes-s-max", "4"]);
    let admin = served.admin.to_string();
    let after = asked(&admin, &["explain"]);
    assert_eq!((&after["is_paused"], &after["distrust"]), (&json!(true), &json!(null)), "{after}");
    let samples = |report: &Value| report["functions"][0]["samples"].as_u64();
    wait::until_blocking("its first round is over", || {
        samples(&asked(&admin, &["explain"])).is_some()
    });
    assert!(samples(&asked(&admin, &["explain"])) >= samples(&before), "{before}");
    let decisions = |report: &Value| -> Vec<String> {
        let all = report["decisions"].as_array().unwrap().iter();
        all.map(|one| {
            format!("{} {} {} {}", one["at_ms"], one["operators"], one["verdict"], one["why"])
        })
        .collect()
    };
    let (old, new) = (decisions(&before), decisions(&asked(&admin, &["explain"])));
    assert!(!old.is_empty() && new.starts_with(&old), "{old:?} {new:?}");
    // A flag counts more than what was set while it ran.
    let limits = asked(&admin, &["adapt"]);
    assert_eq!((&limits["partitions_max"], &limits["changes_s_max"]), (&json!(50), &json!(4.0)));
    asked(&admin, &["explain", "--resume"]);
    assert_eq!(served.interrupted(), Some(0));
    for (content, why) in [("{\"version\": 99}", "version 99"), ("{", "damaged")] {
        fs::write(folder.path().join("adapt.json"), content).unwrap();
        let served = start(&["--adapt", "advise"]);
        let report = asked(&served.admin.to_string(), &["explain"]);
        assert!(report["kept"]["refused"].as_str().unwrap().contains(why), "{report}");
        assert_eq!(report["is_paused"], false);
        assert_eq!(served.interrupted(), Some(0));
        assert_eq!(fs::read_to_string(folder.path().join("adapt.json.refused")).unwrap(), content);
    }
}

#[test]
fn a_store_without_a_folder_says_that_it_forgets() {
    let served = Served::start_on(&["--adapt", "advise"], 2, anywhere(), anywhere());
    let admin = served.admin.to_string();
    assert_eq!(asked(&admin, &["explain"])["kept"]["file"], json!(null));
    let shown = imago(&["store", "explain", "--admin", &admin]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&shown.stdout)
            .contains("without --data it is lost when the store ends")
    );
}

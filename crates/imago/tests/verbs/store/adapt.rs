//! Adaptation as its users meet it: it explains itself, can be paused, and says where it is off.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::store::misuse::{fails, run, serve, text};
use crate::store::served::{Served, anywhere, request};

fn explained(admin: &str, words: &[&str]) -> Value {
    let output = run(&[&["explain", "--admin", admin], words].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Of two sites in use, the first of which masters everything.
fn every_rule_is_answered(explained: &Value) {
    let rules =
        ["alive", "in use", "copy", "pin", "memory", "replicas", "cool-down", "not undone", "pays"];
    let sites = explained["sites"].as_array().unwrap();
    assert_eq!((explained["master"].as_u64(), sites.len()), (Some(0), 2), "{explained}");
    for site in sites {
        let found: Vec<&str> = site["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["rule"].as_str().unwrap())
            .collect();
        assert_eq!(found, rules, "{explained}");
    }
    let rule = |site: usize, name: &str| {
        let rules = sites[site]["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["rule"] == name).unwrap().clone()
    };
    assert_eq!(
        (&rule(0, "copy")["holds"], &rule(1, "copy")["holds"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(rule(0, "pays")["holds"], json!(null));
    assert!(rule(1, "pays")["why"].as_str().unwrap().contains("costs"), "{explained}");
    assert!(sites[1]["latency_us"][0].as_f64() > Some(0.0), "{explained}");
    assert!(sites[1]["work_us"][0].as_f64() > Some(0.0), "{explained}");
    assert!(sites[1]["cpu"][1].as_f64() > sites[1]["cpu"][0].as_f64(), "{explained}");
}

/// Sets so many users, one after the other.
fn set_users(served: &Served, count: usize) {
    let mut stream = TcpStream::connect(served.listen).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    for n in 0..count {
        let name = format!("user:{:08}", n * 7_919 % 20_000);
        stream.write_all(&request(&[b"SET", name.as_bytes(), b"ann@example.com"])).unwrap();
        let mut reply = [0; 5];
        replies.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

#[test]
fn a_store_explains_what_it_learns_and_holds_still_while_it_is_paused() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--adapt", "advise", "--adapt-horizon", "20", "--replicas-max", "1"];
    let served = Served::start_with(folder.path(), 2, anywhere(), anywhere(), &words);
    let admin = served.admin.to_string();
    let before = explained(&admin, &[]);
    assert_eq!((&before["mode"], &before["horizon_s"]), (&json!("advise"), &json!(20.0)));
    assert!(before["distrust"].is_null() || before["distrust"].is_string(), "{before}");
    let learned = (0..100).find_map(|_| {
        set_users(&served, 2_000);
        let report = explained(&admin, &["0:user:00000000"]);
        let is_learned = report["distrust"].is_null() && report["samples"].as_u64() > Some(100);
        is_learned.then_some(report)
    });
    let learned = learned.unwrap_or_else(|| panic!("{}", explained(&admin, &[])));
    let functions = learned["functions"].as_array().unwrap();
    let of = |name: &str| functions.iter().find(|one| one["name"] == name).unwrap();
    assert!(of("read_write")["constant"].as_f64() > Some(0.0), "{learned}");
    assert!(of("commit")["samples"].as_u64() > Some(0), "{learned}");
    assert!(learned["transactions_s"].as_f64() > Some(10.0), "{learned}");
    assert_eq!((&learned["changes"], &learned["undone"]), (&json!(0), &json!(0)), "{learned}");
    every_rule_is_answered(&learned["explanation"]);
    let error = fails(&["explain", "0:cart:00000001", "--admin", &admin], 4);
    assert!(
        text(&error)
            .contains("0:cart:00000001 has no row; it would lie in the partition from (first)"),
        "{error}"
    );
    assert_eq!(explained(&admin, &["(first)"])["explanation"]["key"], "");
    assert_eq!(explained(&admin, &["--pause"])["is_paused"], true);
    assert_eq!(explained(&admin, &["--resume"])["is_paused"], false);
}

#[test]
fn where_it_is_off_and_what_makes_no_sense_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), 2, anywhere(), anywhere());
    let admin = served.admin.to_string();
    for words in [
        &["explain"][..],
        &["explain", "0:user:00000042"],
        &["explain", "--pause"],
        &["adapt"],
        &["adapt", "--mode", "on"],
    ] {
        let error = fails(&[words, &["--admin", &admin]].concat(), 4);
        assert!(
            text(&error).contains("adaptation is off: start the store with --adapt"),
            "{error}"
        );
    }
    for words in [
        ["--adapt", "sometimes"],
        ["--site-cpu", "2"],
        ["--site-cpu", "nan"],
        ["--adapt-horizon", "0"],
        ["--adapt-horizon", "-1"],
        ["--changes-s-max", "-1"],
        ["--changes-s-max", "0"],
        ["--partitions-max", "0"],
        ["--memory-max", "0"],
        ["--replicas-max", "many"],
    ] {
        let error = fails(&serve("127.0.0.1:0", &words), 2);
        assert!(text(&error).contains(words[0]), "{error}");
        if words[1] == "-1" {
            assert!(text(&error).contains("it is a number above 0"), "{error}");
        }
    }
}

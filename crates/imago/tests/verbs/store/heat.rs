//! Heat as its users meet it: the keys that are written are hot, in numbers, as text and as a picture.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use imago_testbed::wait;
use serde_json::Value;

use crate::store::misuse::{fails, run, text};
use crate::store::served::{Served, anywhere, imago, request};

fn heat(admin: &str) -> Value {
    let output = run(&["heat", "--admin", admin]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sets the same few keys so often.
fn set(served: &Served, count: usize) {
    let mut stream = TcpStream::connect(served.listen).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    for n in 0..count {
        let name = format!("hot:{:03}", n % 50);
        stream.write_all(&request(&[b"SET", name.as_bytes(), b"1"])).unwrap();
        let mut reply = [0; 5];
        replies.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

fn sum(range: &Value, of: &str) -> f64 {
    range[of].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).sum()
}

#[test]
fn written_keys_are_hot_and_changes_of_the_design_are_marked() {
    let folder = tempfile::tempdir().unwrap();
    let served =
        Served::start_with(folder.path(), 2, anywhere(), anywhere(), &["--adapt", "advise"]);
    let admin = served.admin.to_string();
    let mut set_count = 0.0;
    wait::until_blocking("the hot keys have ranges of their own", || {
        set(&served, 2_000);
        set_count += 2_000.0;
        let report = heat(&admin);
        report["ranges"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|range| sum(range, "writes") > 0.0)
            .count()
            > 5
    });
    assert!(run(&["split", "0:hot:025", "--admin", &admin]).status.success());
    wait::until_blocking("the split is marked", || {
        let report = heat(&admin);
        let is_it = |mark: &Value| mark["operator"] == "split" && mark["key"] == "0:hot:025";
        report["marks"].as_array().unwrap().iter().any(is_it)
    });
    let report = heat(&admin);
    let ranges = report["ranges"].as_array().unwrap();
    let writes: f64 = ranges.iter().map(|range| sum(range, "writes")).sum();
    // Each sample stands for as many as one in so many was sampled.
    assert!((0.5..1.5).contains(&(writes / set_count)), "{writes} of {set_count}");
    let cpu: f64 = ranges.iter().map(|range| sum(range, "cpu_ms")).sum();
    assert!(
        cpu > 0.0 && ranges.iter().all(|range| sum(range, "conflicts") <= sum(range, "writes")),
        "{report}"
    );
    let shown = imago(&["store", "heat", "--of", "writes", "--admin", &admin]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("writes/s, ") && shown.contains("0:hot:0"), "{shown}");
    let picture = folder.path().join("heat.svg");
    let words = ["heat", "--of", "cpu", "--picture", picture.to_str().unwrap(), "--admin", &admin];
    assert!(run(&words).status.success());
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("split 0:hot:025"), "{svg}");
    let nowhere = folder.path().join("missing/heat.svg");
    let error = fails(&["heat", "--picture", nowhere.to_str().unwrap(), "--admin", &admin], 1);
    assert!(text(&error).contains("missing/heat.svg"), "{error}");
}

#[test]
fn without_sampling_there_is_no_heat_and_the_error_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), 1, anywhere(), anywhere());
    let error = fails(&["heat", "--admin", &served.admin.to_string()], 4);
    assert!(text(&error).contains("start the store with --adapt advise"), "{error}");
}

#[test]
fn a_transaction_whose_watched_key_was_changed_is_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let served =
        Served::start_with(folder.path(), 1, anywhere(), anywhere(), &["--adapt", "advise"]);
    let admin = served.admin.to_string();
    let connect = || BufReader::new(TcpStream::connect(served.listen).unwrap());
    let (mut one, mut other) = (connect(), connect());
    let ask = |of: &mut BufReader<TcpStream>, words: &[&[u8]], expected: &str| {
        of.get_mut().write_all(&request(words)).unwrap();
        let mut line = String::new();
        of.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    };
    let conflicts = |report: &Value| -> f64 {
        report["ranges"].as_array().unwrap().iter().map(|range| sum(range, "conflicts")).sum()
    };
    set(&served, 2_000);
    assert_eq!(conflicts(&heat(&admin)), 0.0);
    wait::until_blocking("a conflict is seen", || {
        for _ in 0..100 {
            ask(&mut one, &[b"WATCH", b"k"], "+OK");
            ask(&mut other, &[b"SET", b"k", b"1"], "+OK");
            ask(&mut one, &[b"MULTI"], "+OK");
            ask(&mut one, &[b"SET", b"k", b"2"], "+QUEUED");
            ask(&mut one, &[b"EXEC"], "*-1");
        }
        conflicts(&heat(&admin)) > 0.0
    });
}

//! `imago store drain` and `add`: while clients write, at what it is refused, over a restart, and for sites that come later.

use std::collections::BTreeMap;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use imago_testbed::wait;
use serde_json::{Value, json};

use crate::store::misuse::{fails, run, serve, text};
use crate::store::processes::{Process, peers};
use crate::store::served::{Served, addresses, anywhere, request};

const WRITERS: usize = 4;
const KEYS: usize = 60;

fn asked(admin: &str, words: &[&str]) -> Value {
    let output = run(&[words, &["--admin", admin]].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A site's use, the number of partitions that it masters, and that of its replicas.
pub fn site(admin: &str, number: usize) -> (bool, u64, u64) {
    let design = asked(admin, &["design"]);
    let site = &design["sites"][number];
    (
        site["is_used"].as_bool().unwrap(),
        site["masters"].as_u64().unwrap(),
        site["replicas"].as_u64().unwrap(),
    )
}

/// Reads one reply of a line, or of a line and the value behind it.
fn reply(from: &mut BufReader<TcpStream>) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

/// A client that counts keys up, two at once, wherever they lie; how often each was acknowledged.
fn writer(
    at: SocketAddr,
    number: usize,
    is_over: Arc<AtomicBool>,
) -> JoinHandle<BTreeMap<String, u64>> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(at).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap());
        let (mut counts, mut n) = (BTreeMap::new(), 0);
        while !is_over.load(Ordering::Relaxed) {
            n += 1;
            let keys =
                [n * 7 % KEYS, (n * 13 + 31) % KEYS].map(|key| format!("w{number}:{key:03}"));
            let (one, two) = (keys[0].as_bytes(), keys[1].as_bytes());
            let words: [&[&[u8]]; 4] = [&[b"MULTI"], &[b"INCR", one], &[b"INCR", two], &[b"EXEC"]];
            words.iter().for_each(|words| stream.write_all(&request(words)).unwrap());
            let said: Vec<String> = (0..4).map(|_| reply(&mut replies)).collect();
            // A transaction that did nothing, and says so, is tried again as the next one.
            if said[3] == "*2" {
                reply(&mut replies);
                reply(&mut replies);
                keys.into_iter().for_each(|key| *counts.entry(key).or_default() += 1);
            } else {
                assert!(said[3].contains("TRYAGAIN nothing happened"), "{said:?}");
            }
        }
        counts
    })
}

fn count(at: SocketAddr, key: &str) -> u64 {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(&request(&[b"GET", key.as_bytes()])).unwrap();
    let mut replies = BufReader::new(stream);
    assert!(reply(&mut replies).starts_with('$'));
    reply(&mut replies).parse().unwrap()
}

#[test]
fn a_drained_site_holds_nothing_and_no_acknowledged_write_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path(), 3, anywhere(), anywhere());
    let admin = served.admin.to_string();
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..WRITERS).map(|number| writer(served.listen, number, Arc::clone(&is_over))).collect();
    for number in 0..WRITERS {
        for key in (0..KEYS).step_by(12) {
            let key = format!("0:w{number}:{key:03}");
            // The first key of all is where a partition begins already.
            run(&["split", &key, "--admin", &admin]);
            run(&["add-replica", &key, "--site", "1", "--admin", &admin]);
            run(&["remaster", &key, "--site", "1", "--admin", &admin]);
        }
    }
    wait::until_blocking("site 1 masters something", || site(&admin, 1).1 > 0);
    let drained = asked(&admin, &["drain", "1"]);
    assert_eq!(
        (&drained["state"], &drained["copies"], &drained["is_kept"]),
        (&json!("drained"), &json!(0), &json!(true))
    );
    for words in [&["pin"][..], &["add-replica"]] {
        let error = fails(&[words, &["0:w0:000", "--site", "1", "--admin", &admin]].concat(), 4);
        assert!(text(&error).contains("site 1 is not in use: `imago store add 1`"), "{error}");
    }
    // Transactions bring the other sites' partitions together, and nothing to this one.
    for key in ["0:w1:012", "0:w2:024"] {
        run(&["add-replica", key, "--site", "2", "--admin", &admin]);
        run(&["remaster", key, "--site", "2", "--admin", &admin]);
    }
    wait::lasts_blocking(Duration::from_millis(500));
    assert_eq!(site(&admin, 1), (false, 0, 0));
    is_over.store(true, Ordering::Relaxed);
    let counts: BTreeMap<String, u64> =
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    assert!(counts.values().sum::<u64>() > 100, "{counts:?}");
    for (key, times) in &counts {
        assert_eq!(count(served.listen, key), *times, "{key}");
    }
    served.kill();
    let served = Served::start(folder.path(), 3, anywhere(), anywhere());
    let admin = served.admin.to_string();
    assert_eq!(site(&admin, 1), (false, 0, 0));
    for (key, times) in counts.iter().take(20) {
        assert_eq!(count(served.listen, key), *times, "{key}");
    }
    assert_eq!(asked(&admin, &["drain", "1"])["state"], "drained");
    asked(&admin, &["add", "1"]);
    asked(&admin, &["pin", "0:w0:000", "--site", "1"]);
    assert_eq!(site(&admin, 1), (true, 1, 0));
}

#[test]
fn a_drain_that_cannot_succeed_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start_with(
        folder.path(),
        3,
        anywhere(),
        anywhere(),
        &["--adapt", "advise", "--memory-max", "4"],
    );
    let admin = served.admin.to_string();
    let refused = |number: &str, why: &str| {
        let before = asked(&admin, &["design"])["changed_at"].clone();
        let error = fails(&["drain", number, "--admin", &admin], 4);
        assert!(text(&error).contains(why), "{error}");
        let after = asked(&admin, &["design"]);
        assert_eq!(after["changed_at"], before);
        assert!(
            after["sites"].as_array().unwrap().iter().all(|site| site["is_used"] == true),
            "{after}"
        );
    };
    refused("3", "there is no site 3: this store has 3 sites");
    asked(&admin, &["split", "0:k"]);
    asked(&admin, &["pin", "0:k", "--site", "0"]);
    refused("0", "partitions are pinned to site 0: 0:k; unpin them");
    asked(&admin, &["unpin", "0:k"]);
    let value = vec![b'x'; 3_000_000];
    let mut stream = TcpStream::connect(served.listen).unwrap();
    stream.write_all(&request(&[b"SET", b"large", &value])).unwrap();
    assert_eq!(reply(&mut BufReader::new(stream)), "+OK");
    asked(&admin, &["add-replica", "0:k", "--site", "1"]);
    asked(&admin, &["add-replica", "0:k", "--site", "2"]);
    refused("9", "there is no site 9");
    // Both others have a copy of the large partition; a second one does not fit beside it.
    let mut stream = TcpStream::connect(served.listen).unwrap();
    stream.write_all(&request(&[b"SET", b"a", &vec![b'x'; 500_000]])).unwrap();
    assert_eq!(reply(&mut BufReader::new(stream)), "+OK");
    let mut stream = TcpStream::connect(served.listen).unwrap();
    stream.write_all(&request(&[b"SET", b"b", &vec![b'x'; 900_000]])).unwrap();
    assert_eq!(reply(&mut BufReader::new(stream)), "+OK");
    refused(
        "0",
        "no other site in use has room for the partition from (first) on, 1.4 MB, within memory-max 4 MB",
    );
}

#[test]
fn the_last_site_in_use_is_not_drained() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), 3, anywhere(), anywhere());
    let admin = served.admin.to_string();
    asked(&admin, &["drain", "0"]);
    asked(&admin, &["drain", "2"]);
    let error = fails(&["drain", "1", "--admin", &admin], 4);
    assert!(text(&error).contains("no other site is in use; not in use: 0, 2"), "{error}");
    assert_eq!((site(&admin, 0), site(&admin, 1).1), ((false, 0, 0), 1));
    let error = fails(&["add", "7", "--admin", &admin], 4);
    assert!(text(&error).contains("there is no site 7"), "{error}");
    let (status, answer) = served.post("drain", &json!({ "site": "all" })).unwrap();
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("u16"), "{answer}");
}

#[test]
fn sites_that_are_declared_for_later_get_nothing_until_they_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let mut served =
        Served::start_with(folder.path(), 3, anywhere(), anywhere(), &["--unused", "1"]);
    let admin = served.admin.to_string();
    let error = fails(&["add-replica", "0:k", "--site", "2", "--admin", &admin], 4);
    assert!(text(&error).contains("site 2 is not in use"), "{error}");
    served.kill();
    // The folder's file takes precedence over the flag of a later start.
    let served = Served::start_with(folder.path(), 3, anywhere(), anywhere(), &["--unused", "2"]);
    let admin = served.admin.to_string();
    assert_eq!(((site(&admin, 1).0), (site(&admin, 2).0)), (true, false));
    asked(&admin, &["add", "2"]);
    asked(&admin, &["add-replica", "0:k", "--site", "2"]);
    assert_eq!(site(&admin, 2), (true, 0, 1));
    let error = fails(&serve("127.0.0.1:0", &["--sites", "2", "--unused", "2"]), 2);
    assert!(text(&error).contains("2 of 2 sites unused"), "{error}");
}

#[test]
fn a_site_joins_a_router_that_serves_and_takes_over_from_another() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let words = ["--data", data, "--unused", "1", "--peers", "127.0.0.1:0"];
    let router = Served::try_start_as("router", &words, 2, addresses()).unwrap();
    let (admin, peers) = (router.admin.to_string(), peers(&router));
    let first = Process::start(0, peers);
    first.serves();
    let mut stream = TcpStream::connect(router.listen).unwrap();
    stream.write_all(&request(&[b"SET", b"k", b"7"])).unwrap();
    assert_eq!(reply(&mut BufReader::new(stream)), "+OK");
    let error = fails(&["add", "1", "--admin", &admin], 4);
    assert!(
        text(&error)
            .contains("site 1 is not running: start it first, with `imago store site --number 1`"),
        "{error}"
    );
    let second = Process::start(1, peers);
    second.serves();
    wait::until_blocking("the router knows it", || {
        run(&["add", "1", "--admin", &admin]).status.success()
    });
    assert_eq!(asked(&admin, &["drain", "0"])["state"], "drained");
    assert_eq!((site(&admin, 0), site(&admin, 1)), ((false, 0, 0), (true, 1, 0)));
    assert_eq!(count(router.listen, "k"), 7);
}

//! Output is never silently incomplete: missing keys, wrong input, a cache and a shard that die, readers that go away.

use std::io::{Read as _, Write as _};

use imago_testbed::process::{ProcessId, Signal};
use imago_testbed::wait;

use super::scene::{
    MESSAGES, NS, Scene, failed, lines, message, output, piped, printed, rank, said,
};
use crate::tune::redis::ask;

fn expected(keys: impl Iterator<Item = i64>) -> String {
    lines(keys.map(|key| rank(&message(key), MESSAGES as u64)))
}

/// The entry of a message in the cache.
fn entry(key: i64) -> Vec<u8> {
    [NS.as_bytes(), b"\0i", &key.to_le_bytes()].concat()
}

/// A command in the protocol's own form, since names of entries are bytes.
fn send(node: &str, words: &[&[u8]]) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(node).unwrap();
    let quit: [&[u8]; 1] = [b"QUIT"];
    for command in [words, &quit] {
        write!(stream, "*{}\r\n", command.len()).unwrap();
        for word in command {
            write!(stream, "${}\r\n", word.len()).unwrap();
            stream.write_all(word).unwrap();
            stream.write_all(b"\r\n").unwrap();
        }
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn a_key_without_a_document_is_named_or_counted_and_wrong_input_is_refused_by_its_line() {
    let scene = Scene::start().await;
    let keys = "1\n2\n7777777\n3\n";
    let said_of = |output: &std::process::Output| failed(output);
    let stopped = output(scene.map(&[]), keys);
    let told = said_of(&stopped);
    assert!(told.contains("no document of the _id 7777777 in shop.messages"), "{told}");
    assert_eq!(stopped.stdout, b"", "nothing of its batch");
    let skipped = output(scene.map(&["--missing", "skip"]), keys);
    assert_eq!(String::from_utf8_lossy(&skipped.stdout), expected([1, 2, 3].into_iter()));
    assert!(said(&skipped).contains("1 keys have no document"), "{}", said(&skipped));
    let told = said_of(&output(scene.map(&[]), "1\nB00005N7OJ\n"));
    assert!(told.contains("line 2 of the input: `B00005N7OJ` is no key"), "{told}");
    let told = said_of(&output(scene.program(&["chain", "reduce"]), "1\n10\n2\n15\n"));
    assert!(told.contains("line 4 of the input: it is not sorted"), "{told}");
    let pair = format!("000000000001\t0 {0}\n", "ab".repeat(32));
    let tree = ["chain", "reduce", "--job", "merkle", "--leaves", "5", "--level", "1"];
    let told = said_of(&output(scene.program(&tree), &pair));
    assert!(told.contains("the node 3 of level 0 is missing"), "{told}");
    // No cluster at all is a precondition.
    let nowhere = [
        "chain",
        "map",
        "--uri",
        "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300",
        "--ns",
        NS,
        "--modulo",
        "5",
    ];
    let refused = output(scene.program(&nowhere), "1\n");
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
}

#[tokio::test]
async fn a_cache_that_dies_within_a_phase_is_done_without_or_ends_it_if_it_is_required() {
    let scene = Scene::start().await;
    let Some(cache) = &scene.cache else { return };
    let (uri, node) = (cache.uri(), format!("127.0.0.1:{}", cache.port()));
    for is_required in [false, true] {
        ask(&node, "FLUSHALL");
        let more = ["--cache", &uri, "--batch", "100", "--json", "--cache-required"];
        let mut map = piped(scene.map(&more[..more.len() - usize::from(!is_required)]));
        let mut stdin = map.stdin.take().unwrap();
        stdin.write_all(lines(0..300).as_bytes()).unwrap();
        wait::until_blocking("the first batches are cached", || {
            ask(&node, "DBSIZE").starts_with(":300")
        });
        cache.kill().unwrap();
        // A map that has failed does not read it.
        drop(stdin.write_all(lines(300..MESSAGES).as_bytes()));
        drop(stdin);
        let ended = map.wait_with_output().unwrap();
        let told = said(&ended);
        if is_required {
            assert!(failed(&ended).contains("the cache 127.0.0.1"), "{told}");
            assert!(ended.stdout.len() < expected(0..MESSAGES).len());
        } else {
            assert!(ended.status.success(), "{told}");
            assert_eq!(String::from_utf8_lossy(&ended.stdout), expected(0..MESSAGES));
            assert_eq!(told.matches("going on without it").count(), 1, "{told}");
            let report: serde_json::Value =
                serde_json::from_str(told.lines().last().unwrap()).unwrap();
            assert!(report["cache_failure"].as_str().unwrap().contains("127.0.0.1"), "{report}");
        }
        cache.restart().await.unwrap();
    }
}

#[tokio::test]
async fn a_cached_value_that_is_torn_or_another_documents_is_fetched_anew() {
    let scene = Scene::start().await;
    let Some(cache) = &scene.cache else { return };
    let (uri, node) = (cache.uri(), format!("127.0.0.1:{}", cache.port()));
    let keys = lines(0..50);
    printed(scene.map(&["--cache", &uri]), &keys);
    let torn = message(7).to_vec().unwrap();
    let another = message(9).to_vec().unwrap();
    send(&node, &[b"SET", &entry(7), &torn[..torn.len() - 5]]);
    send(&node, &[b"SET", &entry(8), &another]);
    send(&node, &[b"SET", &entry(10), b"nonsense"]);
    let mapped = output(scene.map(&["--cache", &uri, "--json"]), &keys);
    assert_eq!(String::from_utf8_lossy(&mapped.stdout), expected(0..50));
    let told = said(&mapped);
    assert!(told.contains(r#""refused":3"#) && told.contains(r#""misses":3"#), "{told}");
    let whole = send(&node, &[b"GET", &entry(8)]);
    let own = message(8).to_vec().unwrap();
    assert!(whole.windows(own.len()).any(|window| window == own), "it is mended");
    // A full cache takes no more, and nothing is lost by that.
    ask(&node, "CONFIG SET maxmemory 1mb");
    ask(&node, "FLUSHALL");
    let full = output(scene.map(&["--cache", &uri, "--json"]), &lines(0..MESSAGES));
    assert_eq!(String::from_utf8_lossy(&full.stdout), expected(0..MESSAGES));
    assert!(!said(&full).contains(r#""not_cached":0,"#), "{}", said(&full));
    // A time to live is set where it is asked for.
    ask(&node, "CONFIG SET maxmemory 64mb");
    ask(&node, "FLUSHALL");
    printed(scene.map(&["--cache", &uri, "--cache-ttl", "900"]), "7\n");
    let ttl = String::from_utf8(send(&node, &[b"TTL", &entry(7)])).unwrap();
    assert!(ttl.starts_with(":900") || ttl.starts_with(":89"), "{ttl}");
}

#[tokio::test]
async fn a_shard_that_is_down_ends_the_map_with_the_drivers_cause() {
    let scene = Scene::start().await;
    let shard = scene.cluster.set_names().next().unwrap().to_owned();
    scene.cluster.kill(&format!("{shard}-0")).unwrap();
    let map = scene.map(&[]);
    let ended =
        tokio::task::spawn_blocking(move || output(map, &lines(0..MESSAGES))).await.unwrap();
    let told = failed(&ended);
    assert!(told.contains("reading shop.messages failed, attempt "), "{told}");
    assert!(ended.stdout.len() < expected(0..MESSAGES).len());
}

#[tokio::test]
async fn a_reader_that_goes_away_is_an_error_and_no_panic() {
    let scene = Scene::start().await;
    let mut map = piped(scene.map(&["--batch", "50"]));
    drop(map.stdout.take());
    let mut stdin = map.stdin.take().unwrap();
    // More than the buffers take.
    let writer = std::thread::spawn(move || {
        drop(stdin.write_all(lines((0..MESSAGES).cycle().take(40_000)).as_bytes()))
    });
    let ended = map.wait_with_output().unwrap();
    writer.join().unwrap();
    let told = failed(&ended);
    assert!(told.contains("cannot write the output, which is incomplete"), "{told}");
    assert!(!told.contains("panicked"), "{told}");
}

#[tokio::test]
async fn a_map_that_is_interrupted_says_so_by_its_exit_code() {
    let scene = Scene::start().await;
    let mut map = piped(scene.map(&["--batch", "10"]));
    let mut stdin = map.stdin.take().unwrap();
    stdin.write_all(lines(0..20).as_bytes()).unwrap();
    // Its input stays open: it waits for more.
    let process = ProcessId::of(map.id()).unwrap();
    wait::until_blocking("it watches for signals", || watches_for_signals(map.id()));
    process.signal(Signal::INT).unwrap();
    let ended = map.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(ended.status.code(), Some(5), "{}", said(&ended));
}

/// True once a process has a handler of SIGINT, by the mask that the kernel shows.
fn watches_for_signals(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 0b10 != 0
}

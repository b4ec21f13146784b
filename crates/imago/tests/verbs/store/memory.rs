//! The limit of memory: writes are refused as by Redis, and what is there can be read and deleted; and what INFO tells.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use imago_testbed::wait;

use crate::store::processes::{Process, ask, peers};
use crate::store::served::{Served, addresses, anywhere, request};

const MAX: u64 = 4 * 1024 * 1024;
/// What a row takes besides its key and value.
const ROW_BYTES: u64 = 140;
const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";

fn send(at: SocketAddr, words: &[&[u8]]) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(&request(words)).unwrap();
    BufReader::new(stream)
}

/// The first line of a reply.
fn line(at: SocketAddr, words: &[&[u8]]) -> String {
    let mut line = String::new();
    send(at, words).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// A section of INFO.
fn info(at: SocketAddr, section: &str) -> String {
    let mut reply = send(at, &[b"INFO", section.as_bytes()]);
    let mut length = String::new();
    reply.read_line(&mut length).unwrap();
    let mut text = vec![0; length.trim_end()[1..].parse().unwrap()];
    reply.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn field(info: &str, name: &str) -> u64 {
    let value = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    value.unwrap_or_else(|| panic!("{name}: {info}")).parse().unwrap()
}

fn invoice(number: u64) -> String {
    format!("invoice:2026:{number:08}")
}

/// Writes until no more is taken; how many rows were.
fn fill(at: SocketAddr) -> u64 {
    let value = vec![b'i'; 4_000];
    for number in 0.. {
        match &*line(at, &[b"SET", invoice(number).as_bytes(), &value]) {
            "+OK" => assert!(number < 10_000, "it takes more than it may"),
            refused => {
                assert_eq!(refused, OOM);
                return number;
            }
        }
    }
    unreachable!("it ends before")
}

#[test]
fn writes_beyond_the_limit_are_refused_as_by_redis() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--maxmemory", "4mb"];
    let served = Served::start_with(folder.path(), 2, anywhere(), anywhere(), &more);
    let at = served.listen;
    let rows = fill(at);
    let used = rows * (4_000 + invoice(0).len() as u64 + 4 + ROW_BYTES);
    assert!(used > MAX && used < MAX + MAX / 4, "{rows} rows, {used} bytes");
    // A site that is too busy to answer in time is not counted.
    wait::until_blocking("all sites are counted", || {
        field(&info(at, "memory"), "used_memory") == used
    });
    let memory = info(at, "memory");
    assert_eq!(field(&memory, "maxmemory"), MAX);
    assert!(memory.starts_with("# Memory\r\nused_memory:"), "{memory}");
    assert!(memory.contains("\r\nmaxmemory_human:4.00M\r\nmaxmemory_policy:noeviction\r\n"));
    assert!(field(&memory, "used_memory_rss") > used, "{memory}");
    for refused in [
        "INCR visits",
        "APPEND invoice:2026:00000001 x",
        "MSET a 1 b 2",
        "EVAL \"return redis.call('SET',KEYS[1],'1')\" 1 visits",
    ] {
        assert_eq!(ask(at, refused), OOM, "{refused}");
    }
    for (taken, reply) in [
        ("STRLEN invoice:2026:00000001", ":4000"),
        ("EVAL \"return redis.call('STRLEN',KEYS[1])\" 1 invoice:2026:00000001", ":4000"),
        ("CONFIG GET maxmemory", "*2"),
        ("DEL invoice:2026:00000001", ":1"),
        ("GETDEL invoice:2026:00000002", "$4000"),
    ] {
        assert_eq!(ask(at, taken), reply, "{taken}");
    }
    for number in 3..rows / 2 {
        assert_eq!(ask(at, &format!("DEL {}", invoice(number))), ":1");
    }
    wait::until_blocking("there is room again", || ask(at, "SET visits 1") == "+OK");
    let mut other = send(at, &[b"SELECT", b"3"]);
    other.get_mut().write_all(&request(&[b"SET", b"k", b"v"])).unwrap();
    for _ in 0..2 {
        let mut reply = String::new();
        other.read_line(&mut reply).unwrap();
        assert_eq!(reply, "+OK\r\n");
    }
    let keys = rows - rows / 2 + 1 + 1;
    let expected = format!(
        "# Keyspace\r\ndb0:keys={keys},expires=0,avg_ttl=0\r\ndb3:keys=1,expires=0,avg_ttl=0\r\n"
    );
    assert_eq!(info(at, "keyspace"), expected);
    // This connection, and the one that waits: those of before are gone once the server has seen their ends.
    wait::until_blocking("the others are gone", || {
        field(&info(at, "clients"), "connected_clients") == 2
    });
    assert!(field(&info(at, "server"), "uptime_in_seconds") < 600);
    let long = vec![b'k'; 65_537];
    assert_eq!(
        line(at, &[b"SET", &long, b"v"]),
        "-ERR a key of 65537 bytes is too long: at most 65536"
    );
}

#[test]
fn a_site_in_a_process_of_its_own_has_a_limit_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let words =
        ["--data", folder.path().to_str().unwrap(), "--sync", "5", "--peers", "127.0.0.1:0"];
    let router = Served::try_start_as("router", &words, 1, addresses()).unwrap();
    let site = Process::start_with(0, &[peers(&router)], &["--maxmemory", "4mb"]);
    site.serves();
    let rows = fill(router.listen);
    assert_eq!(ask(router.listen, &format!("STRLEN {}", invoice(rows - 1))), ":4000");
    assert_eq!(ask(router.listen, "DEL invoice:2026:00000000"), ":1");
    assert!(field(&info(router.listen, "memory"), "used_memory") > MAX - 8_000);
}

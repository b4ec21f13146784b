//! Values of which a small part changes: the log takes what changed, and has all of it after a death.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::store::served::{Served, anywhere, request};

const MB: u64 = 1024 * 1024;
const DRAFT: &str = "draft:7d444840-9dc0-11d1-b245-5ffdce74fad2";
const EVENTS: &str = "events:2026-11-25T08:00:00Z:01JDHQ3G5Y8M8Z6S3B2E5K9V7N";

fn ask(stream: &mut TcpStream, words: &[&[u8]], reply: &str) {
    stream.write_all(&request(words)).unwrap();
    let mut come = vec![0; reply.len()];
    stream.read_exact(&mut come).unwrap();
    let begins = come[..come.len().min(60)].escape_ascii();
    assert!(come == reply.as_bytes(), "{begins} instead of {}", &reply[..reply.len().min(60)]);
}

fn connect(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.listen).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn log_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let logs = files.filter(|file| file.path().extension().is_some_and(|end| end == "log"));
    logs.map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn appends_to_ten_megabytes_log_what_they_append() {
    let folder = tempfile::tempdir().unwrap();
    // A replica at the other site, and large segments: there is no checkpoint meanwhile.
    let mut served = Served::start(folder.path(), 2, anywhere(), anywhere());
    let replica = serde_json::json!({ "key": "0:events", "site": 1 });
    assert_eq!(served.post("add-replica", &replica).unwrap().0, 200);
    let mut client = connect(&served);
    let mut value = vec![b'.'; 10 * MB as usize];
    ask(&mut client, &[b"SET", EVENTS.as_bytes(), &value], "+OK\r\n");
    let mut draft = vec![b'-'; MB as usize];
    ask(&mut client, &[b"SET", DRAFT.as_bytes(), &draft], "+OK\r\n");
    let before = log_bytes(folder.path());
    assert!(before > 10 * MB, "{before} bytes");
    for number in 0..100 {
        let byte = [b'a' + number % 26];
        value.push(byte[0]);
        let length = format!(":{}\r\n", value.len());
        ask(&mut client, &[b"APPEND", EVENTS.as_bytes(), &byte], &length);
    }
    // However a part changes: here a script cuts the value and joins it anew.
    let script = "local old = redis.call('GET', KEYS[1]) \
                  redis.call('SET', KEYS[1], old:sub(1, 500000) .. ARGV[1] .. old:sub(500001)) \
                  return #old";
    let words: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"1", DRAFT.as_bytes(), b"HERE"];
    ask(&mut client, &words, ":1048576\r\n");
    draft.splice(500_000..500_000, *b"HERE");
    let grown = log_bytes(folder.path()) - before;
    assert!(grown < 64 * 1024, "101 changes of some bytes took {grown} bytes of the log");
    served.kill();
    let served = Served::start(folder.path(), 2, anywhere(), anywhere());
    // The master has it, and the replica.
    for mut client in [connect(&served), connect(&served)] {
        for (name, value) in [(EVENTS, &value), (DRAFT, &draft)] {
            let value = String::from_utf8_lossy(value);
            ask(
                &mut client,
                &[b"GET", name.as_bytes()],
                &format!("${}\r\n{value}\r\n", value.len()),
            );
        }
    }
}

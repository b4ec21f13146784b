//! Clients that send requests and read no replies: the store's memory stays bounded, others are served, and
//! a client that reads late gets every reply in full.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imago_testbed::wait;

use crate::store::served::{Served, anywhere, imago, request};

const MB: usize = 1024 * 1024;
/// The row that every client asks for.
const LARGE: &str = "report:2026-11:7d444840-9dc0-11d1-b245-5ffdce74fad2";
/// Rows of 15 KB, which are copied into replies.
const SMALL: usize = 128;
/// Bound on the memory of all replies, besides the memory that the store takes for itself.
const MEMORY_MAX: usize = 1024 * MB + 256 * MB;

fn small(number: usize) -> String {
    format!("session:{:016x}", 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1))
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Asks and reads a reply of a known length.
fn ask(stream: &mut TcpStream, words: &[&[u8]], length: usize) -> Vec<u8> {
    stream.write_all(&request(words)).unwrap();
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply).unwrap();
    reply
}

/// A store of two sites, of which one masters all: every other client asks the other one's thread.
fn filled(folder: &std::path::Path) -> Served {
    let served = Served::start(folder, 2, anywhere(), anywhere());
    let mut client = connect(served.listen);
    assert_eq!(ask(&mut client, &[b"SET", LARGE.as_bytes(), &vec![b'x'; MB]], 5), b"+OK\r\n");
    for number in 0..SMALL {
        let value = format!("{number:0>15000}");
        let name = small(number);
        let words: [&[u8]; 3] = [b"SET", name.as_bytes(), value.as_bytes()];
        assert_eq!(ask(&mut client, &words, 5), b"+OK\r\n");
    }
    served
}

fn memory(served: &Served, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kb = line.split_whitespace().nth(1).unwrap();
    kb.parse::<usize>().unwrap() * 1024
}

/// Sends requests without reading replies, until all are sent or enough were.
fn ask_until(stream: &mut TcpStream, requests: &[u8], is_enough: &AtomicBool) {
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut sent = 0;
    while sent < requests.len() && !is_enough.load(Ordering::Relaxed) {
        match stream.write(&requests[sent..]) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The store has closed the connection to free memory.
            Err(_) => return,
        }
    }
}

/// Two hundred clients ask for 200 MB each and read nothing.
fn is_bounded_when_all_ask(served: &Served, requests: &[u8]) {
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(served.listen)).collect();
    let waiting = || served.metric("imago_store_client_output_bytes") as usize / MB;
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for stream in &mut silent {
            // The store reads no more of it than there is room for.
            scope.spawn(|| ask_until(stream, requests, &is_enough));
        }
        let is_reached = std::panic::catch_unwind(AssertUnwindSafe(|| {
            wait::until_blocking("900 MB of replies wait", || waiting() > 900);
        }));
        is_enough.store(true, Ordering::Relaxed);
        is_reached.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // The others are served meanwhile, by both sites; the row that all ask for is too.
    let large = format!("${MB}\r\n").into_bytes().len() + MB + 2;
    for _ in 0..2 {
        let mut client = connect(served.listen);
        for number in 0..SMALL {
            let expected = format!("$15000\r\n{number:0>15000}\r\n");
            let reply = ask(&mut client, &[b"GET", small(number).as_bytes()], expected.len());
            assert_eq!(String::from_utf8(reply).unwrap(), expected);
        }
        for number in 0..20 {
            let reply = ask(&mut client, &[b"GET", LARGE.as_bytes()], large);
            assert!(
                reply.starts_with(b"$1048576\r\nxxx"),
                "{number}: {}",
                reply[..40].escape_ascii()
            );
        }
    }
    let most = memory(served, "VmHWM");
    assert!(most < MEMORY_MAX, "it took {} MB", most / MB);
    println!("{} MB of replies waited, the store took {} MB", waiting(), most / MB);
    drop(silent);
    wait::until_blocking("replies to clients that are gone are dropped", || waiting() == 0);
    wait::until_blocking("memory is given back", || memory(served, "VmRSS") < 128 * MB);
}

#[test]
fn clients_that_read_nothing_leave_memory_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let served = filled(folder.path());
    is_bounded_when_all_ask(&served, &request(&[b"GET", LARGE.as_bytes()]).repeat(200));
    // Nothing but the row's own memory was needed, and none had to go for it.
    assert!(served.metric("imago_store_clients_closed_total") == 0.0);
    let most = memory(&served, "VmHWM");
    assert!(most < 256 * MB, "it took {} MB", most / MB);
    let names: Vec<String> = (0..SMALL).map(small).collect();
    let mut words: Vec<&[u8]> = vec![b"MGET"];
    words.extend(names.iter().map(String::as_bytes));
    is_bounded_when_all_ask(&served, &request(&words).repeat(200));
    // Copies take memory each: the largest of those that read nothing made room.
    assert!(served.metric("imago_store_clients_closed_total") > 0.0);
}

#[test]
fn a_client_that_reads_late_is_told_everything() {
    let folder = tempfile::tempdir().unwrap();
    let served = filled(folder.path());
    // One for each site.
    let mut clients = [connect(served.listen), connect(served.listen)];
    for client in &mut clients {
        client.write_all(&request(&[b"GET", LARGE.as_bytes()]).repeat(300)).unwrap();
        client.write_all(&request(&[b"INCR", b"counter:hits"])).unwrap();
    }
    // Longer than what came back may wait to be run again.
    wait::lasts_blocking(Duration::from_secs(6));
    let reply = [format!("${MB}\r\n").into_bytes(), vec![b'x'; MB], b"\r\n".to_vec()].concat();
    for (client, count) in clients.iter_mut().zip([":1\r\n", ":2\r\n"]) {
        let mut come = vec![0; reply.len()];
        for number in 0..300 {
            client.read_exact(&mut come).unwrap();
            assert!(come == reply, "reply {number} begins with {}", come[..40].escape_ascii());
        }
        let mut last = [0; 4];
        client.read_exact(&mut last).unwrap();
        assert_eq!(String::from_utf8_lossy(&last), count);
    }
}

#[test]
fn a_log_whose_end_was_torn_says_so_while_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = filled(folder.path());
    let admin = served.admin;
    assert!(served.metric("imago_store_log_tail_cut_bytes") == 0.0);
    served.kill();
    let mut segments: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .collect();
    segments.sort();
    let last = segments.last().unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(last).unwrap();
    file.write_all(&[0x5a; 333]).unwrap();
    let served = Served::start(folder.path(), 2, anywhere(), admin);
    assert!(served.metric("imago_store_log_tail_cut_bytes") == 333.0);
    let design = Command::output(imago(&["store", "design"]).args(["--admin", &admin.to_string()]));
    let said = String::from_utf8(design.unwrap().stdout).unwrap();
    assert!(said.contains("333 bytes") && said.contains(last.to_str().unwrap()), "{said}");
}

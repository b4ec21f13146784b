//! A disk that becomes full under the log: what was acknowledged is read, what is not logged is refused at
//! once and never hangs, and with space the store goes on by itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use imago_testbed::wait;

use crate::store::served::{Served, addresses, imago, request};

/// The size of the disk, and of a row.
const DISK_MB: usize = 24;
const ROW_BYTES: usize = 50_000;

/// A small disk, which is there for a process and those that it starts, and goes with them.
fn on_small_disk(folder: &Path, more: &[&str]) -> Option<Served> {
    let disk = ["unshare", "--mount", "sh", "-c"];
    let mount = format!("mount -t tmpfs -o size={DISK_MB}m tmpfs \"$0\" && exec \"$@\"");
    let mut mounts = Command::new(disk[0]);
    mounts.args(&disk[1..]).arg(&mount).arg(folder).arg("true").stderr(Stdio::null());
    let is_root = mounts.status().is_ok_and(|status| status.success());
    if !is_root {
        println!("no disk can be mounted here: it is not tried");
        return None;
    }
    let imago = imago(&["store", "serve", "--json", "--sites", "2"]);
    let mut command = Command::new(disk[0]);
    command
        .args(&disk[1..])
        .arg(&mount)
        .arg(folder)
        .arg(imago.get_program())
        .args(imago.get_args());
    command
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
        .arg(folder)
        .args(more);
    Some(Served::try_start(command, addresses()).unwrap_or_else(|(_, why)| panic!("{why}")))
}

/// The disk as its process sees it.
fn inside(served: &Served, folder: &Path) -> PathBuf {
    Path::new("/proc")
        .join(served.id().to_string())
        .join("root")
        .join(folder.strip_prefix("/").unwrap())
}

/// Sends a request and reads the line that begins its reply, and the value behind it.
fn ask(stream: &mut TcpStream, words: &[&[u8]]) -> Vec<u8> {
    stream.write_all(&request(words)).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        reply.push(byte[0]);
    }
    if reply.starts_with(b"$") && reply != b"$-1\r\n" {
        let digits = std::str::from_utf8(&reply[1..reply.len() - 2]).unwrap();
        let mut value = vec![0; digits.parse::<usize>().unwrap() + 2];
        stream.read_exact(&mut value).unwrap();
        reply.extend(value);
    }
    reply
}

fn name(number: usize) -> String {
    format!("order:{}", 1_764_000_000_000_u64 + number as u64 * 977)
}

fn connect(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.listen).unwrap();
    // Nothing hangs.
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn row(number: usize) -> Vec<u8> {
    format!("{number:0>ROW_BYTES$}").into_bytes()
}

/// Writes rows until one is refused; how many were acknowledged.
fn fill(client: &mut TcpStream, from: usize) -> usize {
    for number in from.. {
        let reply = ask(client, &[b"SET", name(number).as_bytes(), &row(number)]);
        if reply != b"+OK\r\n" {
            let said = String::from_utf8(reply).unwrap();
            assert!(said.starts_with("-TRYAGAIN it may or may not have happened: "), "{said}");
            assert!(said.contains("the log's disk became full"), "{said}");
            return number;
        }
        assert!(number * ROW_BYTES < 2 * DISK_MB * 1024 * 1024, "the disk is not full");
    }
    unreachable!("it is bounded")
}

#[test]
fn with_a_full_disk_rows_are_read_and_writes_are_refused_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let Some(served) = on_small_disk(folder.path(), &[]) else { return };
    let ballast = inside(&served, folder.path()).join("ballast");
    std::fs::write(&ballast, vec![0; DISK_MB * 1024 * 1024 / 2]).unwrap();
    let mut writer = connect(&served);
    let acknowledged = fill(&mut writer, 0);
    assert!(acknowledged > 100, "{acknowledged} rows");
    // One at each site, while rows of the same partition are not logged.
    for mut reader in [connect(&served), connect(&served)] {
        for number in 0..acknowledged {
            let reply = ask(&mut reader, &[b"GET", name(number).as_bytes()]);
            let expected = [format!("${ROW_BYTES}\r\n").as_bytes(), &row(number), b"\r\n"].concat();
            assert!(reply == expected, "row {number}: {}", reply[..60].escape_ascii());
        }
        let began = Instant::now();
        let last = name(acknowledged);
        let refused: [&[&[u8]]; 4] = [
            &[b"GET", last.as_bytes()],
            &[b"SET", b"order:new", b"1"],
            &[b"MSET", b"order:new", b"1", b"order:newer", b"2"],
            &[b"DEL", last.as_bytes()],
        ];
        for words in refused {
            let reply = String::from_utf8(ask(&mut reader, words)).unwrap();
            assert_eq!(reply, "-TRYAGAIN nothing happened: the log's disk is full\r\n");
        }
        assert_eq!(ask(&mut reader, &[b"GET", b"order:none"]), b"$-1\r\n");
        assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    }
    assert!(served.metric("imago_store_is_writable") == 0.0);
    let split = served.post("split", &serde_json::json!({ "key": "0:order:2" })).unwrap();
    assert_eq!(split.0, 503, "{split:?}");
    std::fs::remove_file(&ballast).unwrap();
    wait::until_blocking("the store writes again", || {
        ask(&mut writer, &[b"SET", b"order:new", b"1"]) == b"+OK\r\n"
    });
    for mut reader in [connect(&served), connect(&served)] {
        let reply = ask(&mut reader, &[b"GET", name(acknowledged).as_bytes()]);
        // It was handed in, and its process lived on.
        assert!(reply.ends_with(&[&row(acknowledged)[..], b"\r\n"].concat()));
    }
    // Again, until nothing is left but what the log takes.
    let more = fill(&mut writer, acknowledged + 1);
    assert!(more > acknowledged + 100, "{more} rows");
    for number in 0..more {
        let reply = ask(&mut writer, &[b"GET", name(number).as_bytes()]);
        assert_eq!(reply.len(), row(number).len() + 10, "row {number}");
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_gives_its_space_to_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let Some(served) = on_small_disk(folder.path(), &["--segment-mb", "4"]) else { return };
    let disk = inside(&served, folder.path());
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![0; (DISK_MB - 7) * 1024 * 1024]).unwrap();
    let mut writer = connect(&served);
    // A checkpoint of the first 4 MB is due, for which there are 3.
    let acknowledged = fill(&mut writer, 0);
    assert!(acknowledged * ROW_BYTES > 6_000_000, "{acknowledged} rows");
    assert!(served.metric("imago_store_checkpoint_is_written") == 0.0);
    assert!(!disk.join("checkpoint.new").exists());
    for number in 0..acknowledged {
        let reply = ask(&mut writer, &[b"GET", name(number).as_bytes()]);
        assert_eq!(reply.len(), row(number).len() + 10, "row {number}");
    }
    std::fs::remove_file(&ballast).unwrap();
    wait::until_blocking("the store writes again", || {
        ask(&mut writer, &[b"SET", b"order:new", b"1"]) == b"+OK\r\n"
    });
    let more = fill(&mut writer, acknowledged + 1);
    assert!(more > acknowledged + 100, "{more} rows");
    assert!(served.metric("imago_store_checkpoint_position") > 0.0, "a later one fits");
}

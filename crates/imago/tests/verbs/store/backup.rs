//! A copy of a store's folder, made by `cp -r` while clients write: a store that is started on it has every write that was
//! acknowledged before the copy began.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use imago_testbed::wait;

use crate::store::processes::ask;
use crate::store::served::{Served, anywhere, request};

const WRITERS: usize = 3;
/// Copies that are made while the log goes on to new files and checkpoints replace old ones.
const COPIES: usize = 4;
/// Attempts at one: `cp` fails where a checkpoint removed a file that it was about to copy.
const TRIES: usize = 40;

fn order(writer: usize, number: u64) -> String {
    format!("order:{writer}:{number:07}")
}

/// Writes one order after the other, and counts those that are acknowledged.
fn writer(
    at: SocketAddr,
    number: usize,
    acknowledged: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(at).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap());
        while !is_over.load(Ordering::SeqCst) {
            let key = order(number, acknowledged.load(Ordering::SeqCst));
            let value = format!("{key};").repeat(200);
            stream.write_all(&request(&[b"SET", key.as_bytes(), value.as_bytes()])).unwrap();
            let mut reply = String::new();
            replies.read_line(&mut reply).unwrap();
            assert_eq!(reply, "+OK\r\n");
            acknowledged.fetch_add(1, Ordering::SeqCst);
        }
    })
}

/// Copies a folder as an operator does; false if a file vanished meanwhile.
fn copied(from: &Path, to: &Path) -> bool {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).output().unwrap();
    copied.status.success()
}

#[test]
fn a_copy_that_was_made_under_load_has_all_that_was_acknowledged_before() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let small = ["--segment-mb", "1", "--sync", "never"];
    let served = Served::start_with(&data, 2, anywhere(), anywhere(), &small);
    let is_over = Arc::new(AtomicBool::new(false));
    let counts: Vec<Arc<AtomicU64>> = (0..WRITERS).map(|_| Arc::default()).collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| writer(served.listen, n, Arc::clone(&counts[n]), Arc::clone(&is_over)))
        .collect();
    let newest = || served.metric("imago_store_checkpoint_position");
    let mut copies = Vec::new();
    for copy in 0..COPIES {
        let before = newest();
        wait::until_blocking("another checkpoint is made", || newest() > before);
        let copied = (0..TRIES).find_map(|attempt| {
            let to = folder.path().join(format!("copy-{copy}-{attempt}"));
            let acknowledged: Vec<u64> =
                counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            copied(&data, &to).then_some((to, acknowledged))
        });
        copies.push(copied.expect("a copy is made between two checkpoints"));
    }
    is_over.store(true, Ordering::SeqCst);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    drop(served);
    for (copy, acknowledged) in copies {
        let restored = Served::start_with(&copy, 2, anywhere(), anywhere(), &small);
        for (writer, upto) in acknowledged.iter().enumerate() {
            assert!(*upto > 10, "{acknowledged:?}");
            let keys: Vec<String> = (0..*upto).map(|number| order(writer, number)).collect();
            for keys in keys.chunks(500) {
                let found = ask(restored.listen, &format!("EXISTS {}", keys.join(" ")));
                assert_eq!(found, format!(":{}", keys.len()), "{}", copy.display());
            }
            let last = order(writer, upto - 1);
            let length = format!("{last};").len() * 200;
            assert_eq!(ask(restored.listen, &format!("STRLEN {last}")), format!(":{length}"));
        }
    }
}

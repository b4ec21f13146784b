//! Sites that come back: with the rows that they kept they are sent what the log has since; without them everything, however
//! long that takes, and in little memory of the router.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use imago_load::store::{Load, Options};
use imago_testbed::wait;
use serde_json::Value;
use tokio::net::TcpSocket;
use tokio::runtime::Builder;

use crate::store::processes::{Process, all_live, ask, change, design, peers};
use crate::store::proof::{prove, seed};
use crate::store::served::{Served, addresses, request};

const MB: u64 = 1024 * 1024;
/// Documents of 4 KB: 24 MB.
const DOCUMENTS: u64 = 6_000;
const DATA_BYTES: u64 = DOCUMENTS * 4_096;
/// A slow link passes so many bytes at once, and then nothing for longer than a site may be silent.
const BURST_BYTES: u64 = 10 * MB;
const PAUSE: Duration = Duration::from_millis(2_600);
/// Silence after which a site is given up for dead.
const SILENCE: Duration = Duration::from_secs(2);

fn document(number: u64) -> Vec<u8> {
    format!("document:{number:06}:body").into_bytes()
}

fn fill(at: SocketAddr) {
    let mut stream = TcpStream::connect(at).unwrap();
    let numbers: Vec<u64> = (0..DOCUMENTS).collect();
    for some in numbers.chunks(100) {
        let mut words = vec![b"MSET".to_vec()];
        for number in some {
            // Bodies that differ, so that none stands for another.
            let body = format!("{number:032x}").repeat(128);
            words.extend([document(*number), body.into_bytes()]);
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        stream.write_all(&request(&words)).unwrap();
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

/// The most memory that a process had.
fn memory_max(served: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Connects with a small buffer for what is received: the system may give one of more than all documents.
async fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(256 * 1024)?;
    socket.connect(to).await?.into_std()
}

/// A link to the router that passes in bursts what the router sends.
fn slow_link(to: SocketAddr) -> SocketAddr {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for site in listener.incoming().map_while(Result::ok) {
            let router = runtime.block_on(connect(to)).unwrap();
            router.set_nonblocking(false).unwrap();
            let (mut from_site, mut to_router) =
                (site.try_clone().unwrap(), router.try_clone().unwrap());
            std::thread::spawn(move || {
                _ = std::io::copy(&mut from_site, &mut to_router);
                _ = to_router.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (router, site);
            std::thread::spawn(move || {
                let (mut bytes, mut passed) = (vec![0; 64 * 1024], 0);
                while let Ok(read) = from.read(&mut bytes)
                    && read > 0
                    && to.write_all(&bytes[..read]).is_ok()
                {
                    passed += read as u64;
                    if passed >= BURST_BYTES {
                        passed = 0;
                        wait::lasts_blocking(PAUSE);
                    }
                }
                _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn sites_are_sent_what_they_lack_once_and_however_long_it_takes() {
    assert!(PAUSE > SILENCE, "it is for longer than a site may be silent");
    let (folder, seed) = (tempfile::tempdir().unwrap(), seed());
    let [listen, admin, at] = addresses();
    let start = || {
        let (data, peers) = (folder.path().to_str().unwrap(), at.to_string());
        let silence = SILENCE.as_millis().to_string();
        let words =
            ["--data", data, "--sync", "never", "--peers", &peers, "--site-timeout-ms", &silence];
        Served::try_start_as("router", &words, 2, [listen, admin]).unwrap()
    };
    let mut router = start();
    let mut sites: Vec<Process> = (0..2).map(|site| Process::start(site, peers(&router))).collect();
    assert_eq!(sites.iter().map(Process::serves).collect::<Vec<_>>(), [1, 1]);
    // While they are empty, partitions move at once, also on a busy machine.
    change(&router, "split", "0:document:003000", 0);
    for (verb, site) in [("add-replica", 1), ("remaster", 1), ("remove-replica", 0)] {
        change(&router, verb, "0:document:003000", site);
    }
    fill(listen);
    let options = Options { sessions: 4, seed, pause: Duration::from_millis(1) };
    let load = Load::start(listen, options).unwrap();
    wait::until_blocking("the load runs", || load.acknowledged() > 200);
    // The router dies under load, with commits of both sites on their way to the log.
    router.kill();
    router = start();
    let before = load.acknowledged();
    assert_eq!(sites.iter().map(Process::serves).collect::<Vec<_>>(), [2, 2], "at their first try");
    all_live(&router);
    wait::until_blocking("something is acknowledged again", || load.acknowledged() > before);
    let transfer = |router: &Served, site: usize| -> Value {
        design(router)["sites"][site]["transfer"].clone()
    };
    for site in 0..2 {
        let transfer = transfer(&router, site);
        let bytes = transfer["bytes"].as_u64().unwrap();
        assert!(transfer["is_difference"] == true && bytes < DATA_BYTES / 4, "{transfer}");
    }
    // A process that is new has nothing, and a slow link to the router.
    let memory = memory_max(&router);
    sites[1].kill();
    sites[1] = Process::start(1, slow_link(at));
    assert_eq!(sites[1].serves(), 3, "at its first try");
    let transfer = transfer(&router, 1);
    let (bytes, ms) = (transfer["bytes"].as_u64().unwrap(), transfer["ms"].as_u64().unwrap());
    assert!(transfer["is_difference"] == false && bytes > DATA_BYTES, "{transfer}");
    assert!(u128::from(ms) > SILENCE.as_millis(), "{transfer}");
    let more = memory_max(&router).saturating_sub(memory);
    assert!(more < DATA_BYTES / 2, "the router took {} MB more for it", more / MB);
    all_live(&router);
    for number in [0, 1_500, 2_999, 3_000, DOCUMENTS - 1] {
        let key = String::from_utf8(document(number)).unwrap();
        assert_eq!(ask(listen, &format!("STRLEN {key}")), ":4096");
    }
    let verdict = prove(load, listen);
    assert!(verdict.done > 200, "{verdict:?}");
}

//! Sites apart from their router: here on threads of one process, but with every message between them going
//! over connections.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::engine::remote::wire::{self, ToRouter, ToSite};
use crate::record::Position;

const SITES: u16 = 3;

/// A router and its sites.
struct Apart {
    /// Absent only while it is started again.
    router: Option<Router>,
    sites: Vec<Option<SeparateSite>>,
}

/// A site that could be in a process of its own.
struct SeparateSite {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), SiteProcessError>>,
}

impl SeparateSite {
    fn start(site: u16, peers: SocketAddr) -> Self {
        let (told, events) = std::sync::mpsc::channel();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let member = SiteProcess {
            site: Site(site),
            routers: vec![peers.to_string()],
            secret: "secret".into(),
            rack: None,
            maxmemory: 0,
            patience: Duration::from_secs(30),
            settings: Settings::new("test", 1),
            site_cpu: None,
        };
        let tell = move |event| _ = told.send(event);
        let thread = thread::spawn(move || member.serve(&tell, &stopped));
        let event = events.recv_timeout(Duration::from_secs(30));
        assert!(matches!(event, Ok(SiteProcessEvent::Serves(_))), "{event:?}");
        Self { is_stopped, thread }
    }

    fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic").expect("it was stopped");
    }
}

fn router(folder: &std::path::Path, peers: SocketAddr) -> Router {
    router_of(folder, peers, SITES)
}

fn router_of(folder: &std::path::Path, peers: SocketAddr, sites: u16) -> Router {
    let router = RouterOptions { client_threads: 2, silence: Duration::from_secs(5) };
    let listener = TcpListener::bind(peers).expect("its port is free");
    let options = options(Some(folder), sites);
    Router::start(&options, &router, listener, "secret".into()).expect("a router")
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

impl Apart {
    fn start(folder: &std::path::Path) -> Self {
        Self::start_with(folder, SITES)
    }

    fn start_with(folder: &std::path::Path, sites: u16) -> Self {
        let router = router_of(folder, any_port(), sites);
        let start = |site| Some(SeparateSite::start(site, router.peers()));
        let sites = (0..sites).map(start).collect();
        Self { router: Some(router), sites }
    }

    fn store(&self) -> &Arc<Store> {
        self.router.as_ref().expect("it runs").store()
    }

    fn peers(&self) -> SocketAddr {
        self.router.as_ref().expect("it runs").peers()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.sites.drain(..).flatten().for_each(SeparateSite::stop);
    }
}

#[test]
fn requests_of_a_connection_are_answered_in_their_order_by_sites_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let apart = Apart::start(folder.path());
    are_answered_in_their_order(apart.store());
}

/// The value of a key: so long that what is copied takes more than one message.
fn value(n: u32) -> String {
    format!("{n:04}").repeat(500)
}

fn has_all(store: &Store, upto: u32) {
    let mut client = Raw::connect(store);
    for n in 0..upto {
        client.send(&format!("GET {n:04}\r\n"));
        client.expect(&format!("$2000\r\n{}\r\n", value(n)));
    }
}

/// Splits a partition, and moves its second half. On a full machine a step may be late, and come to
/// pass behind its answer: then it is taken again, as an operator would.
async fn moved(store: &Store, at: &Key, site: Site) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (begins, is_there) = {
            let map = store.map();
            let of = map.design.of(at);
            if of.master == site {
                return;
            }
            (of.range.start == *at, of.is_at(site))
        };
        let last = if !begins {
            store.change(at, Operator::Split(at.clone())).await
        } else if !is_there {
            store.add_replica(at, site).await
        } else {
            store.change(at, Operator::Remaster(site)).await
        };
        assert!(Instant::now() < until, "{at:?} does not move to {site:?}: {last:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn checkpoints_are_put_together_from_sites_apart_and_begun_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut apart = Apart::start(folder.path());
    let runtime = runtime();
    let mut client = Raw::connect(apart.store());
    for n in 0..1_200 {
        client.send(&format!("SET {n:04} {}\r\n", value(n)));
        client.expect("+OK\r\n");
        if n == 700 {
            // A replica of more than a megabyte, and each site with something of its own.
            let store = apart.store();
            runtime.block_on(async {
                for (at, site) in [(300, Site(1)), (600, Site(2))] {
                    moved(store, &key(at), site).await;
                }
            });
        }
    }
    let until = Instant::now() + Duration::from_secs(30);
    let state = |apart: &Apart| apart.store().checkpoints().expect("there are checkpoints");
    while state(&apart).newest == Position(0) {
        assert!(Instant::now() < until, "{:?}", state(&apart));
        client.send("SET 0000 0\r\n");
        client.expect("+OK\r\n");
        thread::sleep(Duration::from_millis(1));
    }
    client.send(&format!("SET 0000 {}\r\n", value(0)));
    client.expect("+OK\r\n");
    assert_eq!(state(&apart).failure, None);
    // A site begins with the checkpoint now: the log before it is gone.
    let first = crate::log::read(folder.path(), Position(1), Position(1), |_, _| {});
    assert!(first.is_err(), "the log has its first entry no more");
    for site in 0..SITES {
        apart.sites[usize::from(site)].take().expect("it is there").stop();
        apart.sites[usize::from(site)] = Some(SeparateSite::start(site, apart.peers()));
    }
    has_all(apart.store(), 1_200);
    // The router begins again too, and the sites find it by themselves.
    let usage = runtime.block_on(apart.store().usage());
    assert!(usage.iter().all(|(_, copies)| !copies.is_empty()), "{usage:?}");
    drop(client);
    let peers = apart.peers();
    drop(apart.router.take());
    apart.router = Some(router(folder.path(), peers));
    has_all(apart.store(), 1_200);
}

#[test]
fn a_site_that_is_not_there_is_waited_for_and_a_procedure_of_this_process_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let router = router(folder.path(), any_port());
    let store = router.store();
    let mut client = Raw::connect(store);
    client.send("SET a 1\r\n");
    thread::sleep(Duration::from_millis(100));
    let site = SeparateSite::start(0, router.peers());
    client.expect("+OK\r\n");
    runtime().block_on(async {
        let mut session = store.session();
        let refused = add(&mut session, &[1]).await;
        let Err(Abort::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("another process"), "{why}");
        let absent = store.add_replica(&key(1), Site(2)).await;
        assert_eq!(absent, Err(Abort::Refused("site 2 is not connected".into())));
    });
    site.stop();
}

#[test]
fn a_change_at_a_site_that_falls_silent_fails_in_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let router = RouterOptions { client_threads: 1, silence: Duration::from_secs(1) };
    let listener = TcpListener::bind(any_port()).expect("a free port");
    let options = options(Some(folder.path()), 2);
    let router = Router::start(&options, &router, listener, "secret".into()).expect("a router");
    let site = SeparateSite::start(0, router.peers());
    let mut silent = std::net::TcpStream::connect(router.peers()).expect("it is let in");
    let hello = ToRouter::Hello {
        protocol: wire::PROTOCOL,
        version: "test".into(),
        site: Site(1),
        secret: "secret".into(),
    };
    wire::write(&mut silent, &hello).expect("it is heard");
    let comes = ToRouter::Comes { rack: None, kept: None };
    wire::write(&mut silent, &comes).expect("it is heard");
    while !matches!(wire::read(&mut silent).expect("it is told"), <ToSite>::Begin) {}
    runtime().block_on(async {
        let store = router.store();
        let (began, at) = (Instant::now(), key(1));
        let change = store.add_replica(&at, Site(1));
        let failed = tokio::time::timeout(Duration::from_secs(60), change).await.expect("it ends");
        assert_eq!(failed, Err(Abort::Deposed), "after {:?}", began.elapsed());
        // What comes next is refused, and the other site is as it was.
        let absent = store.add_replica(&at, Site(1)).await;
        assert_eq!(absent, Err(Abort::Refused("site 1 is not connected".into())));
        let split = store.change(&key(5), Operator::Split(key(5))).await;
        assert_eq!(split, Ok(()));
    });
    site.stop();
}

#[test]
fn a_router_needs_a_log() {
    let router = RouterOptions { client_threads: 1, silence: Duration::from_secs(1) };
    let listener = TcpListener::bind(any_port()).expect("a free port");
    let refused = Router::start(&options(None, 1), &router, listener, "secret".into()).err();
    assert!(matches!(refused, Some(StoreError::NoLog)), "{refused:?}");
}

/// Sixteen partitions, of a hundred keys each, evenly over four sites.
const SPREAD: u32 = 16;
const SPREAD_SITES: u16 = 4;

fn home(partition: u32) -> Site {
    Site(u16::try_from(partition).expect("few") % SPREAD_SITES)
}

/// A store of them without replicas.
fn spread(folder: &std::path::Path) -> Apart {
    let apart = Apart::start_with(folder, SPREAD_SITES);
    runtime().block_on(async {
        for partition in 0..SPREAD {
            let (at, store) = (key(partition * 100), apart.store());
            moved(store, &at, home(partition)).await;
            let others = store.map().design.of(&at).replicas.clone();
            for other in others {
                let removed = store.change(&at, Operator::RemoveReplica(other)).await;
                removed.expect("it has no use");
            }
        }
    });
    apart
}

/// Writes each key of a round, through the partitions in turn.
fn write(client: &mut Raw, rounds: std::ops::Range<u32>, value: &str) {
    for n in rounds {
        for partition in 0..SPREAD {
            client.send(&format!("SET {:04} {value}\r\n", partition * 100 + n));
            client.expect("+OK\r\n");
        }
    }
}

#[test]
fn a_site_is_sent_what_it_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let apart = spread(folder.path());
    let store = apart.store();
    let design = store.map();
    let is_spread = |one: &crate::design::Partition| one.replicas.is_empty();
    assert!(design.design.partitions().all(is_spread));
    assert_eq!(design.design.partitions().count(), SPREAD as usize);
    let traffic = || (0..SPREAD_SITES).map(|n| store.log_traffic(Site(n)).expect("it is apart"));
    let before: Vec<_> = traffic().collect();
    let mut client = Raw::connect(store);
    let (value, rounds) = ("v".repeat(400), 40);
    write(&mut client, 0..rounds, &value);
    let least = u64::from(rounds * SPREAD) * value.len() as u64;
    let until = Instant::now() + Duration::from_secs(30);
    for (n, before) in before.iter().enumerate() {
        let site = Site(u16::try_from(n).expect("few"));
        let since = || {
            let now = store.log_traffic(site).expect("it is apart");
            (now.sent_bytes - before.sent_bytes, now.whole_bytes - before.whole_bytes)
        };
        while since().1 < least {
            assert!(Instant::now() < until, "{site} was not told of all: {:?}", since());
            thread::sleep(Duration::from_millis(1));
        }
        let (sent, whole) = since();
        eprintln!("{site}: {sent} of {whole} bytes, {:.3}", sent as f64 / whole as f64);
        assert!(sent * 10 <= whole * 3, "{site} was sent {sent} of {whole} bytes");
    }
}

#[test]
fn a_site_has_what_was_written_before_it_became_the_master() {
    let folder = tempfile::tempdir().expect("a folder");
    let apart = spread(folder.path());
    let mut client = Raw::connect(apart.store());
    write(&mut client, 0..5, "old");
    runtime().block_on(async {
        for partition in 0..SPREAD {
            moved(apart.store(), &key(partition * 100), home(partition + 1)).await;
        }
    });
    write(&mut client, 5..10, "new");
    for n in 0..10 {
        for partition in 0..SPREAD {
            client.send(&format!("GET {:04}\r\n", partition * 100 + n));
            client.expect(if n < 5 { "$3\r\nold\r\n" } else { "$3\r\nnew\r\n" });
        }
    }
    // All sites know the same prefix, whether they were told of its entries or not.
    client.send("MGET 0000 0100 0200 0300\r\n");
    client.expect("*4\r\n");
}

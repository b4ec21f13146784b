//! Sites that are apart from their router: here on threads of one process, but with everything that is
//! said between them going over connections.

use std::sync::atomic::AtomicBool;

use super::*;

const SITES: u16 = 3;

/// A store of which the sites are apart, and these.
struct RouterOptions {
    store: Arc<Store>,
    peers: SocketAddr,
    members: Vec<Option<Apparent>>,
}

/// A site that could be in a process of its own.
struct Apparent {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), SiteProcessError>>,
}

impl Apparent {
    fn start(site: u16, peers: SocketAddr) -> Self {
        let (told, events) = std::sync::mpsc::channel();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let member = SiteProcess {
            site: Site(site),
            routers: vec![peers.to_string()],
            secret: "secret".into(),
            patience: Duration::from_secs(30),
            settings: Settings::new("test", 1),
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

fn router(folder: &std::path::Path, peers: SocketAddr) -> (Arc<Store>, SocketAddr) {
    let apart = super::super::RouterOptions { client_threads: 2, silence: Duration::from_secs(5) };
    let mut store = Store::start_router(&options(Some(folder), SITES), &apart).expect("a router");
    let listener = TcpListener::bind(peers).expect("its port is free");
    let peers = store.admit(listener, "secret".into()).expect("sites can come");
    (Arc::new(store), peers)
}

impl RouterOptions {
    fn start(folder: &std::path::Path) -> Self {
        let (store, peers) = router(folder, "127.0.0.1:0".parse().expect("an address"));
        let members = (0..SITES).map(|site| Some(Apparent::start(site, peers))).collect();
        Self { store, peers, members }
    }
}

impl Drop for RouterOptions {
    fn drop(&mut self) {
        self.members.drain(..).flatten().for_each(Apparent::stop);
    }
}

#[test]
fn requests_of_a_connection_are_answered_in_their_order_by_sites_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let apart = RouterOptions::start(folder.path());
    are_answered_in_their_order(&apart.store);
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
    let mut apart = RouterOptions::start(folder.path());
    let runtime = runtime();
    let mut client = Raw::connect(&apart.store);
    for n in 0..1_200 {
        client.send(&format!("SET {n:04} {}\r\n", value(n)));
        client.expect("+OK\r\n");
        if n == 700 {
            // A replica of more than a megabyte, and each site with something of its own.
            let store = &apart.store;
            runtime.block_on(async {
                for (at, site) in [(300, Site(1)), (600, Site(2))] {
                    moved(store, &key(at), site).await;
                }
            });
        }
    }
    let until = Instant::now() + Duration::from_secs(30);
    let state = |apart: &RouterOptions| apart.store.checkpoints().expect("there are checkpoints");
    while state(&apart).newest == 0 {
        assert!(Instant::now() < until, "{:?}", state(&apart));
        client.send("SET 0000 0\r\n");
        client.expect("+OK\r\n");
        thread::sleep(Duration::from_millis(1));
    }
    client.send(&format!("SET 0000 {}\r\n", value(0)));
    client.expect("+OK\r\n");
    assert_eq!(state(&apart).failure, None);
    // What a site begins with is the checkpoint now: the log before it is gone.
    let first = crate::log::read(folder.path(), 1, 1, |_, _| {});
    assert!(first.is_err(), "the log has its first entry no more");
    for site in 0..SITES {
        apart.members[usize::from(site)].take().expect("it is there").stop();
        apart.members[usize::from(site)] = Some(Apparent::start(site, apart.peers));
    }
    has_all(&apart.store, 1_200);
    // The router begins again too, and the sites find it by themselves.
    let usage = runtime.block_on(apart.store.usage());
    assert!(usage.iter().all(|(_, copies)| !copies.is_empty()), "{usage:?}");
    drop(client);
    let stopped = Arc::into_inner(std::mem::replace(&mut apart.store, empty())).expect("alone");
    drop(stopped);
    apart.store = router(folder.path(), apart.peers).0;
    has_all(&apart.store, 1_200);
}

fn empty() -> Arc<Store> {
    Arc::new(Store::start(&options(None, 1)).expect("a store in memory"))
}

#[test]
fn a_site_that_is_not_there_is_waited_for_and_a_procedure_of_this_process_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, peers) = router(folder.path(), "127.0.0.1:0".parse().expect("an address"));
    let mut client = Raw::connect(&store);
    client.send("SET a 1\r\n");
    thread::sleep(Duration::from_millis(100));
    let site = Apparent::start(0, peers);
    client.expect("+OK\r\n");
    runtime().block_on(async {
        let mut session = store.session();
        let refused = add(&mut session, &[1]).await;
        let Err(Abort::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("another process"), "{why}");
        let absent = store.add_replica(&key(1), Site(2)).await;
        assert_eq!(absent, Err(Abort::Refused("site 2 is not there".into())));
    });
    site.stop();
}

#[test]
fn a_router_needs_a_log() {
    let apart = super::super::RouterOptions { client_threads: 1, silence: Duration::from_secs(1) };
    let refused = Store::start_router(&options(None, 1), &apart).err();
    assert!(matches!(refused, Some(StoreError::NoLog)), "{refused:?}");
}

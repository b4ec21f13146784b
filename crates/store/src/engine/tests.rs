//! A store with threads: what is acknowledged is there after changes of the design, and after deaths of
//! sites and of the process.

use std::collections::BTreeMap;

use super::site::mailbox::ReplyTo;
use super::*;
use crate::key::Table;
use crate::key::{Key, KeyRange};
use crate::log::Sync;
use crate::record::{Operator, Position};
use crate::sync::thread;
use crate::transaction::View;
use crate::transaction::{Abort, Transaction};

mod apart;

mod pins;
mod request_timeout;
mod waits;
mod wire;

fn options(folder: Option<&std::path::Path>, sites: u16) -> Options {
    let log = folder.map(|folder| LogOptions::Files {
        folder: folder.to_owned(),
        sync: Sync::Never,
        segment_bytes: 8 * 1024,
    });
    Options { sites, log }
}

fn key(n: u32) -> Key {
    Key::new(Table(0), format!("{n:04}").as_bytes())
}

/// Adds one to each of some numbers, and answers what they are then.
async fn add(session: &mut Session, keys: &[u32]) -> Result<Vec<u8>, Abort> {
    let keys: Vec<Key> = keys.iter().map(|n| key(*n)).collect();
    let writes = keys.clone();
    let procedure = move |view: &mut View<'_>| {
        let mut answer = Vec::new();
        for key in &keys {
            let new = view.get(key)?.map_or(0, |seen| number(&seen.value)) + 1;
            view.put(key, new.to_le_bytes().into())?;
            answer.push(u8::try_from(new).unwrap_or(u8::MAX));
        }
        Ok(answer)
    };
    Ok(session.run(Vec::new(), writes, Box::new(procedure)).await?.answer.into_bytes())
}

fn number(value: &[u8]) -> u32 {
    u32::from_le_bytes(value.try_into().expect("four bytes"))
}

async fn all(session: &mut Session) -> BTreeMap<Key, u32> {
    let range = KeyRange::of_table(Table(0));
    let reads = vec![range.clone()];
    let answer = std::sync::Arc::new(std::sync::Mutex::new(BTreeMap::new()));
    let told = Arc::clone(&answer);
    let procedure = move |view: &mut View<'_>| {
        let rows = view.range(&range, usize::MAX)?;
        let rows = rows.into_iter().map(|(key, seen)| (key, number(&seen.value)));
        *told.lock().expect("no holder panicked") = rows.collect();
        Ok(Vec::new())
    };
    session.run(reads, Vec::new(), Box::new(procedure)).await.expect("everything can be read");
    Arc::try_unwrap(answer).map_or_else(
        |answer| answer.lock().expect("no holder panicked").clone(),
        |answer| answer.into_inner().expect("no holder panicked"),
    )
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime")
}

#[test]
fn a_transaction_over_partitions_at_two_sites_brings_them_together() {
    let store = Store::start(&options(None, 3)).expect("a store in memory");
    runtime().block_on(async {
        let mut session = store.session();
        assert_eq!(add(&mut session, &[1, 5]).await, Ok(vec![1, 1]));
        store.change(&key(5), Operator::Split(key(5))).await.expect("it can be split");
        store.add_replica(&key(5), Site(2)).await.expect("it can have a replica");
        store.change(&key(5), Operator::Remaster(Site(2))).await.expect("it can move");
        assert_eq!(store.map().design.of(&key(5)).master, Site(2));
        assert_eq!(add(&mut session, &[5]).await, Ok(vec![2]));
        assert_eq!(add(&mut session, &[1, 5]).await, Ok(vec![2, 3]));
        let map = store.map();
        assert_eq!(map.design.of(&key(1)).master, map.design.of(&key(5)).master);
        let read = all(&mut session).await;
        assert_eq!(read, BTreeMap::from([(key(1), 2), (key(5), 3)]));
        let refused = store.change(&key(1), Operator::Split(key(5))).await;
        assert!(matches!(refused, Err(Abort::Refused(_))), "{refused:?}");
    });
}

#[test]
fn no_mail_is_lost_however_much_has_come() {
    let store = Store::start(&options(None, 1)).expect("a store in memory");
    let door = &store.shared.senders[0];
    // It has something else to do until all is there.
    let procedure = |_: &mut View<'_>| {
        thread::sleep(Duration::from_millis(200));
        Ok(Vec::new())
    };
    let transaction = Transaction {
        reads: Vec::new(),
        writes: vec![key(1)],
        session: Position(0),
        client: None,
        at_masters: false,
        is_distributed: false,
        output: None,
        procedure: Box::new(procedure),
    };
    let (answer, _done) = oneshot::channel();
    let batch = vec![(ReplyTo::Channel(answer), transaction, Instant::now() + PATIENCE)];
    _ = door.send(SiteEvent::Transact(batch));
    let counted: Vec<_> = (0..2_000)
        .map(|_| {
            let (answer, counted) = oneshot::channel();
            door.send(SiteEvent::Count(Box::new(|usage| _ = answer.send(usage))));
            counted
        })
        .collect();
    for (n, counted) in counted.into_iter().enumerate() {
        assert!(counted.blocking_recv().is_ok(), "mail {n} is lost");
    }
}

#[test]
fn what_was_acknowledged_outlives_crashes_of_sites_and_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    outlives_crashes(&options(Some(folder.path()), 3), folder.path());
}

#[test]
fn what_was_acknowledged_outlives_crashes_also_from_a_topic_and_checkpoints_of_it() {
    let Some(_) = imago_testbed::require(imago_testbed::find_kafka()) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let kafka = imago_testbed::Single::start(imago_testbed::SingleSpec::kafka("crashes"));
    let kafka = runtime.block_on(kafka).expect("a broker");
    let topic = format!("kafka://{}/t", kafka.uri()).parse().expect("a topic");
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = Some(folder.path().to_owned());
    let log = LogOptions::Kafka { topic, checkpoints, checkpoint_bytes: 8 * 1024 };
    outlives_crashes(&Options { sites: 3, log: Some(log) }, folder.path());
}

fn outlives_crashes(options: &Options, folder: &std::path::Path) {
    let runtime = runtime();
    // Acknowledged additions to each key, and all that were attempted.
    let mut sure: BTreeMap<Key, u32> = BTreeMap::new();
    let mut doubtful: BTreeMap<Key, u32> = BTreeMap::new();
    for round in 0..3_u32 {
        let store = Arc::new(Store::start(options).expect("a store with a log"));
        runtime.block_on(async {
            let mut workers = Vec::new();
            for worker in 0..4_u32 {
                let store = Arc::clone(&store);
                workers.push(tokio::spawn(async move {
                    let mut session = store.session();
                    let mut told = Vec::new();
                    for n in 0..150 {
                        let keys = [(worker * 7 + n) % 20, (worker * 3 + n * n) % 20];
                        let keys = if keys[0] == keys[1] { &keys[..1] } else { &keys[..] };
                        let answer = add(&mut session, keys).await;
                        assert!(!matches!(answer, Err(Abort::Undeclared(_) | Abort::Refused(_))));
                        told.push((keys.to_vec(), answer.is_ok()));
                        tokio::task::yield_now().await;
                    }
                    told
                }));
            }
            for n in 0..12_u32 {
                let at = key((n * 5 + round) % 20);
                let site = Site(u16::try_from(n % 3).expect("small"));
                _ = store.change(&at, Operator::Split(at.clone())).await;
                _ = store.add_replica(&at, site).await;
                _ = store.change(&at, Operator::Remaster(site)).await;
                if n % 4 == 3 {
                    store.crash(site).await.expect("it can crash");
                }
                _ = store.change(&key(0), Operator::Merge).await;
            }
            for worker in workers {
                for (keys, is_sure) in worker.await.expect("no worker panics") {
                    for n in keys {
                        *doubtful.entry(key(n)).or_default() += 1;
                        *sure.entry(key(n)).or_default() += u32::from(is_sure);
                    }
                }
            }
            assert_eq!(store.trouble(), None);
        });
        let checkpoints = store.checkpoints().expect("it has a log");
        assert!(
            checkpoints.newest > Position(0) && checkpoints.failure.is_none(),
            "{checkpoints:?}"
        );
        drop(store);
        let files = std::fs::read_dir(folder).expect("a folder").count();
        assert!(files < 20, "{files} files: the log before a checkpoint goes");
        let store = Store::start(options).expect("the log is there");
        let found = runtime.block_on(all(&mut store.session()));
        let acknowledged: u32 = sure.values().sum();
        assert!(acknowledged > 600 * (round + 1), "{acknowledged} are few");
        for (key, most) in &doubtful {
            let range = sure[key]..=*most;
            assert!(range.contains(&found[key]), "{key:?}: {} not in {range:?}", found[key]);
        }
        // From here on they are what they are.
        sure.clone_from(&found);
        doubtful = found;
    }
}

fn listen(store: &Store, settings: Settings) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    store.listen(listener, settings, None).expect("it listens")
}

/// A client that sends and receives bytes as they are.
struct Raw(std::net::TcpStream);

impl Raw {
    fn connect(store: &Store) -> Self {
        Self::to(listen(store, Settings::new("test", 1)))
    }

    fn to(address: SocketAddr) -> Self {
        let stream = std::net::TcpStream::connect(address).expect("it is there");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        std::io::Write::write_all(&mut self.0, text.as_bytes()).expect("it is received");
    }

    #[track_caller]
    fn expect(&mut self, text: &str) {
        let mut answer = vec![0; text.len()];
        let read = std::io::Read::read_exact(&mut self.0, &mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(read.is_ok() && answer == text, "{read:?}: {answer:?} instead of {text:?}");
    }

    #[track_caller]
    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        let read = std::io::Read::read_to_end(&mut self.0, &mut rest);
        assert_eq!((read.ok(), rest), (Some(0), Vec::new()), "it is closed");
    }
}

#[test]
fn requests_of_a_connection_are_answered_in_order_while_partitions_move() {
    let store = Arc::new(Store::start(&options(None, 3)).expect("a store in memory"));
    are_answered_in_their_order(&store);
}

/// Requests of a connection are done in their order, while partitions move among three sites.
fn are_answered_in_their_order(store: &Arc<Store>) {
    let runtime = runtime();
    runtime.block_on(async {
        for n in [3, 6] {
            let at = key(n);
            store.change(&at, Operator::Split(at.clone())).await.expect("it can be split");
        }
    });
    let mover = {
        let store = Arc::clone(store);
        runtime.spawn(async move {
            for n in 0..200_u32 {
                let at = key(n % 3 * 3);
                let site = Site(u16::try_from(n / 3 % 3).expect("small"));
                _ = store.add_replica(&at, site).await;
                _ = store.change(&at, Operator::Remaster(site)).await;
            }
        })
    };
    let mut client = Raw::connect(store);
    let mut round = 0;
    while !mover.is_finished() || round < 20 {
        round += 1;
        let (mut request, mut answer) = (String::new(), String::new());
        for n in 0..60 {
            let n = n * 7 % 9;
            request += &format!("SET {n:04} {round}\r\nGET {n:04}\r\nINCR {n:04}\r\n");
            let length = round.to_string().len();
            answer += &format!("+OK\r\n${length}\r\n{round}\r\n:{}\r\n", round + 1);
        }
        request += "MGET 0001 0004 0007\r\n";
        let (length, next) = ((round + 1).to_string().len(), round + 1);
        answer += &format!("*3\r\n{}", format!("${length}\r\n{next}\r\n").repeat(3));
        client.send(&request);
        client.expect(&answer);
    }
    client.send("QUIT\r\n");
    client.expect("+OK\r\n");
    client.expect_end();
}

#[test]
fn watched_keys_and_walks_over_partitions_are_as_in_redis() {
    let store = Store::start(&options(None, 2)).expect("a store in memory");
    runtime().block_on(async {
        store.change(&key(3), Operator::Split(key(3))).await.expect("it can be split");
        store.add_replica(&key(3), Site(1)).await.expect("it can have a replica");
        store.change(&key(3), Operator::Remaster(Site(1))).await.expect("it can move");
    });
    let mut client = Raw::connect(&store);
    client.send(
        "MSET 0001 a 0002 b 0004 c 0005 d\r\nWATCH 0001 0004\r\nMULTI\r\nSET 0004 e\r\nEXEC\r\n",
    );
    client.expect("+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    client.send("WATCH 0001\r\nSET 0001 f\r\nMULTI\r\nGET 0004\r\nEXEC\r\nSCAN 0 COUNT 3\r\n");
    client.expect("+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n*2\r\n$");
    // A walk goes partition by partition, and ends.
    let mut text = String::new();
    let mut reader = std::io::BufReader::new(client.0.try_clone().expect("a handle"));
    for _ in 0..6 {
        std::io::BufRead::read_line(&mut reader, &mut text).expect("an answer");
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2..], ["*2", "$4", "0001", "$4"], "{text:?}");
}

#[test]
fn fewer_sites_than_the_log_knows_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::start(&options(Some(folder.path()), 3)).expect("a store with a log");
    runtime().block_on(async {
        store.add_replica(&key(0), Site(1)).await.expect("it can have a replica");
        store.change(&key(0), Operator::Remaster(Site(1))).await.expect("it can move");
        store.add_replica(&key(0), Site(2)).await.expect("it can have another");
    });
    drop(store);
    // A site with a replica is one that transactions are sent to.
    let refused = Store::start(&options(Some(folder.path()), 2)).err();
    assert!(matches!(refused, Some(StoreError::SitesMissing { least: 3, .. })), "{refused:?}");
    assert!(matches!(Store::start(&options(None, 0)).err(), Some(StoreError::Sites(0))));
}

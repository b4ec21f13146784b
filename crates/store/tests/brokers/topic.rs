//! A store whose log is in Kafka, on a real broker. (How the process that serves it dies, and its histories,
//! are tested where the command line is.)

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use imago_store::engine::{LogOptions, Options, Session, Store, StoreError};
use imago_store::kafka::{ClientConfig, KafkaLog, KafkaSpec};
use imago_store::key::{Key, KeyRange, Table};
use imago_store::log::RedoLog;
use imago_store::record::{Author, LogEntry, Operator, Position, Site};
use imago_store::transaction::{Abort, View};
use imago_testbed::{Single, SingleSpec, find_kafka, require, wait};

const SITES: u16 = 3;
const MB: usize = 1024 * 1024;

/// A broker; none, with a word, where this machine has no Kafka or no Java.
async fn start(name: &str) -> Option<Single> {
    require(find_kafka())?;
    Some(Single::start(SingleSpec::kafka(name)).await.unwrap())
}

fn topic(kafka: &Single, name: &str) -> KafkaSpec {
    KafkaSpec {
        brokers: vec![kafka.uri()],
        topic: name.into(),
        replicas: 1,
        patience: Duration::from_secs(60),
        client: ClientConfig::default(),
    }
}

fn open(topic: &KafkaSpec, checkpoints: Option<&Path>) -> Result<Store, StoreError> {
    let (topic, checkpoints) = (topic.clone(), checkpoints.map(Path::to_owned));
    let log = LogOptions::Kafka { topic, checkpoints, checkpoint_bytes: 64 * 1024 };
    Store::start(&Options { sites: SITES, log: Some(log) })
}

fn key(n: usize) -> Key {
    Key::new(Table(0), format!("{n:04}").as_bytes())
}

async fn put(session: &mut Session, n: usize, bytes: usize) -> Result<(), Abort> {
    let procedure = move |view: &mut View<'_>| {
        view.put(&key(n), vec![n.to_le_bytes()[0]; bytes].into())?;
        Ok(Vec::new())
    };
    session.run(Vec::new(), vec![key(n)], Box::new(procedure)).await.map(|_| ())
}

/// The length of each value, by key.
async fn all(store: &Store) -> Vec<(Key, usize)> {
    let range = KeyRange::of_table(Table(0));
    let reads = vec![range.clone()];
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let procedure = move |view: &mut View<'_>| {
        let rows = view.range(&range, usize::MAX)?.into_iter();
        *telling.lock().unwrap() = rows.map(|(key, seen)| (key, seen.value.len())).collect();
        Ok(Vec::new())
    };
    store.session().run(reads, Vec::new(), Box::new(procedure)).await.unwrap();
    told.lock().unwrap().clone()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    wait::until(what, async || is_so()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_goes_on_from_a_checkpoint_and_the_topic_behind_it() {
    let Some(kafka) = start("checkpoints").await else { return };
    let (one, folder) = (topic(&kafka, "one"), tempfile::tempdir().unwrap());
    let store = open(&one, Some(folder.path())).unwrap();
    let mut session = store.session();
    let moved = key(50);
    store.change(&moved, Operator::Split(moved.clone())).await.unwrap();
    store.add_replica(&moved, Site(1)).await.unwrap();
    store.change(&moved, Operator::Remaster(Site(1))).await.unwrap();
    let mut n = 0;
    while store.checkpoints().unwrap().newest == Position(0) || n < 100 {
        assert_eq!(store.checkpoints().unwrap().failure, None);
        put(&mut session, n % 100, 1_000).await.unwrap();
        n += 1;
    }
    // From a checkpoint, and what came since.
    store.crash(Site(0)).await.unwrap();
    until("the site comes back", || !store.map().design.is_fenced(Site(0))).await;
    put(&mut session, 7, 7).await.unwrap();
    let (made, had) = (store.checkpoints().unwrap().newest, all(&store).await);
    drop((session, store));

    let store = open(&one, Some(folder.path())).unwrap();
    assert_eq!(
        (store.checkpoints().unwrap().newest >= made, all(&store).await),
        (true, had.clone())
    );
    let held = open(&one, Some(folder.path())).err().unwrap().to_string();
    assert!(held.contains("another process"), "{held}");
    drop(store);
    let store = open(&one, None).unwrap();
    assert_eq!(all(&store).await, had);
    drop(store);

    // A checkpoint that is of something else is not gone on from.
    let other = topic(&kafka, "other");
    let refused = open(&other, Some(folder.path())).err().unwrap().to_string();
    assert!(refused.contains("acknowledged records are missing"), "{refused}");
    let store = open(&other, None).unwrap();
    for n in 0..200 {
        put(&mut store.session(), n, 10).await.unwrap();
    }
    drop(store);
    let refused = open(&other, Some(folder.path())).err().unwrap().to_string();
    assert!(refused.contains("belongs to another topic"), "{refused}");
    let files = LogOptions::Files {
        folder: folder.path().to_owned(),
        sync: imago_store::log::Sync::Never,
        segment_bytes: 1_000_000,
    };
    let refused = Store::start(&Options { sites: SITES, log: Some(files) }).err().unwrap();
    assert!(refused.to_string().contains("a log in Kafka"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_that_start_at_once_one_serves_and_the_other_ends() {
    let Some(kafka) = start("two").await else { return };
    let topic = topic(&kafka, "contested");
    let mut told = 0;
    for round in 0..6 {
        let starts = [(); 2].map(|()| {
            let topic = topic.clone();
            tokio::task::spawn_blocking(move || open(&topic, None))
        });
        let mut stores = Vec::new();
        for start in starts {
            match start.await.unwrap() {
                Ok(store) => stores.push(store),
                Err(StoreError::NotBegun(why)) => assert!(why.contains("took over"), "{why}"),
                Err(error) => panic!("{error}"),
            }
        }
        until("one of them ends", || stores.iter().filter(|it| it.end().is_none()).count() <= 1)
            .await;
        let ended = stores.iter().filter_map(Store::end);
        told += ended.inspect(|why| assert!(why.contains("took over"), "{why}")).count();
        let left: Vec<&Store> = stores.iter().filter(|store| store.end().is_none()).collect();
        assert_eq!(left.len(), 1, "one goes on");
        put(&mut left[0].session(), round, round + 1).await.unwrap();
        let expected: Vec<_> = (0..=round).map(|n| (key(n), n + 1)).collect();
        assert_eq!(all(left[0]).await, expected);
    }
    println!("{told} were told after they had begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_broker_a_store_waits_says_so_and_ends_after_its_patience() {
    let Some(kafka) = start("gone").await else { return };
    let patience = Duration::from_secs(6);
    let store = open(&KafkaSpec { patience, ..topic(&kafka, "gone") }, None).unwrap();
    put(&mut store.session(), 1, 10).await.unwrap();
    kafka.kill().unwrap();
    let mut session = store.session();
    let writing = tokio::spawn(async move { put(&mut session, 2, 10).await });
    until("it says so", || store.trouble().is_some_and(|why| why.contains(&kafka.uri()))).await;
    assert_eq!((store.end(), writing.is_finished()), (None, false));
    until("it ends", || store.end().is_some()).await;
    let why = store.end().unwrap();
    assert!(why.contains(&kafka.uri()) && why.contains("tried for"), "{why}");
    assert_eq!(writing.await.unwrap(), Err(Abort::Deposed), "the outcome is unknown");
    drop(store);

    let refused = open(&KafkaSpec { patience, ..topic(&kafka, "gone") }, None).err().unwrap();
    assert!(refused.to_string().contains(&kafka.uri()), "{refused}");
    kafka.restart().await.unwrap();
    let store = open(&topic(&kafka, "gone"), None).unwrap();
    assert_eq!(all(&store).await[0], (key(1), 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_twice_because_an_answer_was_lost_counts_once_and_nothing_behind_it_is_lost()
 {
    let Some(kafka) = start("silent").await else { return };
    // A broker that is silent for a third of it is asked again.
    let topic = KafkaSpec { patience: Duration::from_secs(9), ..topic(&kafka, "silent") };
    let store = Arc::new(open(&topic, None).unwrap());
    let written = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let writers = (0..3).map(|writer| {
        let (store, written, is_over) =
            (Arc::clone(&store), Arc::clone(&written), Arc::clone(&is_over));
        tokio::spawn(async move {
            let (mut session, mut n) = (store.session(), writer);
            while !is_over.load(Ordering::Relaxed) {
                put(&mut session, n, 1 + n).await.unwrap();
                written.fetch_add(1, Ordering::Relaxed);
                n += 3;
            }
            (writer..n).step_by(3).collect::<Vec<_>>()
        })
    });
    let writers: Vec<_> = writers.collect();
    for _ in 0..2 {
        let before = written.load(Ordering::Relaxed);
        until("it is written", || written.load(Ordering::Relaxed) > before + 50).await;
        kafka.stop().unwrap();
        wait::lasts(Duration::from_secs(4)).await;
        kafka.resume().unwrap();
    }
    let before = written.load(Ordering::Relaxed);
    until("it goes on", || written.load(Ordering::Relaxed) > before + 50).await;
    is_over.store(true, Ordering::Relaxed);
    let mut expected = Vec::new();
    for writer in writers {
        expected.extend(writer.await.unwrap());
    }
    expected.sort_unstable();
    let mut expected: Vec<_> = expected.into_iter().map(|n| (key(n), 1 + n)).collect();
    expected.sort();
    assert_eq!((store.end(), all(&store).await), (None, expected.clone()));
    drop(store);

    let (mut entries, mut twice, mut next) = (HashSet::new(), 0, Position::FIRST);
    let mut log = KafkaLog::reader(topic.clone());
    loop {
        let mut see = |_, entry: LogEntry| {
            let Author { site, epoch, number } = entry.by;
            twice += usize::from(!entries.insert((site, epoch, number)));
        };
        match log.deliver(next, Duration::ZERO, &mut see).unwrap() {
            behind if behind == next => break,
            behind => next = behind,
        }
    }
    println!("{} entries, {twice} of them twice", entries.len());
    assert_eq!(all(&open(&topic, None).unwrap()).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_larger_than_a_group_come_back() {
    let Some(kafka) = start("large").await else { return };
    let topic = topic(&kafka, "large");
    let store = Arc::new(open(&topic, None).unwrap());
    // The testbed's broker cannot write much more at once.
    let sizes = [3 * MB, 17 * MB, 3 * MB, 3 * MB, 20 * MB];
    let writers = sizes.into_iter().enumerate().map(|(n, size)| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { put(&mut store.session(), n, size).await })
    });
    for writer in writers.collect::<Vec<_>>() {
        let written = writer.await.unwrap();
        assert_eq!((written, store.end()), (Ok(()), None));
    }
    drop(store);
    let expected: Vec<_> = sizes.into_iter().enumerate().map(|(n, size)| (key(n), size)).collect();
    assert_eq!(all(&open(&topic, None).unwrap()).await, expected);
}

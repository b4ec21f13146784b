//! The log in Kafka, on a real broker that is killed and comes back.

use std::time::Duration;

use imago_store::kafka::{ClientConfig, KafkaLog, KafkaSpec};
use imago_store::key::Key;
use imago_store::log::RedoLog;
use imago_store::record::{Author, Body, Epoch, LogEntry, Position, Site, Update, Write};
use imago_testbed::{Single, SingleSpec, find_kafka, require, wait};

const AT_ONCE: Duration = Duration::ZERO;

/// A broker; none, with a word, where this machine has no Kafka or no Java.
async fn start(name: &str) -> Option<Single> {
    require(find_kafka())?;
    Some(Single::start(SingleSpec::kafka(name)).await.unwrap())
}

fn open(kafka: &Single, patience: Duration) -> KafkaLog {
    let (brokers, client) = (vec![kafka.uri()], ClientConfig::default());
    let spec = KafkaSpec { brokers, topic: "redo".into(), replicas: 1, patience, client };
    KafkaLog::open(spec).unwrap()
}

fn patient(kafka: &Single) -> KafkaLog {
    open(kafka, Duration::from_secs(120))
}

pub fn entry(site: u16, number: u64) -> LogEntry {
    let value = number.to_le_bytes().repeat(1 + number as usize % 50);
    let rows = vec![(Key::from_bytes(&value), Update::Put(value.as_slice().into()))];
    let write = Write { start: Key::least(), version: number, rows };
    let by = Author { site: Site(site), epoch: Epoch(1), number };
    LogEntry { by, body: Body::Commit(vec![write]) }
}

/// Everything from a position on.
pub fn read(log: &mut KafkaLog, from: Position) -> Vec<(Position, LogEntry)> {
    let mut read = Vec::new();
    let mut next = from;
    loop {
        let behind = log.deliver(next, AT_ONCE, &mut |at, entry| read.push((at, entry))).unwrap();
        if behind == next {
            return read;
        }
        next = behind;
    }
}

/// The numbers of a site's log entries that count: each follows the one before it.
fn counted(read: &[(Position, LogEntry)], site: u16) -> Vec<u64> {
    let mut counted = Vec::new();
    let own = read.iter().filter(|(_, entry)| entry.by.site == Site(site));
    for (_, read) in own {
        if read.by.number == counted.len() as u64 + 1 {
            assert_eq!(*read, entry(site, read.by.number));
            counted.push(read.by.number);
        }
    }
    counted
}

#[tokio::test]
async fn all_readers_find_the_same_frames_at_the_same_positions() {
    let Some(kafka) = start("order").await else { return };
    let mut logs = [patient(&kafka), patient(&kafka)];
    let mut numbers = [0, 0];
    for (n, entries) in [1, 7, 300, 2, 1, 40].into_iter().enumerate() {
        let by = n % 2;
        let first = numbers[by] + 1;
        numbers[by] += entries;
        let group: Vec<LogEntry> =
            (first..=numbers[by]).map(|number| entry(by as u16, number)).collect();
        assert_eq!(logs[by].append(&group).unwrap(), None);
    }
    let all = read(&mut logs[0], Position(1));
    let positions: Vec<Position> = all.iter().map(|(at, _)| *at).collect();
    assert_eq!(positions, (1..=351).map(Position).collect::<Vec<_>>());
    assert_eq!(read(&mut logs[1], Position(1)), all);
    for site in [0, 1] {
        assert_eq!(counted(&all, site), (1..=numbers[site as usize]).collect::<Vec<_>>());
    }
    // From the middle of a group, backwards, by one who has read further, and by one who has not.
    for from in [351, 200, 9, 2] {
        assert_eq!(read(&mut logs[0], Position(from)), all[from as usize - 1..]);
        assert_eq!(read(&mut patient(&kafka), Position(from)), all[from as usize - 1..]);
    }
    assert_eq!(read(&mut logs[0], Position(352)), []);
}

#[tokio::test]
async fn a_reader_who_waits_has_a_frame_as_soon_as_it_is_written() {
    let Some(kafka) = start("waiting").await else { return };
    let mut reader = patient(&kafka);
    let waiting = std::thread::spawn(move || {
        let mut delivered = Vec::new();
        let wait = Duration::from_secs(60);
        let next = reader
            .deliver(Position(1), wait, &mut |at, entry| delivered.push((at, entry)))
            .unwrap();
        (next, delivered)
    });
    patient(&kafka).append(&[entry(5, 1)]).unwrap();
    assert_eq!(waiting.join().unwrap(), (Position(2), vec![(Position(1), entry(5, 1))]));
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_the_broker_was_killed_in_between() {
    const GROUPS: u64 = 120;
    let Some(kafka) = start("killed").await else { return };
    let mut writer = patient(&kafka);
    let (told, acknowledged) = std::sync::mpsc::channel();
    let writing = std::thread::spawn(move || {
        for group in 0..GROUPS {
            // An error would be one that lasted longer than the broker was away.
            writer.append(&[entry(1, 2 * group + 1), entry(1, 2 * group + 2)]).unwrap();
            told.send(group).unwrap();
            wait::lasts_blocking(Duration::from_millis(5));
        }
    });
    for until in [20, 60] {
        while acknowledged.recv().unwrap() < until {}
        kafka.kill().unwrap();
        kafka.restart().await.unwrap();
    }
    writing.join().unwrap();
    let all = read(&mut patient(&kafka), Position(1));
    assert_eq!(counted(&all, 1), (1..=2 * GROUPS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_broker_that_stays_away_is_an_error_and_the_log_goes_on_when_it_is_back() {
    let Some(kafka) = start("away").await else { return };
    let mut log = open(&kafka, Duration::from_millis(1_500));
    log.append(&[entry(1, 1)]).unwrap();
    kafka.kill().unwrap();
    let refused = log.append(&[entry(1, 2)]).unwrap_err().to_string();
    assert!(refused.contains("cannot write to the topic redo") && refused.contains("tried for"));
    let unread = log.deliver(Position(1), AT_ONCE, &mut |_, _| {}).unwrap_err().to_string();
    assert!(unread.contains("cannot read the topic redo"), "{unread}");

    kafka.restart().await.unwrap();
    log.append(&[entry(1, 2)]).unwrap();
    assert_eq!(counted(&read(&mut log, Position(1)), 1), [1, 2]);
}

#[tokio::test]
async fn a_broker_that_answers_too_late_may_have_a_group_twice_and_it_counts_once() {
    let Some(kafka) = start("late").await else { return };
    let mut writer = open(&kafka, Duration::from_secs(9));
    writer.append(&[entry(1, 1)]).unwrap();
    kafka.stop().unwrap();
    let writing = std::thread::spawn(move || {
        writer.append(&[entry(1, 2)]).unwrap();
        writer.append(&[entry(1, 3)]).unwrap();
    });
    // Longer than the writer takes a broker's silence for.
    wait::lasts_blocking(Duration::from_secs(4));
    kafka.resume().unwrap();
    writing.join().unwrap();
    let all = read(&mut patient(&kafka), Position(1));
    assert_eq!(counted(&all, 1), [1, 2, 3]);
    let positions: Vec<Position> = all.iter().map(|(at, _)| *at).collect();
    assert_eq!(positions, (1..=all.len() as u64).map(Position).collect::<Vec<_>>());
}

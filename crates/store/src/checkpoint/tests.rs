//! Tests: a checkpoint is read as it was written, and an incomplete one is never taken for a whole
//! one.

use super::*;
use crate::fuzz::allocation;
use crate::key::Table;
use crate::record::{Author, Body, Change, Epoch, LogEntry, Operator, Site};

mod fuzz;

fn key(n: u32) -> Key {
    Key::new(Table(0), format!("{n:05}").as_bytes())
}

fn some() -> (Design, Vec<Snapshot>) {
    let mut design = Design::new(Site(0));
    let change = Change { start: Key::least(), operator: Operator::Split(key(100)) };
    design.change(&change).expect("it can be split");
    let change = Change { start: key(100), operator: Operator::Pin(Site(0)) };
    design.change(&change).expect("it can be pinned");
    let rows = |from: u32, to: u32| {
        let mut rows = Rows::default();
        for n in from..to {
            let value = n.to_string().repeat(300).into_bytes().into();
            rows.insert(key(n), Row { version: u64::from(n), value });
        }
        rows
    };
    let snapshots = vec![
        Snapshot { start: Key::least(), version: 7, rows: rows(0, 100) },
        Snapshot { start: key(100), version: 9, rows: rows(100, 2_000) },
    ];
    (design, snapshots)
}

fn read(folder: &Path) -> Result<Core> {
    read_newest(folder, Design::new(Site(0))).map(|newest| newest.image)
}

#[test]
fn the_newest_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (design, snapshots) = some();
    let whole = Snapshot { start: Key::least(), version: 1, rows: Rows::default() };
    assert_eq!(read(folder.path()).map(|core| core.known()).ok(), Some(Position::START));
    write(folder.path(), Position(41), &Design::new(Site(0)), &[whole], None)
        .expect("it is written");
    let landmark = Landmark::some();
    let bytes = write(folder.path(), Position(42), &design, &snapshots, Some(&landmark));
    let bytes = bytes.expect("it is written");
    let path = path_of(folder.path(), Position(42));
    assert_eq!(fs::metadata(&path).map(|file| file.len()).ok(), Some(bytes));
    drop_before(folder.path(), Position(42)).expect("the older one goes");
    assert_eq!(all(folder.path()).expect("a list"), [(Position(42), path)]);
    let newest = read_newest(folder.path(), Design::new(Site(0))).expect("it is read");
    assert_eq!((newest.bytes, newest.landmark), (bytes, Some(landmark)));
    let core = newest.image;
    assert_eq!((core.known(), core.design()), (Position(42), &design));
    let read: Vec<_> = core.usage_of_all().map(|(version, rows)| (version, rows.clone())).collect();
    for (snapshot, (version, rows)) in snapshots.iter().zip(&read) {
        assert_eq!(snapshot.version, *version);
        assert!(snapshot.rows.iter().eq(rows.iter()));
        assert_eq!(snapshot.rows.size(), rows.size());
    }
}

/// A checkpoint of before there were pins, as it was written then: of log entry 9, of two partitions which
/// site 0 masters, the first with a replica at site 1 and one row.
const BEFORE_PINS: &str = "696d61676f6370313500000013698b650009020000010900000000303030303102000101090000\
     000030303030310900000000303030303100010000020001010001010100030000009fe28a6701000311000000258cd63f02\
     010900000000303030303003036f6c640c000000017075c2010900000000303030303102020000007d70ef73020002000000\
     aa71f31d0301";

#[test]
fn one_of_before_there_were_pins_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let digits: Vec<u32> =
        BEFORE_PINS.chars().map(|digit| digit.to_digit(16).expect("a digit")).collect();
    let content: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect();
    fs::write(path_of(folder.path(), Position(9)), content).expect("it is written");
    let core = read(folder.path()).expect("it is read");
    assert_eq!((core.known(), core.design().epoch(Site(1))), (Position(9), Epoch(1)));
    let partitions: Vec<_> = core.design().partitions().collect();
    assert_eq!(partitions.len(), 2);
    assert_eq!(partitions[0].range.end, Some(key(1)));
    assert_eq!(partitions[0].sites().collect::<Vec<_>>(), [Site(0), Site(1)]);
    assert!(partitions.iter().all(|partition| partition.pin.is_none()));
    let rows: Vec<u64> = core.usage_of_all().map(|(_, rows)| rows.size().rows).collect();
    assert_eq!(rows, [1, 0]);
}

#[test]
fn no_memory_is_taken_for_a_block_that_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let length = u32::try_from(BLOCK_BYTES_MAX).expect("it fits").to_le_bytes();
    let content = [&MAGIC[..], &length, &[0; 100]].concat();
    fs::write(path_of(folder.path(), Position(9)), content).expect("it is written");
    let (refused, bytes) = allocation::peak(|| read(folder.path()).err());
    assert!(matches!(refused, Some(LogError::Damaged { .. })), "{refused:?}");
    assert!(bytes < 4 * BLOCK_BYTES, "{bytes}");
}

/// The blocks of a file, with their lengths and checksums; the last has the rest of the file.
fn blocks(content: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut all) = (&content[MAGIC.len()..], Vec::new());
    while let Some((length, _)) = rest.split_first_chunk().filter(|_| rest.len() >= 8) {
        let length = u32::from_le_bytes(*length) as usize + 8;
        let (block, behind) = rest.split_at(length.min(rest.len()));
        all.push(block.to_vec());
        rest = behind;
    }
    all
}

#[test]
fn blocks_that_are_whole_and_not_in_their_places_are_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = |rows: u32| {
        let (design, mut snapshots) = some();
        snapshots[0].rows.insert(key(rows), Row { version: 1, value: [1].into() });
        write(folder.path(), Position(42), &design, &snapshots, None).expect("it is written");
        blocks(&fs::read(path_of(folder.path(), Position(42))).expect("it is there"))
    };
    // Two that differ in one row, and have as many.
    let (one, other) = (content(0), content(1));
    assert!(one.len() > 6);
    let refuses = |blocks: &[Vec<u8>]| {
        fs::write(path_of(folder.path(), Position(42)), [&MAGIC[..], &blocks.concat()].concat())
            .expect("it is written");
        let refused = read(folder.path()).err();
        assert!(matches!(refused, Some(LogError::Damaged { .. })), "{refused:?}");
    };
    for at in 0..one.len() {
        let mut changed = one.clone();
        changed.remove(at);
        refuses(&changed);
        changed = one.clone();
        changed.insert(at, one[at].clone());
        refuses(&changed);
        if at + 1 < one.len() {
            changed = one.clone();
            changed.swap(at, at + 1);
            refuses(&changed);
        }
        if one[at] != other[at] && at + 1 < one.len() {
            changed = one.clone();
            changed[at] = other[at].clone();
            refuses(&changed);
        }
    }
}

/// The same blocks, each with the checksum that it has to have there.
fn summed(blocks: &[Vec<u8>]) -> Vec<u8> {
    let (mut content, mut sum) = (MAGIC.to_vec(), 0);
    for block in blocks {
        sum = checksum(sum, &block[8..]);
        content.extend_from_slice(&block[..4]);
        content.extend_from_slice(&sum.to_le_bytes());
        content.extend_from_slice(&block[8..]);
    }
    content
}

#[test]
fn rows_and_partitions_out_of_their_places_are_refused_behind_a_right_checksum_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let (design, snapshots) = some();
    write(folder.path(), Position(42), &design, &snapshots, None).expect("it is written");
    let path = path_of(folder.path(), Position(42));
    let content = fs::read(&path).expect("it is there");
    let blocks = blocks(&content);
    assert_eq!(summed(&blocks), content);
    let refused = |blocks: &[Vec<u8>]| {
        fs::write(&path, summed(blocks)).expect("it is written");
        read(folder.path()).err().expect("it is refused").to_string()
    };
    for at in 1..blocks.len() - 1 {
        let mut changed = blocks.clone();
        changed.swap(at, at + 1);
        let why = refused(&changed);
        assert!(why.contains("damaged"), "{why}");
    }
    let block = |block: &Block| {
        let payload = postcard::to_stdvec(block).expect("it is plain data");
        let length = u32::try_from(payload.len()).expect("it is short").to_le_bytes();
        [&length[..], &[0; 4], &payload].concat()
    };
    let mut design = Design::new(Site(0));
    let by = Author { site: Site(0), epoch: Epoch(1), number: 1 };
    design.follow(&LogEntry { by, body: Body::Join });
    let whole = postcard::to_stdvec(&design).expect("it is plain data");
    // A map of one partition becomes one of none.
    let none = [&[0], &whole[whole.len() - 5..]].concat();
    let gaps: Design = postcard::from_bytes(&none).expect("it can be read");
    let why = refused(&[block(&Block::Design(Position(42), gaps)), block(&Block::End(0))]);
    assert!(why.contains("gaps"), "{why}");
}

#[test]
fn damage_anywhere_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let (design, snapshots) = some();
    write(folder.path(), Position(42), &design, &snapshots, None).expect("it is written");
    let path = path_of(folder.path(), Position(42));
    let content = fs::read(&path).expect("it is there");
    for at in (0..content.len()).step_by(1_999).chain(content.len() - 40..content.len()) {
        let mut changed = content.clone();
        changed[at] ^= 4;
        fs::write(&path, &changed).expect("it is written");
        let refused = read(folder.path()).err();
        assert!(matches!(refused, Some(LogError::Damaged { .. })), "byte {at}: {refused:?}");
        fs::write(&path, &content[..at]).expect("it is written");
        let refused = read(folder.path()).err();
        assert!(matches!(refused, Some(LogError::Damaged { .. })), "cut at {at}: {refused:?}");
    }
}

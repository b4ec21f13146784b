//! Damaged groups and files: what was durable is read as it was written, or is an error.

use rand::RngExt;
use rand::rngs::StdRng;

use super::super::group::GROUP_BYTES_MAX;
use super::*;
use crate::fuzz::{ValidBytes, allocation, many};
use crate::log::redo;
use crate::rows::Row;

/// Largest memory per byte read: the shortest row is two bytes, and in memory a key and two words, in two
/// vectors that may have doubled. And the memory reserved for a sequence that is announced.
const PER_BYTE_MAX: usize = 200;
const ALLOWANCE_BYTES: usize = 4 * 1024 * 1024;

fn entries(dice: &mut StdRng) -> Vec<LogEntry> {
    let key = |dice: &mut StdRng| {
        let many = dice.random_range(0..6);
        Key::from_bytes(&(0..many).map(|_| dice.random()).collect::<Vec<u8>>())
    };
    let body = |dice: &mut StdRng| {
        let site = Site(dice.random_range(0..300));
        let operator = match dice.random_range(0..12) {
            0 => return Body::Join,
            1 => return Body::Fence,
            2 => Operator::Split(key(dice)),
            3 => Operator::Merge,
            4 => Operator::AddReplica(site, Epoch(dice.random_range(0..1_000))),
            5 => Operator::RemoveReplica(site),
            6 => Operator::Remaster(site),
            7 => Operator::Pin(site),
            8 => Operator::Unpin,
            _ => {
                let write = |dice: &mut StdRng| {
                    let many = dice.random_range(0..4);
                    let row = |dice: &mut StdRng| {
                        let length = dice.random_range(0..200);
                        let value = || vec![7; length].into();
                        let old = Row { version: 3, value: [7; 100].into() };
                        let update = match dice.random_range(0..5) {
                            0 => Update::Delete,
                            1 => Update::between(|| Some(&old), Some(value())),
                            _ => Update::Put(value()),
                        };
                        (key(dice), update)
                    };
                    let rows = (0..many).map(|_| row(dice)).collect();
                    Write { start: key(dice), version: dice.random_range(0..1_000), rows }
                };
                let many = dice.random_range(0..3);
                return Body::Commit((0..many).map(|_| write(dice)).collect());
            }
        };
        Body::Change(Change { start: key(dice), operator })
    };
    (0..dice.random_range(1..6))
        .map(|_| {
            let (site, epoch) = (Site(dice.random_range(0..4)), dice.random_range(0..1_000));
            let by = Author { site, epoch: Epoch(epoch), number: dice.random() };
            LogEntry { by, body: body(dice) }
        })
        .collect()
}

fn whole(group: Vec<u8>) -> ValidBytes {
    ValidBytes {
        seams: vec![8, 12, 16, 24, 28, HEADER],
        lengths: vec![8, 16, 24, 28],
        bytes: group,
    }
}

#[test]
fn a_damaged_group_is_none_or_what_it_was() {
    many(3_000, |dice| {
        let mut groups = Vec::new();
        for _ in 0..3 {
            let entries = entries(dice);
            groups.push(whole(encode(Position(5), Position(3), &entries, ALONE).unwrap()));
        }
        let damaged = groups[0].damaged(dice, &groups);
        let (read, bytes) = allocation::peak(|| decode(&damaged, Position(5), ALONE));
        assert!(
            bytes <= PER_BYTE_MAX * damaged.len() + ALLOWANCE_BYTES,
            "{bytes} of {}",
            damaged.len()
        );
        if let Ok(group) = read {
            let is_one = groups.iter().any(|right| right.bytes == damaged[..group.end]);
            assert!(is_one, "what was damaged is taken for right");
        }
        was_durable(&damaged, Position(dice.random_range(0..9)), ALONE);
        _ = redo::ungroup(&damaged);
    });
}

/// A failing disk writes no right checksum; a group that has one must not end the process either.
#[test]
fn a_wrong_group_with_a_right_checksum_is_refused_or_says_one_thing() {
    many(3_000, |dice| {
        let entries = [entries(dice), entries(dice)];
        let groups = entries
            .map(|entries| whole(encode(Position(5), Position(3), &entries, ALONE).unwrap()));
        let mut damaged = groups[0].damaged(dice, &groups);
        if damaged.len() < HEADER {
            return;
        }
        let length = u32::try_from(damaged.len() - HEADER).unwrap();
        damaged[..8].copy_from_slice(&ALONE);
        damaged[8..12].copy_from_slice(&length.to_le_bytes());
        damaged[16..24].copy_from_slice(&5_u64.to_le_bytes());
        let checksum = checksum(&damaged);
        damaged[12..16].copy_from_slice(&checksum.to_le_bytes());
        let (read, bytes) = allocation::peak(|| decode(&damaged, Position(5), ALONE));
        assert!(
            bytes <= PER_BYTE_MAX * damaged.len() + ALLOWANCE_BYTES,
            "{bytes} of {}",
            damaged.len()
        );
        match read {
            Ok(group) => {
                let again = encode(group.first, Position(3), &group.entries, ALONE).unwrap();
                assert!(
                    matches!(decode(&again, Position(5), ALONE), Ok(again) if again.entries == group.entries)
                );
            }
            Err(GroupError::Torn(what) | GroupError::Wrong(what)) => assert!(!what.is_empty()),
        }
        assert!(damaged.len() <= GROUP_BYTES_MAX);
    });
}

/// A log of several files: their names and contents, its log entries, and its groups as they are in the files,
/// each with how far the log was durable.
struct Written {
    files: Vec<(String, ValidBytes)>,
    entries: Vec<LogEntry>,
    groups: Vec<(Vec<u8>, Position)>,
}

fn write_some(dice: &mut StdRng) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let sizes: Vec<usize> =
        (0..dice.random_range(2..12)).map(|_| dice.random_range(1..5)).collect();
    let (entries, _) = written(folder.path(), &sizes);
    let (mut files, mut groups) = (Vec::new(), Vec::new());
    for (first, path) in segments(folder.path()).unwrap() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let mark = mark::of(&bytes).unwrap().unwrap();
        let (mut at, mut next, mut right) = (mark::LENGTH, first, ValidBytes::default());
        while at < bytes.len() {
            let group =
                decode(&bytes[at..], next, mark).unwrap_or_else(|_| panic!("it was written"));
            let durable = bytes[at + 28..at + 36].try_into().map(u64::from_le_bytes).unwrap();
            let durable = Position(durable);
            groups.push((bytes[at..at + group.end].to_vec(), durable));
            right.seams.push(at);
            right.lengths.extend([8, 16, 24, 28].map(|field| at + field));
            next += group.entries.len() as u64;
            at += group.end;
        }
        files.push((name, ValidBytes { bytes, ..right }));
    }
    Written { files, entries, groups }
}

/// The last position that must be read from the remaining files, by the groups that are whole there and the
/// files that begin behind it.
fn must_be_read(written: &Written, left: &[(String, Vec<u8>)]) -> Position {
    let is_in = |group: &[u8], file: &[u8]| {
        mark::of(file).is_ok_and(|mark| mark.is_some_and(|mark| group.starts_with(&mark)))
            && memchr::memmem::find(file, group).is_some()
    };
    let has = |group: &[u8]| left.iter().any(|(_, file)| is_in(group, file));
    let told = written.groups.iter().filter(|(group, _)| has(group)).map(|(_, durable)| *durable);
    let begin = left.iter().filter_map(|(name, _)| name.strip_suffix(".log")?.parse::<u64>().ok());
    told.chain(begin.map(|first| Position(first - 1))).max().unwrap_or_default()
}

#[test]
fn damaged_files_are_an_error_or_have_all_that_they_say_was_durable() {
    many(300, |dice| {
        let written = write_some(dice);
        let files = &written.files;
        let others: Vec<ValidBytes> = files.iter().map(|(_, file)| file.clone()).collect();
        let mut left: Vec<_> =
            files.iter().map(|(name, file)| (name.clone(), file.bytes.clone())).collect();
        for _ in 0..dice.random_range(1..=2) {
            let at = dice.random_range(0..left.len());
            match dice.random_range(0..10) {
                0 if left.len() > 1 => drop(left.remove(at)),
                1 => {
                    let other = dice.random_range(0..left.len());
                    left[at].1 = left[other].1.clone();
                }
                _ => {
                    let right = ValidBytes { bytes: left[at].1.clone(), ..others[at].clone() };
                    left[at].1 = right.damaged(dice, &others);
                }
            }
        }
        let folder = tempfile::tempdir().unwrap();
        for (name, file) in &left {
            fs::write(folder.path().join(name), file).unwrap();
        }
        let must = must_be_read(&written, &left);
        let mut seen = Vec::new();
        let through = read(folder.path(), Position(1), must, |_, entry| seen.push(entry));
        assert!(seen.iter().eq(written.entries.iter().take(seen.len())), "only what was written");
        assert!(through.is_err() || Position(seen.len() as u64) == must);
        let (opened, bytes) = allocation::peak(|| open(folder.path()));
        let size: usize = left.iter().map(|(_, file)| file.len()).sum();
        assert!(bytes <= PER_BYTE_MAX * size + ALLOWANCE_BYTES, "{bytes} of {size}");
        match opened {
            Ok((mut log, read)) => {
                assert!(read.iter().eq(written.entries.iter().take(read.len())), "a prefix");
                assert!(Position(read.len() as u64) >= must, "{} of {must} are there", read.len());
                let next = log.append(&[entry(1, b"more")]).unwrap();
                drop(log);
                assert_eq!(Position(open(folder.path()).unwrap().1.len() as u64), next);
            }
            Err(error) => {
                assert!(matches!(error, LogError::Damaged { .. }), "{error}");
                for (name, file) in &left {
                    assert_eq!(
                        &fs::read(folder.path().join(name)).unwrap(),
                        file,
                        "it is as it was"
                    );
                }
            }
        }
    });
}

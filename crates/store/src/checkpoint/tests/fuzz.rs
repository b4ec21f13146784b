//! Damage to any part of a checkpoint is an error.

use rand::RngExt;
use rand::rngs::StdRng;

use super::*;
use crate::fuzz::{ValidBytes, allocation, many};

/// Largest memory per byte read: the shortest row is three bytes, and in memory a key, a value and
/// four words, in a tree. And the memory reserved for a sequence that is announced, or read at
/// once.
const PER_BYTE_MAX: usize = 200;
const ALLOWANCE_BYTES: usize = 8 * 1024 * 1024;

/// Some checkpoints, the rows of which take few blocks or many.
fn corpus() -> Vec<ValidBytes> {
    let written = |design: &Design, snapshots: &[Snapshot]| {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), Position(42), design, snapshots, None).expect("it is written");
        let bytes = fs::read(path_of(folder.path(), Position(42))).expect("it is there");
        let (mut seams, mut at) = (Vec::new(), MAGIC.len());
        while let Some(length) = bytes.get(at..at + 4) {
            seams.push(at);
            let length: [u8; 4] = length.try_into().expect("four");
            at += 8 + u32::from_le_bytes(length) as usize;
        }
        ValidBytes { lengths: seams.clone(), seams, bytes }
    };
    let (design, mut snapshots) = some();
    let small = |from: u32, to: u32| {
        let mut rows = Rows::default();
        for n in from..to {
            rows.insert(key(n), Row { version: 3, value: b"value".as_slice().into() });
        }
        rows
    };
    let large = written(&design, &snapshots);
    (snapshots[0].rows, snapshots[1].rows) = (small(0, 5), small(100, 105));
    let two = written(&design, &snapshots);
    (snapshots[0].rows, snapshots[1].rows) = (small(5, 10), small(110, 115));
    let alike = written(&design, &snapshots);
    let whole = Snapshot { start: Key::least(), version: 1, rows: small(0, 0) };
    vec![two, alike, written(&Design::new(Site(0)), &[whole]), large]
}

fn draw(dice: &mut StdRng, corpus: &[ValidBytes]) -> (usize, Vec<u8>) {
    // The large one costs much more time than the others.
    let at = if dice.random_bool(0.02) { 3 } else { dice.random_range(0..3) };
    (at, corpus[at].damaged(dice, &corpus[..3]))
}

fn read_bounded(folder: &Path, content: &[u8]) -> Result<Core> {
    fs::write(path_of(folder, Position(42)), content).expect("it is written");
    let (core, bytes) = allocation::peak(|| read(folder));
    assert!(
        bytes <= PER_BYTE_MAX * content.len() + ALLOWANCE_BYTES,
        "{bytes} of {}",
        content.len()
    );
    core
}

#[test]
fn a_damaged_checkpoint_is_an_error() {
    let (folder, corpus) = (tempfile::tempdir().expect("a folder"), corpus());
    many(1_500, |dice| {
        let (_, damaged) = draw(dice, &corpus);
        match read_bounded(folder.path(), &damaged) {
            Ok(_) => {
                let is_one = corpus.iter().any(|right| right.bytes == damaged);
                assert!(is_one, "what was damaged is taken for right");
            }
            Err(error) => assert!(matches!(error, LogError::Damaged { .. }), "{error}"),
        }
    });
}

/// A failing disk writes no right checksums; a file that has them must not end the process either.
#[test]
fn a_wrong_checkpoint_with_right_checksums_is_refused_or_says_one_thing() {
    let (folder, corpus) = (tempfile::tempdir().expect("a folder"), corpus());
    many(1_500, |dice| {
        let (_, mut damaged) = draw(dice, &corpus);
        damaged.resize(damaged.len().max(MAGIC.len()), 0);
        let damaged = summed(&blocks(&damaged));
        match read_bounded(folder.path(), &damaged) {
            Ok(core) => {
                let starts = core.design().partitions().map(|partition| &partition.range.start);
                let snapshots: Vec<Snapshot> = core
                    .usage_of_all()
                    .zip(starts)
                    .map(|((version, rows), start)| Snapshot {
                        start: start.clone(),
                        version,
                        rows: rows.clone(),
                    })
                    .collect();
                let again = tempfile::tempdir().expect("a folder");
                write(again.path(), core.known(), core.design(), &snapshots, None)
                    .expect("it is written");
                let same = read(again.path()).expect("it is read");
                assert_eq!((same.known(), same.design()), (core.known(), core.design()));
                for (one, other) in same.usage_of_all().zip(core.usage_of_all()) {
                    assert!(one.0 == other.0 && one.1.iter().eq(other.1.iter()));
                }
            }
            Err(error) => assert!(matches!(error, LogError::Damaged { .. }), "{error}"),
        }
    });
}

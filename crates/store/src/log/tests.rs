//! The log against machines that stop, disks that fail and bytes that change.

use proptest::prelude::*;

use super::group::{ALONE, GroupError, HEADER, checksum, decode, was_durable};
use super::*;
use crate::key::Key;
use crate::record::{Author, Body, Change, Epoch, Operator, Site, Update, Write};

mod fuzz;

const SEGMENT_BYTES: u64 = 2_000;

fn entry(number: u64, value: &[u8]) -> LogEntry {
    let rows = vec![
        (Key::from_bytes(value), Update::Put(value.into())),
        (Key::from_bytes(b"gone"), Update::Delete),
    ];
    let write = Write { start: Key::least(), version: number, rows };
    let by = Author { site: Site(3), epoch: Epoch(7), number };
    LogEntry { by, body: Body::Commit(vec![write]) }
}

fn open(folder: &Path) -> Result<(Log, Vec<LogEntry>)> {
    let mut entries = Vec::new();
    let log = Log::open(folder, Sync::Always, SEGMENT_BYTES, |position, entry| {
        assert_eq!(position, Position(entries.len() as u64 + 1));
        entries.push(entry);
    })?;
    Ok((log, entries))
}

fn last_segment(folder: &Path) -> PathBuf {
    segments(folder).unwrap().pop().unwrap().1
}

/// Writes groups of these sizes, and returns all log entries and where each group ended in its file.
fn written(folder: &Path, groups: &[usize]) -> (Vec<LogEntry>, Vec<u64>) {
    let (mut log, _) = open(folder).unwrap();
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for (n, group) in groups.iter().enumerate() {
        let entries: Vec<LogEntry> =
            (0..*group).map(|m| entry((all.len() + m) as u64 + 1, &[n as u8; 40])).collect();
        assert_eq!(log.append(&entries).unwrap(), Position(all.len() as u64 + 1));
        all.extend(entries);
        assert_eq!(log.durable(), Position(all.len() as u64));
        ends.push(log.bytes);
    }
    (all, ends)
}

#[test]
fn what_was_written_is_read_over_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, _) = written(folder.path(), &[1, 5, 2, 30, 1, 1, 12, 7]);
    assert!(segments(folder.path()).unwrap().len() > 2);
    let (mut log, read) = open(folder.path()).unwrap();
    assert_eq!(read, entries);
    assert_eq!(log.append(&[entry(60, b"more")]).unwrap(), Position(60));
    drop(log);
    assert_eq!(open(folder.path()).unwrap().1.len(), 60);
}

#[test]
fn every_kind_of_frame_comes_back() {
    let by = Author { site: Site(u16::MAX), epoch: Epoch(u64::MAX), number: 0 };
    let key = || Key::from_bytes(&[0, 255, 7]);
    let operators = [
        Operator::Split(key()),
        Operator::Merge,
        Operator::AddReplica(Site(1), Epoch(2)),
        Operator::RemoveReplica(Site(1)),
        Operator::Remaster(Site(1)),
        Operator::Pin(Site(1)),
        Operator::Unpin,
    ];
    let changes = operators.map(|operator| Body::Change(Change { start: key(), operator }));
    let bodies = [Body::Join, Body::Fence, Body::Commit(Vec::new())].into_iter().chain(changes);
    let entries: Vec<LogEntry> = bodies.map(|body| LogEntry { by, body }).collect();
    let group = encode(Position(1), Position(0), &entries, ALONE).unwrap();
    assert!(matches!(decode(&group, Position(1), ALONE), Ok(group) if group.entries == entries));
}

#[test]
fn operators_are_written_as_they_always_were() {
    let operators = [
        Operator::Split(Key::from_bytes(&[8])),
        Operator::Merge,
        Operator::AddReplica(Site(1), Epoch(2)),
        Operator::RemoveReplica(Site(1)),
        Operator::Remaster(Site(1)),
        Operator::Pin(Site(1)),
        Operator::Unpin,
    ];
    let written = operators.map(|operator| postcard::to_stdvec(&operator).unwrap());
    let expected: [&[u8]; 7] = [&[0, 1, 8], &[1], &[2, 1, 2], &[3, 1], &[4, 1], &[5, 1], &[6]];
    assert_eq!(written, expected);
}

#[test]
fn two_processes_do_not_write_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let (_log, _) = open(folder.path()).unwrap();
    assert!(matches!(open(folder.path()), Err(LogError::InUse { .. })));
}

#[test]
fn a_missing_file_is_not_overlooked() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &[10, 10, 10, 10, 10]);
    let segments = segments(folder.path()).unwrap();
    fs::remove_file(&segments[1].1).unwrap();
    assert!(matches!(open(folder.path()), Err(LogError::Damaged { .. })));
}

#[test]
fn what_is_whole_and_not_understood_is_never_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &[1, 2]);
    let path = last_segment(folder.path());
    let content = fs::read(&path).unwrap();
    let mark = mark::of(&content).unwrap().unwrap();
    // A kind of log entry that comes one day, behind site, epoch and number.
    let mut strange = encode(Position(4), Position(3), &[entry(4, b"later")], mark).unwrap();
    strange[HEADER + 3] = 99;
    let checksum = checksum(&strange);
    strange[12..16].copy_from_slice(&checksum.to_le_bytes());
    for tail in [strange, encode(Position(9), Position(3), &[entry(9, b"a gap")], mark).unwrap()] {
        let bad = [content.as_slice(), &tail].concat();
        fs::write(&path, &bad).unwrap();
        assert!(matches!(open(folder.path()), Err(LogError::Damaged { .. })));
        assert_eq!(fs::read(&path).unwrap(), bad);
    }
}

#[test]
fn what_a_client_made_up_does_not_make_a_torn_end_look_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ends) = written(folder.path(), &[1]);
    // A later group, as far as a client can know: it says that all before it was durable.
    let forged = encode(Position(9), Position(8), &[entry(9, b"forged")], ALONE).unwrap();
    let (mut log, _) = open(folder.path()).unwrap();
    log.append(&[entry(2, &forged)]).unwrap();
    drop(log);
    let path = last_segment(folder.path());
    let mut content = fs::read(&path).unwrap();
    assert!(memchr::memmem::find(&content, &forged).is_some());
    // Its group was torn: the beginning did not come to the disk, and the rest did.
    let begins = usize::try_from(ends[0]).unwrap();
    content[begins..begins + HEADER].fill(0);
    fs::write(&path, &content).unwrap();
    assert_eq!(open(folder.path()).unwrap().1.len(), 1);
}

#[test]
fn a_file_that_was_only_begun_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, _) = written(folder.path(), &[3, 3]);
    let path = segment_path(folder.path(), Position(7));
    for length in [0, 7, mark::LENGTH - 1] {
        fs::write(&path, vec![b'i'; length]).unwrap();
        let (mut log, read) = open(folder.path()).unwrap();
        assert_eq!(read, entries);
        assert_eq!(log.append(&[entry(7, b"more")]).unwrap(), Position(7));
        drop(log);
        assert_eq!(open(folder.path()).unwrap().1.len(), 7);
    }
}

#[test]
fn a_folder_is_made_with_those_above_it() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a/b/c");
    written(&deep, &[1]);
    assert_eq!(open(&deep).unwrap().1.len(), 1);
}

/// A disk that fails.
struct Failing {
    file: File,
    room: usize,
    syncs: bool,
}

impl Medium for Failing {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = bytes.len().min(self.room);
        self.file.write_all(&bytes[..fits])?;
        self.room -= fits;
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.syncs { self.file.sync_data() } else { Err(io::Error::other("the disk is broken")) }
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.room += usize::try_from(self.file.metadata()?.len() - bytes).unwrap();
        self.file.set_len(bytes)
    }
}

fn with(folder: &Path, room: usize, syncs: bool) -> Log {
    let (mut log, _) = open(folder).unwrap();
    let file = OpenOptions::new().append(true).open(&log.path).unwrap();
    log.medium = Box::new(Failing { file, room, syncs });
    log
}

#[test]
fn a_full_disk_refuses_and_takes_back_half_a_group() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = with(folder.path(), 300, true);
    let small = [entry(1, b"small")];
    assert_eq!(log.append(&small).unwrap(), Position(1));
    let error = log.append(&[entry(2, &[1; 400])]).unwrap_err();
    assert!(
        matches!(&error, LogError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    );
    // There is room for less.
    assert_eq!(log.append(&small).unwrap(), Position(2));
    drop(log);
    assert_eq!(open(folder.path()).unwrap().1, [small.clone(), small].concat());
}

#[test]
fn after_a_failed_sync_nothing_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = with(folder.path(), 10_000, false);
    assert!(matches!(log.append(&[entry(1, b"a")]), Err(LogError::Io { doing: "sync", .. })));
    assert_eq!(log.durable(), Position(0));
    assert!(matches!(log.append(&[entry(2, b"b")]), Err(LogError::Unsure { .. })));
    assert!(matches!(log.sync(), Err(LogError::Unsure { .. })));
}

#[test]
fn what_is_not_synced_is_not_called_durable() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::open(folder.path(), Sync::Never, SEGMENT_BYTES, |_, _| ()).unwrap();
    log.append(&[entry(1, b"a")]).unwrap();
    assert_eq!((log.durable(), log.next()), (Position(0), Position(2)));
    log.sync().unwrap();
    assert_eq!(log.durable(), Position(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A machine that stops leaves a part of the last group, or rubbish in its place.
    #[test]
    fn a_torn_tail_is_cut_off(
        groups in prop::collection::vec(1..4_usize, 1..8), part in 0.0..1.0_f64,
        rubbish in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (entries, ends) = written(folder.path(), &groups);
        let path = last_segment(folder.path());
        let content = fs::read(&path).unwrap();
        let begins = ends.iter().rev().nth(1).copied().filter(|at| *at < content.len() as u64);
        let begins = begins.map_or(mark::LENGTH, |at| usize::try_from(at).unwrap());
        let kept = begins + ((content.len() - begins) as f64 * part) as usize;
        // By chance it may be what was torn off: then nothing is missing.
        prop_assume!(!rubbish.starts_with(&content[kept..]));
        fs::write(&path, [&content[..kept], &rubbish].concat()).unwrap();
        let before = entries.len() - groups.last().unwrap();
        let (mut log, read) = open(folder.path()).unwrap();
        prop_assert_eq!(&read, &entries[..before]);
        let behind = (kept - begins + rubbish.len()) as u64;
        let cut = CutTail { path, at: begins as u64, bytes: behind };
        prop_assert_eq!(log.cut_tail(), Some(&cut).filter(|_| behind > 0));
        log.append(&[entry(before as u64 + 1, b"again")]).unwrap();
        drop(log);
        prop_assert_eq!(open(folder.path()).unwrap().1.len(), before + 1);
    }

    /// A byte that changes in what was durable is an error, wherever it is; only in the last group
    /// it cannot be told from a torn one.
    #[test]
    fn damage_to_what_was_durable_is_an_error(
        groups in prop::collection::vec(1..4_usize, 3..8), which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(), flip in 1..=255_u8,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (entries, _) = written(folder.path(), &groups);
        let segments = segments(folder.path()).unwrap();
        let (_, path) = which.get(&segments);
        let mut content = fs::read(path).unwrap();
        let at = at.index(content.len());
        content[at] ^= flip;
        fs::write(path, content).unwrap();
        match open(folder.path()) {
            Err(error) => prop_assert!(matches!(error, LogError::Damaged { .. }), "{}", error),
            Ok((_, read)) => prop_assert_eq!(&read, &entries[..entries.len() - groups.last().unwrap()]),
        }
    }

    #[test]
    fn rubbish_is_no_group(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&bytes, Position(1), ALONE).is_err());
        let behind = [&ALONE[..], &bytes].concat();
        prop_assert!(decode(&behind, Position(1), ALONE).is_err());
        was_durable(&behind, Position(1), ALONE);
    }
}

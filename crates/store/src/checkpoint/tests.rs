//! What was written is read, and what is not whole is never taken for it.

use super::*;
use crate::key::Table;
use crate::record::{Change, Operator, Site};

fn key(n: u32) -> Key {
    Key::new(Table(0), format!("{n:05}").as_bytes())
}

fn some() -> (Design, Vec<Snapshot>) {
    let mut design = Design::new(Site(0));
    let change = Change { start: Key::least(), operator: Operator::Split(key(100)) };
    design.change(&change).expect("it can be split");
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
    assert_eq!(read(folder.path()).map(|core| core.known()).ok(), Some(0));
    write(folder.path(), 41, &Design::new(Site(0)), &[whole], None).expect("it is written");
    let landmark = Landmark::some();
    let bytes = write(folder.path(), 42, &design, &snapshots, Some(&landmark));
    let bytes = bytes.expect("it is written");
    let path = path_of(folder.path(), 42);
    assert_eq!(fs::metadata(&path).map(|file| file.len()).ok(), Some(bytes));
    drop_before(folder.path(), 42).expect("the older one goes");
    assert_eq!(all(folder.path()).expect("a list"), [(42, path)]);
    let newest = read_newest(folder.path(), Design::new(Site(0))).expect("it is read");
    assert_eq!((newest.bytes, newest.landmark), (bytes, Some(landmark)));
    let core = newest.image;
    assert_eq!((core.known(), core.design()), (42, &design));
    let read: Vec<_> = core.usage_of_all().map(|(version, rows)| (version, rows.clone())).collect();
    for (snapshot, (version, rows)) in snapshots.iter().zip(&read) {
        assert_eq!(snapshot.version, *version);
        assert!(snapshot.rows.iter().eq(rows.iter()));
        assert_eq!(snapshot.rows.size(), rows.size());
    }
}

#[test]
fn damage_is_an_error_wherever_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (design, snapshots) = some();
    write(folder.path(), 42, &design, &snapshots, None).expect("it is written");
    let path = path_of(folder.path(), 42);
    let content = fs::read(&path).expect("it is there");
    for at in (0..content.len()).step_by(997).chain(content.len() - 40..content.len()) {
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

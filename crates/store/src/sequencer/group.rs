//! Division of log entries into groups. A group has many entries, because each group costs one wait for the disk; and
//! no more than a group may hold.

use crate::record::LogEntry;

/// Number of submitted entries at which the log is written without waiting for further ones.
pub(super) const ENTRIES_MAX: usize = 10_000;
/// Maximum size of one group's entries in bytes, except for a single larger entry.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// Divides log entries into groups of at most [`BYTES_MAX`] each, in their order.
pub(super) fn groups(mut entries: Vec<LogEntry>) -> Vec<Vec<LogEntry>> {
    let mut groups = Vec::new();
    loop {
        let mut bytes = 0;
        let is_beyond = |entry: &LogEntry| {
            bytes += entry.bytes_max();
            bytes > BYTES_MAX
        };
        match entries.iter().position(is_beyond) {
            Some(end) if entries.len() > 1 => {
                let rest = entries.split_off(end.max(1));
                groups.push(entries);
                entries = rest;
            }
            _ => break,
        }
    }
    if !entries.is_empty() {
        groups.push(entries);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::record::{Author, Body, Epoch, Site, Update, Write};

    fn entry(number: u64, bytes: usize) -> LogEntry {
        let rows = vec![(Key::from_bytes(b"k"), Update::Put(vec![7; bytes].into()))];
        let write = Write { start: Key::least(), version: number, rows };
        let by = Author { site: Site(u16::MAX), epoch: Epoch(u64::MAX), number };
        LogEntry { by, body: Body::Commit(vec![write]) }
    }

    #[test]
    fn groups_have_all_frames_in_their_order_and_are_as_large_as_may_be() {
        const MB: usize = 1024 * 1024;
        let sizes = [1, 3 * MB, 4 * MB, 2 * MB, 20 * MB, 20 * MB, 1, 7 * MB, 10, 20 * MB];
        let entries: Vec<LogEntry> =
            (1..).zip(sizes).map(|(number, size)| entry(number, size)).collect();
        let groups = groups(entries.clone());
        let lengths: Vec<usize> = groups.iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 1, 1, 1, 3, 1]);
        for group in &groups {
            let encoded = crate::log::redo::group(group).unwrap().len();
            assert!(group.len() == 1 || encoded <= BYTES_MAX + 100, "{encoded}");
        }
        assert_eq!(groups.concat(), entries);
        assert!(super::groups(Vec::new()).is_empty());
    }
}

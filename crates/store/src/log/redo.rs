//! The interface of a redo log, in files or in Kafka.
//!
//! A log is an order of log entries, and *reading* establishes the position of an entry. A log that is
//! written by several processes over a network cannot promise its writers more: a reply may be lost although the
//! entries are written, and a writer that then repeats them writes them twice. That is harmless, because a log
//! entry names its author's site, epoch and number, and the second one is void
//! ([`crate::design::Verdict::Void`]).
//!
//! Invariants of each log: positions are consecutive, from 1 on; every reader finds the same log entry at a
//! position, at any time; entries that were appended without an error are delivered.

use std::time::Duration;

use super::group::ALONE;
use super::group::{GroupError, decode};
use super::{Log, LogEntry, LogError, Position, Result, encode, failed, read_segment, segments};

/// An ordered, durable log of the store's commits and design changes. If several threads use a log, each has its own
/// value of this type.
pub trait RedoLog: Send {
    /// Appends log entries as one group. If the method returns no error, the entries are in the log and stay there.
    /// Returns the position of the first entry if the log knows it before the entry is read.
    ///
    /// # Errors
    /// Returns an error if it is unknown whether the entries are in the log. Their author must write nothing else
    /// before reading the log has shown it: log entries after a gap in their author's numbers are void.
    fn append(&mut self, entries: &[LogEntry]) -> Result<Option<Position>>;

    /// Passes available log entries from position `from` on to `see`, in order and with their positions, and returns
    /// the position after the last. If there are no such entries yet and other processes may write some, the method
    /// waits for them, at most for `wait`, or for less if the log has a bound of its own.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read; the entries that were passed before are valid all the same.
    fn deliver(
        &mut self,
        from: Position,
        wait: Duration,
        see: &mut dyn FnMut(Position, LogEntry),
    ) -> Result<Position>;
}

impl RedoLog for Log {
    fn append(&mut self, entries: &[LogEntry]) -> Result<Option<Position>> {
        Log::append(self, entries).map(Some)
    }

    /// Passes the entries of one log file at most, and does not wait: no other process writes this log.
    fn deliver(
        &mut self,
        from: Position,
        _wait: Duration,
        see: &mut dyn FnMut(Position, LogEntry),
    ) -> Result<Position> {
        if from >= self.next {
            return Ok(from);
        }
        let holds = |(first, _): &(Position, _)| *first <= from.max(Position::FIRST);
        let Some((first, path)) = segments(&self.folder)?.into_iter().rfind(holds) else {
            let what = "the entries before it are missing";
            return Err(LogError::Damaged { path: self.folder.clone(), at: 0, what });
        };
        let content = std::fs::read(&path).map_err(failed("read", &path))?;
        let mut next = first;
        let mut see_those = |position, entry| {
            if position >= from {
                see(position, entry);
            }
        };
        read_segment(&path, &content, false, &mut next, &mut see_those)?;
        Ok(next)
    }
}

/// Encodes log entries as a group for a log whose readers count positions, such as one in Kafka: the group contains
/// no position.
pub(crate) fn group(entries: &[LogEntry]) -> Result<Vec<u8>> {
    encode(Position::START, Position::START, entries, ALONE)
}

/// Decodes the log entries of a group from [`group()`].
///
/// # Errors
/// Returns a description of the fault if the bytes are not one such group.
pub(crate) fn ungroup(group: &[u8]) -> std::result::Result<Vec<LogEntry>, &'static str> {
    match decode(group, Position::START, ALONE) {
        Ok(read) if read.end == group.len() => Ok(read.entries),
        Ok(_) => Err("more than a group"),
        Err(GroupError::Torn(what) | GroupError::Wrong(what)) => Err(what),
    }
}

/// Returns the checksum in the header of a group from [`group()`].
pub(crate) fn checksum(group: &[u8]) -> u32 {
    group.get(12..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Sync;
    use crate::record::{Author, Body, Epoch, Site};

    fn entry(number: u64) -> LogEntry {
        LogEntry { by: Author { site: Site(1), epoch: Epoch(1), number }, body: Body::Join }
    }

    #[test]
    fn a_log_in_files_delivers_what_was_appended_from_any_position_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), Sync::Never, 200, |_, _| {}).unwrap();
        let log: &mut dyn RedoLog = &mut log;
        let entries: Vec<LogEntry> = (1..=100).map(entry).collect();
        for (n, group) in entries.chunks(7).enumerate() {
            assert_eq!(log.append(group).unwrap(), Some(Position(7 * n as u64 + 1)));
        }
        for from in (1..=102).map(Position) {
            let (mut next, mut delivered) = (from, Vec::new());
            loop {
                let mut see = |at, entry| delivered.push((at, entry));
                let behind = log.deliver(next, Duration::ZERO, &mut see).unwrap();
                if behind == next {
                    break;
                }
                next = behind;
            }
            let expected = entries.iter().skip(from.0 as usize - 1).cloned();
            assert!(delivered.into_iter().eq(from.onward().zip(expected)), "{from}");
        }
    }

    #[test]
    fn a_group_without_a_position_comes_back_and_half_of_it_does_not() {
        let entries: Vec<LogEntry> = (1..=3).map(entry).collect();
        let written = group(&entries).unwrap();
        assert_eq!(ungroup(&written), Ok(entries));
        for end in 0..written.len() {
            assert!(ungroup(&written[..end]).is_err());
        }
        assert!(ungroup(&[written.clone(), written].concat()).is_err());
    }
}

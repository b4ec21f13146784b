//! Reads a log in a folder group by group, also while it is written. The reader has one group in memory at a time.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::group::{GROUP_BYTES_MAX, GroupError, HEADER, decode, extent};
use super::mark::{self, Mark};
use super::{LogEntry, LogError, MISSING, Position, Result, failed, segment_path, segments_from};

/// Size of the buffer for reading a log file, in bytes.
const BUFFER_BYTES: usize = 256 * 1024;

/// A reader of the log in a folder, which reads one group of log entries at a time, from a position on.
pub(crate) struct LogReader {
    /// Path of the folder that contains the log's files.
    folder: PathBuf,
    /// Position of the log entry that is read next.
    next: Position,
    /// The file that is being read; `None` if the file with the next entry is not open yet.
    segment: Option<Segment>,
}

/// An open file of a log, and the place in it of the next group.
struct Segment {
    /// Path of the log file.
    path: PathBuf,
    /// The open log file, at the start of its next group.
    file: BufReader<File>,
    /// The random bytes with which each group of the file begins.
    mark: Mark,
    /// Offset of the next group in the file, in bytes.
    at: u64,
    /// Position of the first log entry in the next group.
    first: Position,
}

impl Segment {
    /// Opens the log file whose first entry has position `first`, and reads its mark.
    fn open(path: PathBuf, first: Position) -> Result<Self> {
        let file = File::open(&path).map_err(failed("open", &path))?;
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut beginning = [0; mark::LENGTH];
        file.read_exact(&mut beginning).map_err(failed("read", &path))?;
        match mark::of(&beginning) {
            Ok(Some(mark)) => {
                let at = mark::LENGTH as u64;
                Ok(Self { path, file, mark, at, first })
            }
            Ok(None) => Err(LogError::Damaged { path, at: 0, what: "it is cut off" }),
            Err(what) => Err(LogError::Damaged { path, at: 0, what }),
        }
    }

    /// Returns true if no bytes are left in the file.
    fn is_at_end(&mut self) -> Result<bool> {
        let rest = self.file.fill_buf().map_err(failed("read", &self.path))?;
        Ok(rest.is_empty())
    }

    /// Reads the next group of the file, and returns its entries from position `from` on, with their positions. A
    /// group whose entries are all before `from` is skipped.
    fn group(&mut self, from: Position) -> Result<Vec<(Position, LogEntry)>> {
        let damaged = |what| LogError::Damaged { path: self.path.clone(), at: self.at, what };
        let mut bytes = vec![0; HEADER];
        self.file.read_exact(&mut bytes).map_err(failed("read", &self.path))?;
        let (length, many) = extent(&bytes);
        if length > GROUP_BYTES_MAX {
            return Err(damaged("a group's length cannot be true"));
        }
        let behind = self.first + u64::from(many);
        let mut entries = Vec::new();
        if behind <= from {
            let length = i64::try_from(length).expect("it is less than 256 MB");
            self.file.seek_relative(length).map_err(failed("read", &self.path))?;
        } else {
            let mut rest = (&mut self.file).take(length as u64);
            rest.read_to_end(&mut bytes).map_err(failed("read", &self.path))?;
            let group = decode(&bytes, self.first, self.mark);
            let group = group.map_err(|unread| match unread {
                GroupError::Torn(what) | GroupError::Wrong(what) => damaged(what),
            })?;
            let read = group.first.onward().zip(group.entries);
            entries.extend(read.filter(|(position, _)| *position >= from));
        }
        self.at += (HEADER + length) as u64;
        self.first = behind;
        Ok(entries)
    }
}

impl LogReader {
    /// Returns a reader of the log in `folder` whose next entry is the one at position `next`, and opens the file
    /// with that entry if there is one; an open file stays readable when it is removed.
    ///
    /// # Errors
    /// Returns an error if the log begins after the position, or its file cannot be opened.
    pub fn at(folder: &Path, next: Position) -> Result<Self> {
        let first = segments_from(folder, next)?.into_iter().next();
        let segment = first.map(|(first, path)| Segment::open(path, first)).transpose()?;
        Ok(Self { folder: folder.to_owned(), next, segment })
    }

    /// Reads the entries of the next group, and returns them with the position of the first. The log must have all
    /// entries up to `upto`; if the reader is past that position, it returns no entries.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read, or lacks an entry up to `upto`.
    pub fn read(&mut self, upto: Position) -> Result<(Position, Vec<LogEntry>)> {
        let first = self.next;
        while self.next <= upto {
            let segment = match &mut self.segment {
                Some(segment) => segment,
                None => {
                    let path = segment_path(&self.folder, self.next);
                    self.segment.insert(Segment::open(path, self.next)?)
                }
            };
            if segment.is_at_end()? {
                let (path, at, reached) = (segment.path.clone(), segment.at, segment.first);
                self.segment = None;
                if reached != self.next {
                    return Err(LogError::Damaged { path, at, what: MISSING });
                }
                continue;
            }
            let entries = segment.group(self.next)?;
            if let Some((last, _)) = entries.last() {
                self.next = *last + 1;
                return Ok((first, entries.into_iter().map(|(_, entry)| entry).collect()));
            }
        }
        Ok((first, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Log, Sync};
    use crate::record::{Author, Body, Epoch, Site};

    fn entry(number: u64) -> LogEntry {
        LogEntry { by: Author { site: Site(1), epoch: Epoch(1), number }, body: Body::Join }
    }

    #[test]
    fn entries_are_read_from_any_position_over_all_files_while_others_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), Sync::Never, 300, |_, _| {}).unwrap();
        let entries: Vec<LogEntry> = (1..=200).map(entry).collect();
        let (early, late) = entries.split_at(100);
        early.chunks(7).for_each(|group| _ = log.append(group).unwrap());
        let mut readers: Vec<(u64, LogReader)> = (1..=101)
            .map(|from| (from, LogReader::at(folder.path(), Position(from)).unwrap()))
            .collect();
        let mut read: Vec<Vec<LogEntry>> = vec![Vec::new(); readers.len()];
        let mut read_upto = |upto: u64, readers: &mut Vec<(u64, LogReader)>| {
            for ((from, reader), read) in readers.iter_mut().zip(&mut read) {
                loop {
                    let (first, more) = reader.read(Position(upto)).unwrap();
                    if more.is_empty() {
                        break;
                    }
                    assert_eq!(first, Position(*from + read.len() as u64));
                    read.extend(more);
                }
                assert_eq!(read.len() as u64, upto + 1 - *from);
            }
        };
        read_upto(100, &mut readers);
        late.chunks(5).for_each(|group| _ = log.append(group).unwrap());
        read_upto(200, &mut readers);
        for ((from, _), read) in readers.iter().zip(read) {
            assert_eq!(read, entries[*from as usize - 1..], "from {from}");
        }
        let missing = LogReader::at(folder.path(), Position(201)).unwrap().read(Position(201));
        assert!(missing.is_err(), "it is not written yet");
    }
}

//! The embedded log: log entries in files, in the order of submission.
//!
//! Log entries are written in *groups*: all entries that arrived while the last group was written are written and
//! made durable together. A group contains its checksum and the position up to which the log was durable when the
//! group was written. When the log is opened, the last file may end in an incomplete group, because the machine
//! stopped while it was written. That group is cut off: no reply was sent for it. If a broken group had been durable,
//! as a later group or the existence of a later file shows, replies were sent for it, and opening fails instead of
//! losing it silently.
//!
//! A log whose disk failed to sync accepts no more entries: the contents of the disk after such a failure are
//! unknown. A log whose disk is full takes back the written part of the group.
//!
//! Invariants:
//! 1. Positions are consecutive, from 1 on, over all files; a file is named by its first position.
//! 2. Entries that were reported as durable are read again, or opening fails; except the entries after the
//!    last group that records their durability, which cannot be told from a torn end.
//! 3. A group is read as a whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::record::{LogEntry, Position};

mod folder;
mod group;
mod mark;
mod reader;
pub(crate) mod redo;
mod runs;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use folder::{FolderLock, failed, lock_folder, sync_folder};
pub use group::GROUP_BYTES_MAX;
use group::encode;
use mark::Mark;
pub(crate) use reader::LogReader;
pub use redo::RedoLog;
pub(crate) use runs::Runs;
pub use segment::CutTail;
use segment::read_segment;

/// Description of the fault of a log that lacks a file, for [`LogError::Damaged`].
const MISSING: &str = "entries before it, or of it, are missing";

/// The time at which written entries are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Entries are made durable before they are acknowledged.
    Always,
    /// Entries are made durable with the first group after this interval since the last sync. Without further groups,
    /// the caller must call [`Log::sync`]. If the machine stops, entries since the last sync are lost.
    Every(Duration),
    /// The operating system decides. Entries survive the end of the process, but not a stop of the machine.
    Never,
}

/// The error of an operation on a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// An operation on a file or folder of the log failed.
    #[error("cannot {doing} {path}")]
    Io {
        /// The operation that failed, as a verb phrase such as `write to`.
        doing: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// An earlier sync failed: only opening the log again shows its content.
    #[error(
        "an earlier sync of {path} failed: the log accepts no entries until it is opened again"
    )]
    Unsure {
        /// Path of the file whose sync failed.
        path: PathBuf,
    },
    /// A part of the log that was durable is damaged or missing.
    #[error(
        "{path} is damaged at byte {at}: {what}; the entries after it were acknowledged, and are \
         not dropped"
    )]
    Damaged {
        /// Path of the damaged file, or of the log's folder if a file is missing.
        path: PathBuf,
        /// Offset of the fault in the damaged file, in bytes; 0 for a folder.
        at: u64,
        /// Description of the fault.
        what: &'static str,
    },
    /// Another process has locked the log's folder.
    #[error("{path} is in use by another process")]
    InUse {
        /// Path of the log's folder.
        path: PathBuf,
    },
    /// The folder contains the data of another log.
    #[error("{path} has {what}: choose another folder, or start the store with that log")]
    Foreign {
        /// Path of the folder.
        path: PathBuf,
        /// Description of what the folder contains.
        what: &'static str,
    },
    /// An operation on a remote log failed.
    #[error("cannot {doing} {log}: {why}")]
    Remote {
        /// The operation that failed, as a verb such as `read`.
        doing: &'static str,
        /// Description of the remote log.
        log: String,
        /// The cause of the failure.
        why: String,
    },
    /// A group of log entries exceeds the maximum size of a group.
    #[error("a group of {bytes} bytes is too large: at most {GROUP_BYTES_MAX}")]
    TooLarge {
        /// Size of the group's encoded entries, in bytes.
        bytes: usize,
    },
}

impl LogError {
    /// Returns true if the error is that the disk is full; the operation may succeed later.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }
}

/// The result of an operation on a log.
pub type Result<T> = std::result::Result<T, LogError>;

/// The file that a log writes: the operations that the log executes on it.
pub trait Medium: Send {
    /// Writes all bytes at the end of the file.
    ///
    /// # Errors
    /// Returns an error if not all bytes were written; the number of written bytes is then unknown.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes all bytes durable that were written to the file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not durable, or may not be.
    fn sync(&mut self) -> io::Result<()>;
    /// Truncates the file to this number of bytes.
    ///
    /// # Errors
    /// Returns an error if the file was not truncated.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

impl Medium for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

/// A log in a folder, open for writing.
pub struct Log {
    /// Path of the folder that contains the log's files.
    folder: PathBuf,
    /// The lock that keeps other processes out of the folder.
    _lock: FolderLock,
    /// The time at which written entries are made durable.
    sync: Sync,
    /// Maximum size of a file in bytes; a group that does not fit is written to the next file.
    segment_bytes: u64,
    /// Path of the file that the log writes at present.
    path: PathBuf,
    /// The file that the log writes at present.
    medium: Box<dyn Medium>,
    /// The random first bytes of each group in the file that is written.
    mark: Mark,
    /// Size of the file that is written, in bytes.
    bytes: u64,
    /// Size of the group that was written last, in bytes; 0 before the first since the log was opened.
    group_bytes: u64,
    /// Position of the log entry that is appended next.
    next: Position,
    /// Position of the last log entry that is durable.
    durable: Position,
    /// Time of the last sync of the file, or of opening the log.
    synced: Instant,
    /// True if the log accepts no more entries, because the content of the disk is unknown.
    is_unsure: bool,
    /// The incomplete end that was cut off when the log was opened, if there was one.
    cut: Option<CutTail>,
}

impl Log {
    /// Opens the log in a folder, which is created if it does not exist, and passes all entries to `see`. A group
    /// that would make a file larger than `segment_bytes` bytes is written to a new file.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used, another process has locked it, or the log is damaged.
    pub fn open(
        folder: &Path,
        sync: Sync,
        segment_bytes: u64,
        see: impl FnMut(Position, LogEntry),
    ) -> Result<Self> {
        Self::open_from(folder, sync, segment_bytes, Position::FIRST, see)
    }

    /// Opens a log as [`Log::open`] does, for a caller that has all log entries before position `from`: these may be
    /// missing, and are not read.
    ///
    /// # Errors
    /// Returns the errors of [`Log::open`].
    pub fn open_from(
        folder: &Path,
        sync: Sync,
        segment_bytes: u64,
        from: Position,
        mut see: impl FnMut(Position, LogEntry),
    ) -> Result<Self> {
        let lock = lock_folder(folder)?;
        let segments = segments_from(folder, from)?;
        let mut next = segments.first().map_or(from, |(first, _)| *first);
        let mut see = |position, entry| {
            if position >= from {
                see(position, entry);
            }
        };
        let mut tail = None;
        for (n, (first, path)) in segments.iter().enumerate() {
            if *first != next {
                return Err(LogError::Damaged { path: path.clone(), at: 0, what: MISSING });
            }
            let is_last = n + 1 == segments.len();
            let content = fs::read(path).map_err(failed("read", path))?;
            let whole = read_segment(path, &content, is_last, &mut next, &mut see)?;
            if whole < content.len() {
                let file = OpenOptions::new().write(true).open(path);
                let cut = file.and_then(|file| {
                    file.set_len(whole as u64)?;
                    file.sync_all()
                });
                cut.map_err(failed("cut", path))?;
                let (at, bytes) = (whole as u64, (content.len() - whole) as u64);
                tail = Some(CutTail { path: path.clone(), at, bytes });
            }
        }
        let path = match segments.last() {
            // The end of the log is lost, but the caller has its content from elsewhere.
            Some(_) if next < from => segment_path(folder, from),
            Some((_, path)) => path.clone(),
            None => segment_path(folder, next),
        };
        let next = next.max(from);
        let (bytes, mark) = mark::make_file_durable(&path)?;
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(failed("open", &path))?;
        sync_folder(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            _lock: lock,
            sync,
            segment_bytes,
            path,
            medium: Box::new(file),
            mark,
            bytes,
            group_bytes: 0,
            next,
            durable: next - 1,
            synced: Instant::now(),
            is_unsure: false,
            cut: tail,
        })
    }

    /// Returns the incomplete end that was cut off when the log was opened; `None` if there was none.
    #[must_use]
    pub fn cut_tail(&self) -> Option<&CutTail> {
        self.cut.as_ref()
    }

    /// Returns the position that the next appended log entry gets.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// Returns the position of the last log entry that survives a stop of the machine.
    #[must_use]
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Returns the size of the last group since the log was opened, in bytes; 0 if none was written.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        self.group_bytes
    }

    /// Returns true if the log accepts no entries until it is opened again: the disk's content is unknown.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Returns the time until [`Log::sync`] is due; `None` without [`Sync::Every`] or entries to sync.
    #[must_use]
    pub fn due_in(&self) -> Option<Duration> {
        let Sync::Every(time) = self.sync else { return None };
        let is_waiting = self.durable + 1 < self.next && !self.is_unsure;
        is_waiting.then(|| time.saturating_sub(self.synced.elapsed()))
    }

    /// Appends log entries as one group, and returns the position of the first. With [`Sync::Always`] the entries are
    /// durable when the method returns.
    ///
    /// # Errors
    /// Returns an error if the entries were not written, or not made durable when that was due; always after a failed
    /// sync.
    pub fn append(&mut self, entries: &[LogEntry]) -> Result<Position> {
        let first = self.next;
        if self.is_unsure {
            return Err(LogError::Unsure { path: self.path.clone() });
        }
        if entries.is_empty() {
            return Ok(first);
        }
        let mut group = encode(first, self.durable, entries, self.mark)?;
        let is_empty = self.bytes <= mark::LENGTH as u64;
        if !is_empty && self.bytes + group.len() as u64 > self.segment_bytes {
            self.begin_segment()?;
            group = encode(first, self.durable, entries, self.mark)?;
        }
        if let Err(source) = self.medium.append(&group) {
            // A part of a group must not be followed by another group.
            self.is_unsure = self.medium.cut(self.bytes).is_err();
            return Err(failed("write to", &self.path)(source));
        }
        self.group_bytes = group.len() as u64;
        self.bytes += self.group_bytes;
        self.next += entries.len() as u64;
        let is_due = match self.sync {
            Sync::Always => true,
            Sync::Every(time) => self.synced.elapsed() >= time,
            Sync::Never => false,
        };
        if is_due {
            self.sync()?;
        }
        Ok(first)
    }

    /// Makes all log entries durable that were written.
    ///
    /// # Errors
    /// Returns an error if entries are not durable; the log then accepts no more entries.
    pub fn sync(&mut self) -> Result<()> {
        if self.is_unsure {
            return Err(LogError::Unsure { path: self.path.clone() });
        }
        if let Err(source) = self.medium.sync() {
            self.is_unsure = true;
            return Err(failed("sync", &self.path)(source));
        }
        (self.durable, self.synced) = (self.next - 1, Instant::now());
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<()> {
        // The existence of a later file proves that all before it was durable.
        self.sync()?;
        let path = segment_path(&self.folder, self.next);
        let made = mark::make(&path).and_then(|made| sync_folder(&self.folder).map(|()| made));
        match made {
            Ok((file, mark)) => {
                let bytes = mark::LENGTH as u64;
                (self.path, self.medium, self.mark, self.bytes) =
                    (path, Box::new(file), mark, bytes);
                Ok(())
            }
            Err(error) => {
                // With a partly made new file, the old one must not be written any more.
                let is_gone = fs::remove_file(&path).is_ok() && sync_folder(&self.folder).is_ok();
                self.is_unsure = !is_gone;
                Err(error)
            }
        }
    }
}

/// Passes the entries of the log in `folder` from position `from` to `upto`, both included, to `see`; also while a
/// process writes the log.
///
/// # Errors
/// Returns an error if the log lacks an entry in that range, or is damaged.
pub fn read(
    folder: &Path,
    from: Position,
    upto: Position,
    mut see: impl FnMut(Position, LogEntry),
) -> Result<()> {
    if upto < from {
        return Ok(());
    }
    let segments = segments_from(folder, from)?;
    let mut next = segments.first().map_or(from, |(first, _)| *first);
    let mut see = |position, entry| {
        if (from..=upto).contains(&position) {
            see(position, entry);
        }
    };
    for (first, path) in segments {
        if next > upto {
            break;
        }
        if first != next {
            return Err(LogError::Damaged { path, at: 0, what: MISSING });
        }
        let content = fs::read(&path).map_err(failed("read", &path))?;
        // The bytes after a complete group may be a group that is being written.
        let whole = read_segment(&path, &content, true, &mut next, &mut see)?;
        if next <= upto && whole < content.len() {
            let what = "the log ends there, and more was written";
            return Err(LogError::Damaged { path, at: whole as u64, what });
        }
    }
    if next <= upto {
        return Err(LogError::Damaged { path: folder.to_owned(), at: 0, what: MISSING });
    }
    Ok(())
}

/// Removes the files of the log in `folder` that contain no entries after `position`.
///
/// # Errors
/// Returns an error if a file cannot be removed; other files may have been removed.
pub fn drop_before(folder: &Path, position: Position) -> Result<()> {
    let needed = segments_from(folder, position + 1)?;
    let Some((first_needed, _)) = needed.first() else { return Ok(()) };
    for (first, path) in segments(folder)? {
        if first < *first_needed {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// Returns the files that contain entries from a position on, each with the position of its first entry. The first
/// file may begin before the position.
fn segments_from(folder: &Path, from: Position) -> Result<Vec<(Position, PathBuf)>> {
    let mut segments = segments(folder)?;
    let first = segments.iter().rposition(|(first, _)| *first <= from);
    match (first, segments.first()) {
        (Some(first), _) => Ok(segments.split_off(first)),
        (None, Some((_, path))) => {
            Err(LogError::Damaged { path: path.clone(), at: 0, what: MISSING })
        }
        (None, None) => Ok(Vec::new()),
    }
}

/// Returns true if the folder contains a file of a log.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub(crate) fn is_in(folder: &Path) -> Result<bool> {
    segments(folder).map(|segments| !segments.is_empty())
}

fn segment_path(folder: &Path, first: Position) -> PathBuf {
    folder.join(format!("{first:020}.log"))
}

/// Returns the files of the log in a folder with the positions of their first entries, sorted by these.
fn segments(folder: &Path) -> Result<Vec<(Position, PathBuf)>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let path = entry.map_err(failed("list", folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(first) =
            name.strip_suffix(".log").and_then(|first| first.parse().ok().map(Position))
        {
            segments.push((first, path));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

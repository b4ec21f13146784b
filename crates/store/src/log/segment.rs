//! Reads one file of a log, and detects where its complete groups end.

use std::path::{Path, PathBuf};

use super::group::{GroupError, decode, was_durable};
use super::{LogEntry, LogError, Position, Result, mark};

/// The bytes at the end of a log that were no complete group of entries, and were cut off when the log was opened.
/// Either the machine or the process stopped while the group was written, before any client was told that it is
/// durable; or the disk has damaged the last group since, which cannot be told from the first case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    /// Path of the log's last file, whose end was cut off.
    pub path: PathBuf,
    /// Offset in bytes in that file at which it was cut; the size that it has now.
    pub at: u64,
    /// Number of bytes that were cut off the file.
    pub bytes: u64,
}

impl std::fmt::Display for CutTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, at, bytes } = self;
        write!(
            f,
            "the log's end was cut off: {bytes} bytes from byte {at} of {} on",
            path.display()
        )
    }
}

/// Passes the entries of a log file to `see`, with their positions, and returns the total size in bytes of the file's
/// beginning and its complete groups. `next` is the position of the file's first entry, and is advanced past each
/// entry. Only the last file of a log (`is_last`) may end in an incomplete group.
pub(super) fn read_segment(
    path: &Path,
    content: &[u8],
    is_last: bool,
    next: &mut Position,
    see: &mut impl FnMut(Position, LogEntry),
) -> Result<usize> {
    let damaged =
        |at: usize, what| LogError::Damaged { path: path.to_owned(), at: at as u64, what };
    let mark = match mark::of(content) {
        Ok(Some(mark)) => mark,
        // A file without a beginning has no groups.
        Ok(None) if is_last => return Ok(0),
        Ok(None) => return Err(damaged(0, "it is cut off")),
        Err(what) => return Err(damaged(0, what)),
    };
    let mut at = mark::LENGTH;
    while at < content.len() {
        match decode(&content[at..], *next, mark) {
            Ok(group) => {
                for (position, entry) in group.first.onward().zip(group.entries) {
                    see(position, entry);
                    *next = position + 1;
                }
                at += group.end;
            }
            Err(GroupError::Torn(_)) if is_last && !was_durable(&content[at..], *next, mark) => {
                break;
            }
            Err(GroupError::Torn(what) | GroupError::Wrong(what)) => {
                return Err(damaged(at, what));
            }
        }
    }
    Ok(at)
}

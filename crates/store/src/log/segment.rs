//! Reading one file of a log, and the end of the file.

use std::path::{Path, PathBuf};

use super::group::{Unread, decode, was_durable};
use super::{LogEntry, LogError, Position, Result, mark};

/// The end of a log that was no whole group, and was cut off when the log was opened: the machine or the
/// process stopped while it was written, before any client was told that it is durable; or the disk damaged the
/// last group since, which cannot be told from that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    /// The segment.
    pub path: PathBuf,
    /// Position of the cut, in bytes.
    pub at: u64,
    /// Bytes behind the cut.
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

/// Reads a file's groups, and returns how much of it is whole.
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
        // Nothing is written behind one that is not there.
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
            Err(Unread::Torn(_)) if is_last && !was_durable(&content[at..], *next, mark) => break,
            Err(Unread::Torn(what) | Unread::Wrong(what)) => {
                return Err(damaged(at, what));
            }
        }
    }
    Ok(at)
}

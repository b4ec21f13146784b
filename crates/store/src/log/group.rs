//! A group of log entries as bytes: how it is written, and how one that is whole is told from one that is not.

use super::mark::Mark;
use super::{LogError, Result};
use crate::record::{LogEntry, Position};

/// Begins a group that is alone where it is. The last byte is the format's version.
pub(super) const ALONE: Mark = *b"imagolg1";
/// Mark, length of the log entries, checksum, first position, how many log entries, durable position.
pub(super) const HEADER: usize = 8 + 4 + 4 + 8 + 4 + 8;
/// The log entries of a group, in bytes; a longer one is no group of ours.
pub const GROUP_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A group as it was read.
pub(super) struct Group {
    pub first: Position,
    pub entries: Vec<LogEntry>,
    /// The end of the group in its file, in bytes.
    pub end: usize,
}

/// The reason why bytes are not a group.
pub(super) enum Unread {
    /// As a machine leaves it that stops while it writes.
    Torn(&'static str),
    /// It was written like this.
    Wrong(&'static str),
}

/// True if a later group says that the position was durable when it was written.
pub(super) fn was_durable(rest: &[u8], position: Position, mark: Mark) -> bool {
    memchr::memmem::find_iter(rest, &mark).any(|at| {
        let later = &rest[at..];
        // Its own position is what its header says; only the checksum is believed.
        let first = position_at(later, 16);
        let durable = position_at(later, 28);
        let is_whole =
            first.is_some_and(|first| first > position && decode(later, first, mark).is_ok());
        is_whole && durable.is_some_and(|durable| durable >= position)
    })
}

fn position_at(group: &[u8], at: usize) -> Option<Position> {
    header_field(group, at).map(|field| Position(u64::from_le_bytes(field)))
}

fn header_field<const N: usize>(group: &[u8], at: usize) -> Option<[u8; N]> {
    group.get(at..at + N)?.try_into().ok()
}

pub(super) fn encode(
    first: Position,
    durable: Position,
    entries: &[LogEntry],
    mark: Mark,
) -> Result<Vec<u8>> {
    let mut group = vec![0; HEADER];
    for entry in entries {
        group = postcard::to_extend(entry, group).expect("entries are plain data in memory");
    }
    let bytes = group.len() - HEADER;
    let (Ok(length), true) = (u32::try_from(bytes), bytes <= GROUP_BYTES_MAX) else {
        return Err(LogError::TooLarge { bytes });
    };
    let many = u32::try_from(entries.len()).expect("an entry has at least one byte");
    group[..8].copy_from_slice(&mark);
    group[8..12].copy_from_slice(&length.to_le_bytes());
    group[16..24].copy_from_slice(&first.0.to_le_bytes());
    group[24..28].copy_from_slice(&many.to_le_bytes());
    group[28..36].copy_from_slice(&durable.0.to_le_bytes());
    let checksum = checksum(&group);
    group[12..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(group)
}

/// Of everything but itself.
pub(super) fn checksum(group: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&group[..12]);
    hasher.update(&group[16..]);
    hasher.finalize()
}

pub(super) fn decode(
    from: &[u8],
    expected: Position,
    mark: Mark,
) -> std::result::Result<Group, Unread> {
    use Unread::{Torn, Wrong};

    if from.len() < HEADER {
        return Err(Torn("a group's header is cut off"));
    }
    if from[..8] != mark {
        return Err(Torn("no group begins here"));
    }
    let field = |at| header_field(from, at).map_or(0, u32::from_le_bytes);
    let (length, stored, many) = (field(8) as usize, field(12), field(24));
    if length > GROUP_BYTES_MAX {
        return Err(Torn("a group's length cannot be true"));
    }
    let group = from.get(..HEADER + length).ok_or(Torn("a group is cut off"))?;
    if checksum(group) != stored {
        return Err(Torn("a group's checksum is wrong"));
    }
    // From here on it is a group that was written, and replied to.
    let first = position_at(from, 16).unwrap_or_default();
    if first != expected {
        return Err(Wrong("a group is out of its order"));
    }
    let mut rest = &group[HEADER..];
    let mut entries = Vec::new();
    for _ in 0..many {
        let (entry, behind) = postcard::take_from_bytes(rest)
            .map_err(|_| Wrong("a group's entries cannot be read by this version"))?;
        entries.push(entry);
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(Wrong("a group has more than its entries"));
    }
    Ok(Group { first, entries, end: HEADER + length })
}

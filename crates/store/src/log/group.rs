//! The format of a group, which is a number of consecutive log entries with a header: encoding, decoding, and telling
//! complete groups from other bytes.

use super::mark::Mark;
use super::{LogError, Result};
use crate::record::{LogEntry, Position};

/// The mark at the beginning of a group that is stored outside a log file, for example in Kafka. The last byte is the
/// format's version.
pub(super) const ALONE: Mark = *b"imagolg1";
/// Size of a group's header in bytes: mark, length of the encoded entries, checksum, first position, number of
/// entries, durable position.
pub(super) const HEADER: usize = 8 + 4 + 4 + 8 + 4 + 8;
/// Maximum size of the encoded entries of one group, in bytes.
pub const GROUP_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A group of log entries that was decoded.
pub(super) struct Group {
    /// Position of the group's first log entry.
    pub first: Position,
    /// The group's log entries, in order.
    pub entries: Vec<LogEntry>,
    /// Size of the group in bytes, header included.
    pub end: usize,
}

/// The reason why bytes are not the expected group of log entries.
pub(super) enum GroupError {
    /// The bytes may be an incomplete group, which a machine left that stopped while it wrote.
    Torn(&'static str),
    /// The bytes are a group that was written completely, but not the expected one.
    Wrong(&'static str),
}

/// Returns true if a later group in `rest`, which begins with `mark`, records that the log was durable up to
/// `position` when that group was written.
pub(super) fn was_durable(rest: &[u8], position: Position, mark: Mark) -> bool {
    memchr::memmem::find_iter(rest, &mark).any(|at| {
        let later = &rest[at..];
        // The later group's position is read from its header; the checksum proves that it is one.
        let first = position_at(later, 16);
        let durable = position_at(later, 28);
        let is_whole =
            first.is_some_and(|first| first > position && decode(later, first, mark).is_ok());
        is_whole && durable.is_some_and(|durable| durable >= position)
    })
}

/// Returns the log position that a group's header contains at offset `at` in bytes; `None` if the header is cut off.
fn position_at(group: &[u8], at: usize) -> Option<Position> {
    header_field(group, at).map(|field| Position(u64::from_le_bytes(field)))
}

/// Returns the bytes at offset `at` of a group's header; `None` if the header is cut off.
fn header_field<const N: usize>(group: &[u8], at: usize) -> Option<[u8; N]> {
    group.get(at..at + N)?.try_into().ok()
}

/// Returns the size in bytes and the number of a group's entries, as its header gives them.
pub(super) fn extent(header: &[u8]) -> (usize, u32) {
    let field = |at| header_field(header, at).map_or(0, u32::from_le_bytes);
    (field(8) as usize, field(24))
}

/// Encodes log entries as a group that begins with `mark`. `first` is the position of the first entry, and `durable`
/// the position up to which the log is durable now.
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

/// Returns the checksum of all bytes of a group except those that store the checksum.
pub(super) fn checksum(group: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&group[..12]);
    hasher.update(&group[16..]);
    hasher.finalize()
}

/// Decodes the group at the beginning of `from`, which must have the given mark, and `expected` as its first
/// position.
pub(super) fn decode(
    from: &[u8],
    expected: Position,
    mark: Mark,
) -> std::result::Result<Group, GroupError> {
    use GroupError::{Torn, Wrong};

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
    // From here on the bytes are a group that was written, and acknowledged.
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

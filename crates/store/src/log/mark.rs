//! The beginning of a log file, which contains the file's *mark*: eight random bytes with which each group of log
//! entries in the file begins.
//!
//! The file also contains clients' values, byte for byte. After an incomplete group the reader searches for
//! later groups that prove its durability. Without the mark a client could store the bytes of such a group as
//! a value, and a log that was only torn would look damaged. Clients do not know the mark.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write as _;
use std::path::Path;

use super::folder::make_durable;
use super::{Result, failed};

/// Eight random bytes with which each group of log entries in one file begins, so that the reader recognises groups.
pub(super) type Mark = [u8; 8];

/// The first bytes of each log file. The last byte is the format's version.
const MAGIC: [u8; 8] = *b"imagolg2";
/// Size of a log file's beginning in bytes: magic bytes, mark, and the checksum of both.
pub(super) const LENGTH: usize = 8 + 8 + 4;

/// Returns a new random mark, and the beginning of a log file with that mark.
fn drawn() -> (Mark, [u8; LENGTH]) {
    let mark = RandomState::new().build_hasher().finish().to_le_bytes();
    (mark, beginning(mark))
}

/// Returns the beginning of a log file with this mark.
fn beginning(mark: Mark) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&mark);
    let checksum = crc32fast::hash(&bytes[..16]);
    bytes[16..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the mark of the log file with this content, or `None` if the machine stopped before the file's beginning
/// was written. The beginning is durable before groups are written after it.
///
/// # Errors
/// Returns a description of the fault if the file's beginning is damaged or of another version.
pub(super) fn of(content: &[u8]) -> std::result::Result<Option<Mark>, &'static str> {
    let Some(bytes) = content.first_chunk::<LENGTH>() else { return Ok(None) };
    let mark = [8, 9, 10, 11, 12, 13, 14, 15].map(|at| bytes[at]);
    if *bytes == beginning(mark) {
        return Ok(Some(mark));
    }
    let is_ours = bytes[..7] == MAGIC[..7] && bytes[7] != MAGIC[7];
    Err(if is_ours {
        "it is of another version of this format"
    } else {
        "its beginning is damaged"
    })
}

/// Makes a new log file at the path, which contains only a beginning with a random mark, and makes its content
/// durable. Returns the open file and the mark.
pub(super) fn make(path: &Path) -> Result<(File, Mark)> {
    let file = OpenOptions::new().create_new(true).append(true).open(path);
    let mut file = file.map_err(failed("make", path))?;
    let (mark, bytes) = drawn();
    let written = file.write_all(&bytes).and_then(|()| file.sync_all());
    written.map_err(failed("write to", path))?;
    Ok((file, mark))
}

/// Makes the content of the log file at the path durable; if the file has no valid beginning, replaces its content by
/// a new beginning. Returns the size of the file in bytes, and its mark.
pub(super) fn make_file_durable(path: &Path) -> Result<(u64, Mark)> {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed("read", path)(error)),
    };
    if let Ok(Some(mark)) = of(&content) {
        return Ok((make_durable(path)?, mark));
    }
    let (mark, bytes) = drawn();
    std::fs::write(path, bytes).map_err(failed("write to", path))?;
    Ok((make_durable(path)?, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_and_one_that_changed_is_damage() {
        let (mark, bytes) = drawn();
        assert_eq!(of(&[&bytes[..], b"groups"].concat()), Ok(Some(mark)));
        assert_ne!(drawn().0, mark);
        for at in 0..LENGTH {
            assert_eq!(of(&bytes[..at]), Ok(None), "it was not written whole");
            let mut changed = bytes;
            changed[at] ^= 1;
            assert!(of(&changed).is_err(), "byte {at}");
        }
        assert_eq!(
            of(b"imagolg1 and what lies behind"),
            Err("it is of another version of this format")
        );
    }
}

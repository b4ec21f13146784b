//! Detection of a trace file's format by its first bytes.
//!
//! For a file that is not a trace, the error names its probable type: most often it is compressed, or another export.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::{Error, format, from_csv, from_oracle_general};

/// Number of bytes at the start of a file that are examined.
const HEAD_BYTES: u64 = 4096;

/// The file formats of traces that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// An `.imt` file.
    Imago,
    /// CSV with the columns of a trace, read by [`super::from_csv`].
    Csv,
    /// Records of libCacheSim's `oracleGeneral`.
    OracleGeneral,
}

/// Magic numbers of files that are mistaken for traces, and the description of each for the error.
const FOREIGN: [(&[u8], &str); 10] = [
    (b"\x1f\x8b", "it is compressed by gzip: decompress it first"),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed by zstd, as libCacheSim's traces are: decompress it first",
    ),
    (b"\xfd7zXZ\0", "it is compressed by xz: decompress it first"),
    (b"BZh", "it is compressed by bzip2: decompress it first"),
    (b"PK\x03\x04", "it is a zip archive: unpack it first"),
    (b"PAR1", "it is a Parquet file: export it as CSV"),
    (b"\x7fELF", "it is a program"),
    (b"\xff\xfe", "it is text in UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "it is text in UTF-16: save it as UTF-8"),
    (
        b"\x6d\xe2\x99\x81",
        "it is an archive of mongodump, which has documents and not the order of reads",
    ),
];

/// Detects the format of a file, and rewinds the file to its start; `path` names it in errors.
pub(super) fn form(mut file: &File, path: &Path) -> Result<Form, Error> {
    let mut head = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut head).map_err(Error::io("read", path))?;
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    file.seek(SeekFrom::Start(0)).map_err(Error::io("read", path))?;
    of(&head, length).map_err(|looks| Error::Foreign { path: path.to_owned(), looks })
}

/// Detects the format from `head`, the first bytes of a file of `length` bytes.
///
/// # Errors
/// A description of the file, which is not a trace.
fn of(head: &[u8], length: u64) -> Result<Form, String> {
    if head.is_empty() {
        return Err("it is empty".into());
    }
    if head.starts_with(&format::MAGIC) || format::MAGIC.starts_with(head) {
        return Ok(Form::Imago);
    }
    if head.get(1..4) == Some(b"IMT") || head.starts_with(b"IMT") {
        return Err(
            "it is an .imt file whose first bytes are damaged, as by a transfer as text".into()
        );
    }
    if let Some((_, looks)) = FOREIGN.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err((*looks).into());
    }
    if let Some(text) = text(head) {
        let line = text.trim_start_matches('\u{feff}').lines().next().unwrap_or_default();
        if from_csv::Columns::of(line.split(',')).is_ok() {
            return Ok(Form::Csv);
        }
        if line.trim_start().starts_with(['{', '[']) {
            return Err("it is JSON".into());
        }
        let line: String = line.chars().take(60).collect();
        return Err(format!("it is text whose first line is {line:?}"));
    }
    if from_oracle_general::is_plausible(head, length) {
        return Ok(Form::OracleGeneral);
    }
    let document = head.first_chunk().map(|size| u32::from_le_bytes(*size));
    if document.is_some_and(|size| size >= 5 && head.get(size as usize - 1) == Some(&0)) {
        return Err(
            "it is BSON, as of mongodump, which has documents and not the order of reads".into()
        );
    }
    Err(format!("it is {length} bytes that are neither text nor whole records of a known form"))
}

/// Returns the bytes as text, without a last character that is cut off; `None` if the bytes are not printable UTF-8.
fn text(head: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let printable = |char: char| !char.is_control() || matches!(char, '\t' | '\n' | '\r');
    text.chars().all(printable).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_told_by_its_columns_and_not_by_its_name() {
        assert_eq!(of(b"phase,key,bytes\n0,17,120\n", 26), Ok(Form::Csv));
        assert_eq!(of(b"\xef\xbb\xbftime,key,bytes\r\n0.5,17,120\r\n", 32), Ok(Form::Csv));
    }

    #[test]
    fn a_foreign_file_is_told_by_its_look() {
        let look = |head: &[u8]| of(head, head.len() as u64).unwrap_err();
        assert!(look(b"\x28\xb5\x2f\xfd rest").contains("zstd"));
        assert!(look(b"{\"a\": 1}\n").contains("JSON"));
        assert!(look(b"time,op\n1,get\n").contains("\"time,op\""));
        assert!(look(b"").contains("empty"));
        assert!(look(b"\x89IMT\n\x1a\nrest").contains("as by a transfer as text"));
        assert!(look(&bson::doc! { "_id": 1_i64 }.to_vec().unwrap()).contains("mongodump"));
        assert!(look(&[1, 2, 3, 0, 9]).contains("5 bytes"));
    }
}

//! A document that differs, and the file in which `verify` passes such documents to `repair`.

use std::io::BufRead;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::bson::ext_json::{ExtJson, Json};
use crate::bson::order::Id;
use crate::namespace::Namespace;

/// Kind of a difference between the source's and the destination's document with one `_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Only the source has the document.
    Missing,
    /// Only the destination has the document.
    Extra,
    /// Both sides have the document, with different bytes.
    Different,
    /// One side has the document more than once, on different shards.
    Duplicate,
}

impl Difference {
    /// Returns the word that stands for this kind in mismatch files and tables, such as `missing`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Difference::Missing => "missing",
            Difference::Extra => "extra",
            Difference::Different => "different",
            Difference::Duplicate => "duplicate",
        }
    }
}

/// A document that differs between source and destination: one line of a mismatch file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Full name of the document's collection at the source.
    pub ns: Namespace,
    /// Full name of the document's collection at the destination; `None` if it is the same as at the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Namespace>,
    /// The document's `_id`.
    #[serde(rename = "_id", serialize_with = "write_id", deserialize_with = "read_id")]
    pub id: Id,
    /// Kind of the difference. A line of a mismatch file without a kind is read as `different`.
    #[serde(default = "different")]
    pub kind: Difference,
}

fn different() -> Difference {
    Difference::Different
}

impl Mismatch {
    pub(super) fn new(from: &Namespace, to: &Namespace, id: Id, kind: Difference) -> Self {
        Self { ns: from.clone(), to: (from != to).then(|| to.clone()), id, kind }
    }

    /// Returns the full name of the document's collection at the destination.
    #[must_use]
    pub fn destination(&self) -> &Namespace {
        self.to.as_ref().unwrap_or(&self.ns)
    }

    /// Returns this mismatch as one line of a mismatch file, without the line break.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a checked _id and plain words can be written")
    }
}

fn write_id<S: Serializer>(id: &Id, serializer: S) -> Result<S::Ok, S::Error> {
    ExtJson(id.as_raw()).serialize(serializer)
}

fn read_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
    let value = Json::deserialize(deserializer)?.into_bson().map_err(D::Error::custom)?;
    Ok(Id::from_raw(value.as_raw_bson_ref()))
}

/// Reason why a mismatch file cannot be used.
#[derive(Debug, Error)]
pub enum MismatchFileError {
    /// The operating system cannot read the file.
    #[error("line {line} cannot be read: {cause}")]
    Read {
        /// Number of the line that was to be read, from 1.
        line: usize,
        /// The operating system's error.
        #[source]
        cause: std::io::Error,
    },
    /// A line of the file does not have the form that `imago verify` writes.
    #[error(
        "line {line} is not of the form {{\"ns\": \"db.coll\", \"_id\": …, \"kind\": \"…\"}}: {cause}"
    )]
    Line {
        /// Number of the malformed line, from 1.
        line: usize,
        /// The error of the JSON parser.
        #[source]
        cause: serde_json::Error,
    },
}

/// Returns the mismatches in a mismatch file, line by line. Empty lines are ignored.
///
/// # Errors
/// Each error names the line that cannot be used.
pub fn read_mismatches(
    file: impl BufRead,
) -> impl Iterator<Item = Result<Mismatch, MismatchFileError>> {
    file.lines().enumerate().filter_map(|(index, text)| {
        let line = index + 1;
        match text {
            Err(cause) => Some(Err(MismatchFileError::Read { line, cause })),
            Ok(text) if text.trim().is_empty() => None,
            Ok(text) => Some(
                serde_json::from_str(&text)
                    .map_err(|cause| MismatchFileError::Line { line, cause }),
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawBson, rawdoc};

    #[test]
    fn a_line_returns_as_it_was() {
        let nested = RawBson::Document(rawdoc! {"b": 1_i64, "a": 1.0});
        let mismatch = Mismatch {
            ns: Namespace::new("shop", "re.views"),
            to: Some(Namespace::new("x", "y")),
            id: Id::from_raw(nested.as_raw_bson_ref()),
            kind: Difference::Extra,
        };
        let line = mismatch.line();
        assert_eq!(
            line,
            r#"{"ns":"shop.re.views","to":"x.y","_id":{"b":{"$numberLong":"1"},"a":{"$numberDouble":"1.0"}},"kind":"extra"}"#
        );
        let back: Vec<Mismatch> =
            read_mismatches(line.as_bytes()).collect::<Result<_, _>>().unwrap();
        assert_eq!(back, [mismatch]);
        assert_eq!(back[0].line(), line);
    }

    #[test]
    fn a_bad_line_is_named() {
        let file = "{\"ns\":\"a.b\",\"_id\":1}\n\n{\"ns\":\"a.b\"}\n";
        let read: Vec<_> = read_mismatches(file.as_bytes()).collect();
        assert!(read[0].is_ok());
        assert!(matches!(read[1], Err(MismatchFileError::Line { line: 3, .. })));
    }
}

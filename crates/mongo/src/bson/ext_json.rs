//! Canonical MongoDB Extended JSON (version 2) for raw BSON values.
//!
//! Mismatch files contain `_id`s of any type, and reading such a file must return the bytes that were written. The
//! order of fields and repeated field names in nested documents are therefore preserved, which a conversion through a
//! map would not do.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::{RawBsonRef, RawDocument};
use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

mod parse;
#[cfg(test)]
mod tests;

pub(crate) use parse::Json;
pub use parse::{ExtJsonError, parse, parse_document};

/// A raw BSON value, which serializes as canonical extended JSON.
#[derive(Debug, Clone, Copy)]
pub struct ExtJson<'a>(pub RawBsonRef<'a>);

struct Fields<'a>(&'a RawDocument);

impl Serialize for ExtJson<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            RawBsonRef::Double(v) => one(s, "$numberDouble", &double_text(v)),
            RawBsonRef::String(v) => s.serialize_str(v),
            RawBsonRef::Array(v) => {
                let mut seq = s.serialize_seq(None)?;
                for value in v {
                    seq.serialize_element(&ExtJson(value.map_err(S::Error::custom)?))?;
                }
                seq.end()
            }
            RawBsonRef::Document(v) => Fields(v).serialize(s),
            RawBsonRef::Boolean(v) => s.serialize_bool(v),
            RawBsonRef::Null => s.serialize_unit(),
            RawBsonRef::RegularExpression(v) => one(
                s,
                "$regularExpression",
                &Pair("pattern", v.pattern.as_str(), "options", v.options.as_str()),
            ),
            RawBsonRef::JavaScriptCode(v) => one(s, "$code", v),
            RawBsonRef::JavaScriptCodeWithScope(v) => {
                Pair("$code", v.code, "$scope", Fields(v.scope)).serialize(s)
            }
            RawBsonRef::Int32(v) => one(s, "$numberInt", &v.to_string()),
            RawBsonRef::Int64(v) => one(s, "$numberLong", &v.to_string()),
            RawBsonRef::Timestamp(v) => one(s, "$timestamp", &Pair("t", v.time, "i", v.increment)),
            RawBsonRef::Binary(v) => {
                let subtype = format!("{:02x}", u8::from(v.subtype));
                one(s, "$binary", &Pair("base64", BASE64.encode(v.bytes), "subType", subtype))
            }
            RawBsonRef::ObjectId(v) => one(s, "$oid", &v.to_hex()),
            RawBsonRef::DateTime(v) => {
                one(s, "$date", &Single("$numberLong", v.timestamp_millis().to_string()))
            }
            RawBsonRef::Symbol(v) => one(s, "$symbol", v),
            RawBsonRef::Decimal128(v) => one(s, "$numberDecimal", &v.to_string()),
            RawBsonRef::Undefined => one(s, "$undefined", &true),
            RawBsonRef::MaxKey => one(s, "$maxKey", &1),
            RawBsonRef::MinKey => one(s, "$minKey", &1),
            RawBsonRef::DbPointer(_) => {
                let (namespace, id) = db_pointer_parts(self.0);
                one(s, "$dbPointer", &Pair("$ref", namespace, "$id", Single("$oid", id.to_hex())))
            }
        }
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for field in self.0 {
            let (name, value) = field.map_err(S::Error::custom)?;
            map.serialize_entry(name.as_str(), &ExtJson(value))?;
        }
        map.end()
    }
}

struct Single<A>(&'static str, A);

impl<A: Serialize> Serialize for Single<A> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(1))?;
        map.serialize_entry(self.0, &self.1)?;
        map.end()
    }
}

struct Pair<A, B>(&'static str, A, &'static str, B);

impl<A: Serialize, B: Serialize> Serialize for Pair<A, B> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(2))?;
        map.serialize_entry(self.0, &self.1)?;
        map.serialize_entry(self.2, &self.3)?;
        map.end()
    }
}

fn one<S: Serializer, V: Serialize + ?Sized>(
    s: S,
    name: &'static str,
    value: &V,
) -> Result<S::Ok, S::Error> {
    Single(name, value).serialize(s)
}

/// Returns the text of a double in extended JSON: `NaN`, `Infinity`, `-Infinity`, or the shortest text that parses to
/// the same double.
fn double_text(v: f64) -> String {
    if v.is_nan() {
        "NaN".to_owned()
    } else if v.is_infinite() {
        if v > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() }
    } else {
        format!("{v:?}")
    }
}

/// Returns the namespace and the ObjectId of a DBPointer, read from its stored form because the `bson` crate does
/// not expose them.
fn db_pointer_parts(value: RawBsonRef<'_>) -> (String, bson::oid::ObjectId) {
    let mut doc = bson::RawDocumentBuf::new();
    doc.append(bson::raw::cstr!(""), value);
    let bytes = doc.as_bytes();
    // Layout: document length, type, empty name; then the length of the namespace, the namespace, 12 bytes of
    // ObjectId, terminator.
    let end = bytes.len() - 1;
    let id: [u8; 12] = bytes[end - 12..end].try_into().expect("12 bytes were cut");
    let namespace = String::from_utf8_lossy(&bytes[10..end - 13]).into_owned();
    (namespace, bson::oid::ObjectId::from_bytes(id))
}

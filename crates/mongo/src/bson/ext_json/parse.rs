//! Parser of extended JSON, canonical or relaxed, to raw BSON.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::raw::CString;
use bson::{Decimal128, RawArrayBuf, RawBson, RawDocumentBuf, Regex, Timestamp, oid::ObjectId};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

/// Reason why a text is not valid extended JSON, or not the expected document.
#[derive(Debug, Error)]
pub enum ExtJsonError {
    /// The text is valid neither as JSON nor as JSON5. Contains the error of the JSON parser.
    #[error("not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// An object with a type name such as `$oid` has content that this type does not allow.
    #[error("{{\"{wrapper}\": …}} cannot hold {found}")]
    Wrapper {
        /// The type name, such as `$oid`.
        wrapper: String,
        /// The content of the object, for messages.
        found: String,
    },
    /// The name of a field contains NUL, so that BSON cannot store it. Contains the name.
    #[error("the field name {0:?} contains a NUL character")]
    Name(String),
    /// The text is a value, but not a document. Contains the type of the value.
    #[error("expected a document in braces, found {0}")]
    NoDocument(String),
}

/// Parses one value in extended JSON, canonical or relaxed. The notation of the database's shell is accepted as far
/// as JSON5 has it: names without quotes, as in `{userID: 1}`, and single quotes.
///
/// # Errors
/// Fails if `text` is not extended JSON.
pub fn parse(text: &str) -> Result<RawBson, ExtJsonError> {
    let json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        // If the text is neither, the error of the JSON parser is the more helpful one.
        Err(error) => json5::from_str(text).map_err(|_| error)?,
    };
    json.into_bson()
}

/// Parses a document, such as a filter, in extended JSON, canonical or relaxed; see [`parse`].
///
/// # Errors
/// Fails if `text` is not extended JSON, or is no document.
pub fn parse_document(text: &str) -> Result<RawDocumentBuf, ExtJsonError> {
    match parse(text)? {
        RawBson::Document(document) => Ok(document),
        other => Err(ExtJsonError::NoDocument(format!("{:?}", other.element_type()))),
    }
}

/// A parsed JSON value whose objects preserve the order and the repetition of names.
#[derive(Debug, Clone)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Json, E> {
        Ok(Json::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Json, E> {
        Ok(Json::Int(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Json, E> {
        // The specification turns plain JSON numbers outside the range of a long into doubles.
        #[expect(clippy::cast_precision_loss)]
        Ok(i64::try_from(v).map_or(Json::Double(v as f64), Json::Int))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Json, E> {
        Ok(Json::Double(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Json, E> {
        Ok(Json::Text(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}

impl Json {
    pub(crate) fn into_bson(self) -> Result<RawBson, ExtJsonError> {
        Ok(match self {
            Json::Null => RawBson::Null,
            Json::Bool(v) => RawBson::Boolean(v),
            Json::Int(v) => i32::try_from(v).map_or(RawBson::Int64(v), RawBson::Int32),
            Json::Double(v) => RawBson::Double(v),
            Json::Text(v) => RawBson::String(v),
            Json::Array(items) => {
                let mut array = RawArrayBuf::new();
                for item in items {
                    array.push(item.into_bson()?);
                }
                RawBson::Array(array)
            }
            Json::Object(fields) => {
                if let Some(value) = wrapped(&fields)? {
                    return Ok(value);
                }
                RawBson::Document(document(fields)?)
            }
        })
    }

    fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text in the field `name`, or `None` if this value is not an object with a text in that field.
    fn text_at(&self, name: &str) -> Option<&str> {
        self.at(name)?.text()
    }

    fn at(&self, name: &str) -> Option<&Json> {
        let Json::Object(fields) = self else { return None };
        fields.iter().find(|(found, _)| found == name).map(|(_, value)| value)
    }

    fn u32_at(&self, name: &str) -> Option<u32> {
        match self.at(name)? {
            Json::Int(v) => u32::try_from(*v).ok(),
            _ => None,
        }
    }
}

fn document(fields: Vec<(String, Json)>) -> Result<RawDocumentBuf, ExtJsonError> {
    let mut document = RawDocumentBuf::new();
    for (name, value) in fields {
        let name = CString::try_from(name.clone()).map_err(|_| ExtJsonError::Name(name))?;
        document.append(name, value.into_bson()?);
    }
    Ok(document)
}

/// Returns the BSON value that the fields of a wrapper such as `{"$oid": …}` represent, or `None` if `fields` is an
/// ordinary document. Documents with query operators are ordinary.
fn wrapped(fields: &[(String, Json)]) -> Result<Option<RawBson>, ExtJsonError> {
    let (name, value) = match fields {
        [(name, value)] => (name.as_str(), value),
        [(first, code), (second, scope)] if first == "$code" && second == "$scope" => {
            return code_with_scope(code, scope).map(Some);
        }
        _ => return Ok(None),
    };
    let parsed = match name {
        "$oid" => value.text().and_then(|v| ObjectId::parse_str(v).ok()).map(RawBson::ObjectId),
        "$numberInt" => value.text().and_then(|v| v.parse().ok()).map(RawBson::Int32),
        "$numberLong" => value.text().and_then(|v| v.parse().ok()).map(RawBson::Int64),
        "$numberDouble" => value.text().and_then(double).map(RawBson::Double),
        "$numberDecimal" => {
            value.text().and_then(|v| v.parse::<Decimal128>().ok()).map(RawBson::Decimal128)
        }
        "$date" => date(value).map(RawBson::DateTime),
        "$timestamp" => timestamp(value).map(RawBson::Timestamp),
        "$binary" => binary(value),
        "$uuid" => value
            .text()
            .and_then(|v| bson::Uuid::parse_str(v).ok())
            .map(|v| RawBson::Binary(v.into())),
        "$regularExpression" => regex(value),
        "$symbol" => value.text().map(|v| RawBson::Symbol(v.to_owned())),
        "$code" => value.text().map(|v| RawBson::JavaScriptCode(v.to_owned())),
        "$dbPointer" => db_pointer(value),
        "$undefined" => Some(RawBson::Undefined),
        "$minKey" => Some(RawBson::MinKey),
        "$maxKey" => Some(RawBson::MaxKey),
        _ => return Ok(None),
    };
    parsed.map(Some).ok_or_else(|| ExtJsonError::Wrapper {
        wrapper: name.to_owned(),
        found: format!("{value:?}"),
    })
}

fn code_with_scope(code: &Json, scope: &Json) -> Result<RawBson, ExtJsonError> {
    let bad = || ExtJsonError::Wrapper { wrapper: "$code".into(), found: format!("{code:?}") };
    let code = code.text().ok_or_else(bad)?.to_owned();
    let Json::Object(fields) = scope else {
        return Err(ExtJsonError::NoDocument(format!("{scope:?}")));
    };
    let scope = document(fields.clone())?;
    Ok(RawBson::JavaScriptCodeWithScope(bson::raw::RawJavaScriptCodeWithScope { code, scope }))
}

fn double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        text => text.parse().ok(),
    }
}

fn date(value: &Json) -> Option<bson::DateTime> {
    if let Some(text) = value.text() {
        return bson::DateTime::parse_rfc3339_str(text).ok();
    }
    let ms = match value {
        Json::Int(ms) => *ms,
        value => value.text_at("$numberLong")?.parse().ok()?,
    };
    Some(bson::DateTime::from_millis(ms))
}

fn timestamp(value: &Json) -> Option<Timestamp> {
    Some(Timestamp { time: value.u32_at("t")?, increment: value.u32_at("i")? })
}

fn binary(value: &Json) -> Option<RawBson> {
    let bytes = BASE64.decode(value.text_at("base64")?).ok()?;
    let subtype = u8::from_str_radix(value.text_at("subType")?, 16).ok()?;
    Some(RawBson::Binary(bson::Binary { subtype: subtype.into(), bytes }))
}

fn regex(value: &Json) -> Option<RawBson> {
    let pattern = CString::try_from(value.text_at("pattern")?).ok()?;
    let options = CString::try_from(value.text_at("options")?).ok()?;
    Some(RawBson::RegularExpression(Regex { pattern, options }))
}

/// Returns the DBPointer that `value` represents, or `None` if `value` is malformed. It is built from its stored
/// form, because the `bson` crate has no constructor for this type.
fn db_pointer(value: &Json) -> Option<RawBson> {
    let namespace = value.text_at("$ref")?.as_bytes();
    let id = ObjectId::parse_str(value.at("$id")?.text_at("$oid")?).ok()?.bytes();
    let name_len = i32::try_from(namespace.len() + 1).ok()?.to_le_bytes();
    let body = [&[0x0c, 0], &name_len[..], namespace, &[0], &id].concat();
    let len = i32::try_from(body.len() + 5).ok()?.to_le_bytes();
    let document = RawDocumentBuf::from_bytes([&len[..], &body, &[0]].concat()).ok()?;
    let (_, value) = document.iter().next()?.ok()?;
    Some(value.into())
}

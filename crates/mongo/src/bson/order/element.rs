//! Iteration over the elements of a BSON document with bounds checks only.
//!
//! The verifier inspects the `_id` of every document and no other field, and stored strings need not be valid UTF-8,
//! so only bounds are checked. Bytes that do not parse are returned as one last element of the kind "malformed", so
//! that comparison never fails and the order stays total.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::{Number, Value};

/// Binary subtype 2, an old one, whose values store their length twice.
pub(super) const OLD_BINARY: u8 = 2;

/// Offset in bytes of the value's payload in the document `{"": value}`, after the document's length, the type and
/// the empty name.
pub(super) const WRAPPED_PAYLOAD: usize = 6;

const DOCUMENT: u8 = 0x03;

/// Type byte of an element whose bytes do not parse; no BSON type has this number.
const MALFORMED: u8 = 0x80;

/// One element (field) of a BSON document, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    /// BSON type byte of the value.
    pub kind: u8,
    /// Name of the field without terminator; not necessarily valid UTF-8.
    pub name: &'a [u8],
    /// Bytes of the value as stored, without type and name.
    pub payload: &'a [u8],
}

/// Iterator over the elements of a BSON document, which is given with its length and terminator.
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    rest: &'a [u8],
    framed: bool,
}

impl<'a> Elements<'a> {
    /// Returns an iterator that starts at the first element of `doc`. A malformed document is accepted: see the
    /// module's text.
    #[must_use]
    pub fn new(doc: &'a [u8]) -> Self {
        let framed = le_len(doc) == Some(doc.len()) && doc.len() >= 5 && doc[doc.len() - 1] == 0;
        Elements { rest: if framed { &doc[4..doc.len() - 1] } else { doc }, framed }
    }

    fn split(rest: &'a [u8]) -> Option<(Element<'a>, &'a [u8])> {
        let (&kind, after_kind) = rest.split_first()?;
        let end = after_kind.iter().position(|&b| b == 0)?;
        let (name, body) = (&after_kind[..end], &after_kind[end + 1..]);
        let size = payload_size(kind, body)?;
        let payload = body.get(..size)?;
        Some((Element { kind, name, payload }, &body[size..]))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let split = if self.framed { Self::split(self.rest) } else { None };
        if let Some((element, rest)) = split {
            self.rest = rest;
            return Some(element);
        }
        let payload = std::mem::take(&mut self.rest);
        Some(Element { kind: MALFORMED, name: b"", payload })
    }
}

/// Returns the `_id` of the stored document `doc`, or `None` if there is none. Servers store the `_id` first, but
/// capped and system collections may have it at a later position.
#[must_use]
pub fn id_element(doc: &[u8]) -> Option<Element<'_>> {
    Elements::new(doc).find(|element| element.name == b"_id" && element.kind != MALFORMED)
}

impl<'a> Element<'a> {
    /// Compares the values of two elements, without their names, as [`super::cmp_values`] does. The values need not
    /// be parsed before.
    #[must_use]
    pub fn cmp_value(&self, other: &Element<'_>) -> Ordering {
        self.value().cmp(&other.value())
    }

    pub(super) fn value(&self) -> Value<'a> {
        value_of(self.kind, self.payload).unwrap_or(Value::Malformed(self.kind, self.payload))
    }
}

fn le_len(bytes: &[u8]) -> Option<usize> {
    let head: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    usize::try_from(i32::from_le_bytes(head)).ok()
}

/// Returns the element of `doc` at the dotted path `path`, which leads through embedded documents only, or `None` if
/// there is none.
#[must_use]
pub fn element_at<'a>(doc: &'a [u8], path: &str) -> Option<Element<'a>> {
    let (way, last) = path.rsplit_once('.').map_or((None, path), |(way, last)| (Some(way), last));
    let doc = match way {
        Some(way) => element_at(doc, way).filter(|found| found.kind == DOCUMENT)?.payload,
        None => doc,
    };
    let is_it = |element: &Element| element.name == last.as_bytes() && element.kind != MALFORMED;
    Elements::new(doc).find(is_it)
}

/// Returns the size in bytes of the payload at the start of `body`, for the BSON type byte `kind`, or `None` if the
/// payload is malformed.
fn payload_size(kind: u8, body: &[u8]) -> Option<usize> {
    Some(match kind {
        0x06 | 0x0a | 0xff | 0x7f => 0,
        0x08 => 1,
        0x10 => 4,
        0x01 | 0x09 | 0x11 | 0x12 => 8,
        0x07 => 12,
        0x13 => 16,
        0x02 | 0x0d | 0x0e => le_len(body)?.checked_add(4)?,
        0x05 => le_len(body)?.checked_add(5)?,
        0x0c => le_len(body)?.checked_add(16)?,
        0x03 | 0x04 | 0x0f => le_len(body).filter(|&len| len >= 5)?,
        0x0b => {
            let pattern = body.iter().position(|&b| b == 0)? + 1;
            let options = body[pattern..].iter().position(|&b| b == 0)? + 1;
            pattern + options
        }
        _ => return None,
    })
}

fn value_of(kind: u8, payload: &[u8]) -> Option<Value<'_>> {
    Some(match kind {
        0x01 => Value::Number(Number::Double(f64::from_le_bytes(payload.try_into().ok()?))),
        0x02 | 0x0e => Value::Text(text(payload)?),
        0x03 => Value::Object(payload),
        0x04 => Value::Array(payload),
        0x05 => {
            let (subtype, bytes) = (*payload.get(4)?, payload.get(5..)?);
            // The inner length of the old subtype follows from the outer one.
            let clean = if subtype == OLD_BINARY { bytes.get(4..)? } else { bytes };
            Value::Binary(bytes.len(), subtype, clean)
        }
        0x06 => Value::Undefined,
        0x07 => Value::ObjectId(payload.try_into().ok()?),
        0x08 => Value::Bool(*payload.first()? != 0),
        0x09 => Value::Date(i64::from_le_bytes(payload.try_into().ok()?)),
        0x0a => Value::Null,
        0x0b => {
            let pattern = payload.iter().position(|&b| b == 0)?;
            Value::Regex(&payload[..pattern], payload.get(pattern + 1..payload.len() - 1)?)
        }
        0x0c => Value::DbPointer(Cow::Borrowed(payload)),
        0x0d => Value::Code(text(payload)?),
        0x0f => {
            let code_len = le_len(payload.get(4..)?)?;
            let scope = payload.get(8usize.checked_add(code_len)?..)?;
            Value::CodeWithScope(text(payload.get(4..8 + code_len)?)?, scope)
        }
        0x10 => Value::Number(Number::Int(i64::from(i32::from_le_bytes(payload.try_into().ok()?)))),
        0x11 => Value::Timestamp(u64::from_le_bytes(payload.try_into().ok()?)),
        0x12 => Value::Number(Number::Int(i64::from_le_bytes(payload.try_into().ok()?))),
        0x13 => Value::Number(Number::from_decimal(payload.try_into().ok()?)),
        0x7f => Value::MaxKey,
        0xff => Value::MinKey,
        _ => return None,
    })
}

/// Returns the bytes of the length-prefixed, zero-terminated string in `payload`, or `None` if the length is wrong.
fn text(payload: &[u8]) -> Option<&[u8]> {
    if payload.len() < 5 || le_len(payload)? != payload.len() - 4 {
        return None;
    }
    Some(&payload[4..payload.len() - 1])
}

//! The order of `_id` values in mongod's indexes.
//!
//! Slices, lanes and the verifier depend on Imago and the server agreeing on the order of two `_id`s and on their
//! equality. This module implements that order for every BSON type, over raw bytes.
//!
//! Types are ranked first (MinKey, undefined, null, numbers, strings and symbols, objects, arrays, binary, ObjectId,
//! boolean, date, timestamp, regular expression, DBPointer, code, code with scope, MaxKey), values within a rank
//! afterwards. The four numeric types are one rank and are compared by their exact mathematical value, strings by
//! their bytes (the simple collation). The reference is the server's manual, "Comparison/Sort Order", and the order
//! of a real mongod's `_id` index, which the tests read back.
//!
//! Invariant: [`cmp_values`] is a total order, and values that it calls equal hash equally.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::Hasher;

use bson::{RawBsonRef, RawDocumentBuf};

mod element;
mod id;
mod number;

pub use element::{Element, Elements, element_at, id_element};
pub use id::{Id, IdError};
use number::Number;

/// Compares two BSON values of any types as mongod's indexes do.
///
/// Numbers of different types are compared exactly; `NaN` is the smallest number and equal to itself; fields of
/// documents are compared by type, then name, then value.
#[must_use]
pub fn cmp_values(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    Value::from_raw(a).cmp(&Value::from_raw(b))
}

/// Feeds `value` to the hasher `state`; values that are equal under [`cmp_values`] feed the same bytes.
pub fn hash_value<H: Hasher>(value: RawBsonRef<'_>, state: &mut H) {
    Value::from_raw(value).hash_into(state);
}

/// A BSON value, decoded as far as its comparison needs it.
#[derive(Debug, Clone)]
enum Value<'a> {
    MinKey,
    Undefined,
    Null,
    Number(Number),
    /// A string or a symbol: its bytes without length and terminator.
    Text(&'a [u8]),
    /// An embedded document, length and terminator included.
    Object(&'a [u8]),
    /// An array in its document form, length and terminator included.
    Array(&'a [u8]),
    /// Stored length (for the old subtype 2 including its inner length), subtype, bytes.
    Binary(usize, u8, &'a [u8]),
    ObjectId([u8; 12]),
    Bool(bool),
    /// Signed milliseconds since the Unix epoch.
    Date(i64),
    /// The stored timestamp as one unsigned number: seconds since the Unix epoch in the high half, increment in the
    /// low half.
    Timestamp(u64),
    Regex(&'a [u8], &'a [u8]),
    /// The namespace's length, the namespace with its terminator, and the ObjectId, as stored.
    DbPointer(Cow<'a, [u8]>),
    Code(&'a [u8]),
    CodeWithScope(&'a [u8], &'a [u8]),
    MaxKey,
    /// Type byte and bytes of data that are no BSON value. Such data sort after all values, by type byte and bytes,
    /// so that the order stays total.
    Malformed(u8, &'a [u8]),
}

impl<'a> Value<'a> {
    fn from_raw(value: RawBsonRef<'a>) -> Self {
        match value {
            RawBsonRef::MinKey => Value::MinKey,
            RawBsonRef::Undefined => Value::Undefined,
            RawBsonRef::Null => Value::Null,
            RawBsonRef::Int32(v) => Value::Number(Number::Int(i64::from(v))),
            RawBsonRef::Int64(v) => Value::Number(Number::Int(v)),
            RawBsonRef::Double(v) => Value::Number(Number::Double(v)),
            RawBsonRef::Decimal128(v) => Value::Number(Number::from_decimal(v.bytes())),
            RawBsonRef::String(v) | RawBsonRef::Symbol(v) => Value::Text(v.as_bytes()),
            RawBsonRef::Document(v) => Value::Object(v.as_bytes()),
            RawBsonRef::Array(v) => Value::Array(v.as_bytes()),
            RawBsonRef::Binary(v) => {
                let subtype = u8::from(v.subtype);
                let inner = if subtype == element::OLD_BINARY { 4 } else { 0 };
                Value::Binary(v.bytes.len() + inner, subtype, v.bytes)
            }
            RawBsonRef::ObjectId(v) => Value::ObjectId(v.bytes()),
            RawBsonRef::Boolean(v) => Value::Bool(v),
            RawBsonRef::DateTime(v) => Value::Date(v.timestamp_millis()),
            RawBsonRef::Timestamp(v) => {
                Value::Timestamp((u64::from(v.time) << 32) | u64::from(v.increment))
            }
            RawBsonRef::RegularExpression(v) => {
                Value::Regex(v.pattern.as_str().as_bytes(), v.options.as_str().as_bytes())
            }
            RawBsonRef::DbPointer(_) => Value::DbPointer(Cow::Owned(payload_of(value))),
            RawBsonRef::JavaScriptCode(v) => Value::Code(v.as_bytes()),
            RawBsonRef::JavaScriptCodeWithScope(v) => {
                Value::CodeWithScope(v.code.as_bytes(), v.scope.as_bytes())
            }
            RawBsonRef::MaxKey => Value::MaxKey,
        }
    }

    /// Returns the server's rank of the value's type, by which values of different types are ordered.
    fn rank(&self) -> u8 {
        match self {
            Value::MinKey => 0,
            Value::Undefined => 1,
            Value::Null => 5,
            Value::Number(_) => 10,
            Value::Text(_) => 15,
            Value::Object(_) => 20,
            Value::Array(_) => 25,
            Value::Binary(..) => 30,
            Value::ObjectId(_) => 35,
            Value::Bool(_) => 40,
            Value::Date(_) => 45,
            Value::Timestamp(_) => 47,
            Value::Regex(..) => 50,
            Value::DbPointer(_) => 55,
            Value::Code(_) => 60,
            Value::CodeWithScope(..) => 65,
            Value::MaxKey => 127,
            Value::Malformed(..) => 255,
        }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        use Value as V;
        match (self, other) {
            (V::ObjectId(a), V::ObjectId(b)) => a.cmp(b),
            (V::Number(a), V::Number(b)) => a.cmp(b),
            (V::Text(a), V::Text(b)) | (V::Code(a), V::Code(b)) => a.cmp(b),
            (V::Object(a), V::Object(b)) => cmp_elements(a, b, true),
            (V::Array(a), V::Array(b)) => cmp_elements(a, b, false),
            (V::Binary(la, sa, a), V::Binary(lb, sb, b)) => (la, sa, a).cmp(&(lb, sb, b)),
            (V::Bool(a), V::Bool(b)) => a.cmp(b),
            (V::Date(a), V::Date(b)) => a.cmp(b),
            (V::Timestamp(a), V::Timestamp(b)) => a.cmp(b),
            (V::Regex(pa, oa), V::Regex(pb, ob)) => (pa, oa).cmp(&(pb, ob)),
            (V::DbPointer(a), V::DbPointer(b)) => (a.len(), a).cmp(&(b.len(), b)),
            (V::CodeWithScope(ca, sa), V::CodeWithScope(cb, sb)) => {
                ca.cmp(cb).then_with(|| cmp_elements(sa, sb, true))
            }
            (V::Malformed(ka, a), V::Malformed(kb, b)) => (ka, a).cmp(&(kb, b)),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn hash_into<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.rank());
        match self {
            Value::MinKey | Value::Undefined | Value::Null | Value::MaxKey => {}
            Value::Number(number) => number.hash_into(state),
            Value::Text(bytes) | Value::Code(bytes) => hash_bytes(bytes, state),
            Value::Object(doc) => hash_elements(doc, true, state),
            Value::Array(doc) => hash_elements(doc, false, state),
            Value::Binary(_, subtype, bytes) => {
                state.write_u8(*subtype);
                hash_bytes(bytes, state);
            }
            Value::ObjectId(bytes) => state.write(bytes),
            Value::Bool(v) => state.write_u8(u8::from(*v)),
            Value::Date(v) => state.write(&v.to_le_bytes()),
            Value::Timestamp(v) => state.write(&v.to_le_bytes()),
            Value::Regex(pattern, options) => {
                hash_bytes(pattern, state);
                hash_bytes(options, state);
            }
            Value::DbPointer(bytes) => hash_bytes(bytes, state),
            Value::CodeWithScope(code, scope) => {
                hash_bytes(code, state);
                hash_elements(scope, true, state);
            }
            Value::Malformed(kind, bytes) => {
                state.write_u8(*kind);
                hash_bytes(bytes, state);
            }
        }
    }
}

/// Compares the fields of the documents `a` and `b` one by one: type, then name if `with_names`, then value. A
/// document that is a prefix of the other sorts before it.
fn cmp_elements(a: &[u8], b: &[u8], with_names: bool) -> Ordering {
    let (mut left, mut right) = (Elements::new(a), Elements::new(b));
    loop {
        let (l, r) = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(l), Some(r)) => (l, r),
        };
        let (lv, rv) = (l.value(), r.value());
        let order = lv
            .rank()
            .cmp(&rv.rank())
            .then_with(|| if with_names { l.name.cmp(r.name) } else { Ordering::Equal })
            .then_with(|| lv.cmp(&rv));
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn hash_elements<H: Hasher>(doc: &[u8], with_names: bool, state: &mut H) {
    for element in Elements::new(doc) {
        if with_names {
            hash_bytes(element.name, state);
        }
        element.value().hash_into(state);
    }
    state.write_u8(0xff);
}

/// Feeds `bytes` to the hasher, after their length, so that a byte moved from one value to its neighbour changes the
/// hash.
fn hash_bytes<H: Hasher>(bytes: &[u8], state: &mut H) {
    state.write(&(bytes.len() as u64).to_le_bytes());
    state.write(bytes);
}

/// Returns the stored bytes of `value`, for the types whose parts the `bson` crate does not expose.
fn payload_of(value: RawBsonRef<'_>) -> Vec<u8> {
    let mut doc = RawDocumentBuf::new();
    doc.append(bson::raw::cstr!(""), value);
    let bytes = doc.into_bytes();
    bytes[element::WRAPPED_PAYLOAD..bytes.len() - 1].to_vec()
}

#[cfg(test)]
mod tests;

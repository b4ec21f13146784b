//! A key: the `_id` of a document, and its identity.
//!
//! The server takes numbers of different types for the same `_id` if they have the same value, so the bytes of a value do
//! not identify it. Invariant: two values with the same identity are the same `_id` to the server. (Numbers that are no
//! integers within 64 bits are told apart by their type as well; a document whose `_id` has another type than its key
//! is then an error, [`super::Error::Unasked`], and never taken for another.)

use std::fmt;

use bson::raw::cstr;
use bson::{Bson, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

/// The longest line that is a key; an `_id` may be as large as its document, but none is read as that.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// The `_id` of a document.
#[derive(Clone, Debug)]
pub struct Key {
    value: Bson,
    identity: Vec<u8>,
}

impl Key {
    /// A key that is an integer.
    #[must_use]
    pub fn of_number(number: i64) -> Self {
        Self { value: Bson::Int64(number), identity: number_identity(number) }
    }

    /// Reads a key: a decimal integer, or a JSON value of extended JSON: `"text"`, `{"$oid": "…"}`, `{"$uuid": "…"}`.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse::<i64>() {
            return Ok(Self::of_number(number));
        }
        let value: Bson = serde_json::from_str(text).map_err(|error| {
            format!("`{text}` is no key, neither a decimal integer nor extended JSON: {error}")
        })?;
        match value {
            Bson::Array(_) | Bson::RegularExpression(_) | Bson::Undefined => {
                Err(format!("`{text}` cannot be an _id"))
            }
            value => Self::of(value).ok_or_else(|| format!("`{text}` cannot be an _id")),
        }
    }

    /// A key that is this value; none if that cannot be an `_id`.
    #[must_use]
    pub fn of(value: Bson) -> Option<Self> {
        let raw = RawBson::try_from(value.clone()).ok()?;
        let identity = identity(raw.as_raw_bson_ref())?;
        Some(Self { value, identity })
    }

    /// The value, as it is asked for.
    #[must_use]
    pub fn value(&self) -> &Bson {
        &self.value
    }

    /// Bytes that stand for the `_id`, whatever type its number has.
    #[must_use]
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The identity of a document's `_id`; `None` if it has none, or is no document.
#[must_use]
pub fn identity_of_document(document: &RawDocument) -> Option<Vec<u8>> {
    identity(document.get("_id").ok()??)
}

/// The document in these bytes, if they are one to their end.
#[must_use]
pub fn whole_document(bytes: &[u8]) -> Option<&RawDocument> {
    let document = RawDocument::from_bytes(bytes).ok()?;
    document.iter().all(|field| field.is_ok()).then_some(document)
}

/// The identity of a value; `None` for bytes that are none.
#[must_use]
pub fn identity(value: RawBsonRef<'_>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16);
    write(value, &mut bytes)?;
    Some(bytes)
}

fn number_identity(number: i64) -> Vec<u8> {
    [&[INTEGER][..], &number.to_le_bytes()].concat()
}

const INTEGER: u8 = b'i';
const DOCUMENT: u8 = b'o';
const OTHER: u8 = b'v';

fn write(value: RawBsonRef<'_>, bytes: &mut Vec<u8>) -> Option<()> {
    let integer = match value {
        RawBsonRef::Int32(number) => Some(i64::from(number)),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) => integer_of_double(number),
        RawBsonRef::Decimal128(number) => integer_of_decimal(&number.to_string()),
        _ => None,
    };
    if let Some(integer) = integer {
        bytes.extend(number_identity(integer));
        return Some(());
    }
    if let RawBsonRef::Document(document) = value {
        bytes.push(DOCUMENT);
        for field in document {
            let (name, value) = field.ok()?;
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.push(0);
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            write(value, bytes)?;
            let length = u32::try_from(bytes.len() - start - 4).ok()?;
            bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        }
        bytes.push(0);
        return Some(());
    }
    // Any other value by its type and bytes: those of a document that has it alone, without length and end.
    let mut alone = RawDocumentBuf::new();
    alone.append(cstr!(""), value);
    let alone = alone.as_bytes();
    bytes.push(OTHER);
    bytes.extend_from_slice(&alone[4..alone.len() - 1]);
    Some(())
}

fn integer_of_double(number: f64) -> Option<i64> {
    const BOUND: f64 = 9_223_372_036_854_775_808.0; // 2^63
    let is_integer = number.fract() == 0.0 && (-BOUND..BOUND).contains(&number);
    #[allow(clippy::cast_possible_truncation, reason = "an integer within the range")]
    is_integer.then_some(number as i64)
}

/// The integer that a decimal's text stands for: `-12`, `12.0`, `1.2E+3`.
fn integer_of_decimal(text: &str) -> Option<i64> {
    let (mantissa, exponent) = text.split_once(['E', 'e']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let exponent = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let value = match exponent {
        0.. => digits.checked_mul(scale)?,
        _ => (digits % scale == 0).then_some(digits / scale)?,
    };
    i64::try_from(value).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use bson::{doc, rawdoc};

    fn of_id(id: Bson) -> Vec<u8> {
        let document = RawDocumentBuf::try_from(&doc! {"_id": id, "text": "fine"}).unwrap();
        identity_of_document(&document).unwrap()
    }

    #[test]
    fn a_number_is_the_same_key_in_every_type() {
        let five = Key::parse("5").unwrap();
        let decimals = ["5", "5.0", "0.5E+1", "500E-2"];
        let decimals = decimals.map(|text| Bson::Decimal128(text.parse().unwrap()));
        let others = [Bson::Int32(5), Bson::Int64(5), Bson::Double(5.0)];
        for other in others.into_iter().chain(decimals) {
            assert_eq!(of_id(other.clone()), five.identity(), "{other:?}");
        }
        let different =
            [Bson::Double(5.5), Bson::Int32(6), Bson::String("5".into()), Bson::Double(f64::NAN)];
        for other in different {
            assert_ne!(of_id(other.clone()), five.identity(), "{other:?}");
        }
        assert_eq!(of_id(Bson::Double(-0.0)), Key::of_number(0).identity());
        assert_ne!(of_id(Bson::Double(9.3e18)), Key::of_number(i64::MAX).identity());
    }

    #[test]
    fn keys_of_other_types_are_extended_json() {
        let oid = "65f0c1d2e3f405162738495a";
        let object = Key::parse(&format!(r#"{{"$oid":"{oid}"}}"#)).unwrap();
        assert_eq!(object.value(), &Bson::ObjectId(oid.parse().unwrap()));
        assert_eq!(object.identity(), of_id(object.value().clone()));
        let text = Key::parse(r#""B00005N7OJ""#).unwrap();
        assert_eq!(text.value(), &Bson::String("B00005N7OJ".into()));
        let nested = Key::parse(r#"{"user": 7, "at": 2}"#).unwrap();
        assert_eq!(nested.identity(), of_id(Bson::Document(doc! {"user": 7_i64, "at": 2.0})));
        assert_ne!(nested.identity(), of_id(Bson::Document(doc! {"at": 2, "user": 7})));
        for wrong in ["", "B00005N7OJ", "[1]", "{", r#"{"$oid":"x"}"#, "5 6", "1\t2"] {
            assert!(Key::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fields_cannot_be_shifted_between_names_and_values() {
        let one = of_id(Bson::Document(doc! {"a": "b", "c": "d"}));
        let other = of_id(Bson::Document(doc! {"a": doc! {"b": "c"}}));
        assert_ne!(one, other);
    }

    #[test]
    fn a_document_cut_anywhere_is_none() {
        let document = rawdoc! {"_id": 7, "text": "a review", "stars": {"of": 5}};
        assert!(whole_document(document.as_bytes()).is_some());
        for cut in 0..document.as_bytes().len() {
            assert!(whole_document(&document.as_bytes()[..cut]).is_none(), "{cut}");
        }
    }
}

//! A key: the `_id` of a document, and its identity.
//!
//! The server treats numbers of different types as the same `_id` if their values are equal, so the bytes of a value do
//! not identify it. Invariant: two values with the same identity are the same `_id` to the server. (The identities of
//! numbers that are not integers within 64 bits also include the type. A document whose `_id` has another type than its
//! key is then an error, [`super::Error::UnrequestedDocument`], and never mistaken for another document.)

use std::fmt;

use bson::raw::cstr;
use bson::{Bson, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

/// Maximum length of an input line with a key, in bytes. An `_id` may be as large as its document, but larger ones
/// are not supported here.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// The `_id` of a document that a chain reads.
#[derive(Clone, Debug)]
pub struct Key {
    /// The `_id` as a BSON value, as it is sent to the server.
    value: Bson,
    /// The identity of the `_id`: bytes that are equal for all values that the server treats as the same `_id`.
    identity: Vec<u8>,
}

impl Key {
    /// Makes the key whose `_id` is this 64-bit integer.
    #[must_use]
    pub fn of_number(number: i64) -> Self {
        Self { value: Bson::Int64(number), identity: number_identity(number) }
    }

    /// Parses a key: a decimal integer, or a value of Extended JSON: `"text"`, `{"$oid": "…"}`, `{"$uuid": "…"}`.
    ///
    /// # Errors
    /// A description of the problem.
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

    /// Makes the key of a BSON value; `None` if the value cannot be an `_id`.
    #[must_use]
    pub fn of(value: Bson) -> Option<Self> {
        let raw = RawBson::try_from(value.clone()).ok()?;
        let identity = identity(raw.as_raw_bson_ref())?;
        Some(Self { value, identity })
    }

    /// Returns the `_id` as a BSON value, as it is sent to the server.
    #[must_use]
    pub fn value(&self) -> &Bson {
        &self.value
    }

    /// Returns the identity of the `_id`: the same bytes for equal numbers of different types.
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

/// Returns the identity of a document's `_id`; `None` if the document has none, or is malformed.
#[must_use]
pub fn identity_of_document(document: &RawDocument) -> Option<Vec<u8>> {
    identity(document.get("_id").ok()??)
}

/// Checks bytes and returns them as a document; `None` if they are not exactly one valid BSON document.
#[must_use]
pub fn whole_document(bytes: &[u8]) -> Option<&RawDocument> {
    let document = RawDocument::from_bytes(bytes).ok()?;
    document.iter().all(|field| field.is_ok()).then_some(document)
}

/// Returns the identity of an `_id` value: bytes that are equal for equal `_id`s. `None` if the value is malformed.
#[must_use]
pub fn identity(value: RawBsonRef<'_>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16);
    write(value, &mut bytes)?;
    Some(bytes)
}

/// Returns the identity of an `_id` that is an integer, of any numeric type.
fn number_identity(number: i64) -> Vec<u8> {
    [&[INTEGER][..], &number.to_le_bytes()].concat()
}

/// First byte of the identity of an `_id` that is an integer.
const INTEGER: u8 = b'i';
/// First byte of the identity of an `_id` that is a document.
const DOCUMENT: u8 = b'o';
/// First byte of the identity of an `_id` that is neither an integer nor a document.
const OTHER: u8 = b'v';

/// Appends the identity of an `_id` value to `bytes`; returns `None` if the value is malformed.
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
    // Any other value by its type and bytes: encode a document with this value alone, and drop its length and
    // terminator.
    let mut alone = RawDocumentBuf::new();
    alone.append(cstr!(""), value);
    let alone = alone.as_bytes();
    bytes.push(OTHER);
    bytes.extend_from_slice(&alone[4..alone.len() - 1]);
    Some(())
}

/// Returns the integer that a double is equal to; `None` if the double is a fraction or does not fit into 64 bits.
fn integer_of_double(number: f64) -> Option<i64> {
    const BOUND: f64 = 9_223_372_036_854_775_808.0; // 2^63
    let is_integer = number.fract() == 0.0 && (-BOUND..BOUND).contains(&number);
    #[allow(clippy::cast_possible_truncation, reason = "an integer within the range")]
    is_integer.then_some(number as i64)
}

/// Parses the text of a decimal128 (`-12`, `12.0`, `1.2E+3`) and returns the integer that it is equal to. Returns
/// `None` for a fraction or a number outside 64 bits.
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

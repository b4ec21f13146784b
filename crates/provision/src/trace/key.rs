//! A key: the `_id` of a document, as its BSON type and the bytes of its value.
//!
//! A key of up to 22 bytes including its type (integers, object ids, dates, UUIDs, short strings) is stored inline, so
//! that ten million reads do not need an allocation each.

use std::fmt;

use bson::Bson;
use bson::raw::{RawBsonRef, RawDocumentBuf, cstr};

/// Maximum length of a key that is stored inline, in bytes, with one byte for its type.
const INLINE_BYTES: usize = 22;

/// The `_id` of a document in a trace: its BSON type and the bytes of its value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Form);

/// Storage of a key: the byte of its BSON type, then the bytes of its value.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    /// A key of at most [`INLINE_BYTES`]; a longer one is boxed. Unused bytes are 0, so that equal keys have equal
    /// forms.
    Inline {
        length: u8,
        bytes: [u8; INLINE_BYTES],
    },
    Boxed(Box<[u8]>),
}

impl Key {
    /// Makes a key from a BSON type number and the bytes of a value. Returns `None` if the bytes are not a value of
    /// that type.
    #[must_use]
    pub fn from_parts(kind: u8, value: &[u8]) -> Option<Self> {
        is_value(kind, value).then(|| Self::unchecked(kind, value))
    }

    /// Makes a key from a BSON type number and the bytes of a value, without checking that the bytes are a value of
    /// that type.
    fn unchecked(kind: u8, value: &[u8]) -> Self {
        let length = value.len() + 1;
        if length > INLINE_BYTES {
            let mut bytes = Vec::with_capacity(length);
            bytes.push(kind);
            bytes.extend_from_slice(value);
            return Self(Form::Boxed(bytes.into()));
        }
        let mut bytes = [0; INLINE_BYTES];
        bytes[0] = kind;
        bytes[1..length].copy_from_slice(value);
        // At most 22.
        Self(Form::Inline { length: length as u8, bytes })
    }

    /// Makes the key of an `_id` that is part of a raw BSON document.
    #[must_use]
    pub fn from_raw(id: RawBsonRef<'_>) -> Self {
        match id {
            RawBsonRef::Int64(value) => Self::from(value),
            RawBsonRef::Int32(value) => Self::unchecked(0x10, &value.to_le_bytes()),
            RawBsonRef::ObjectId(value) => Self::unchecked(0x07, &value.bytes()),
            other => {
                // Encode a document with this value alone: length, type, empty name, value, and a terminating 0.
                let mut alone = RawDocumentBuf::new();
                alone.append(cstr!(""), other);
                let bytes = alone.as_bytes();
                Self::unchecked(bytes[4], &bytes[6..bytes.len() - 1])
            }
        }
    }

    /// Returns the BSON type number of the `_id`.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.bytes()[0]
    }

    /// Returns the bytes of the `_id`'s value, as BSON encodes them.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.bytes()[1..]
    }

    /// Returns the byte of the key's type, followed by the bytes of its value.
    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Form::Boxed(bytes) => bytes,
        }
    }

    /// Decodes the `_id` into a BSON value.
    #[must_use]
    pub fn to_bson(&self) -> Bson {
        let document = alone(self.kind(), self.value());
        let value = RawDocumentBuf::from_bytes(document)
            .ok()
            .and_then(|document| Bson::try_from(document.iter().next()?.ok()?.1).ok());
        value.expect("a key was a value when it was made")
    }

    /// Returns a hash of the key whose bits are all well mixed, and which is the same in every process and version.
    /// Numbers that MongoDB treats as the same `_id` (the integer 7, and 7.0) have the same hash.
    #[must_use]
    pub fn hash64(&self) -> u64 {
        if let Some(whole) = self.whole_number() {
            return mixed(whole as u64);
        }
        let mut hash = mixed(u64::from(self.kind()) << 32 | self.value().len() as u64);
        for chunk in self.value().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = mixed(hash.rotate_left(29) ^ u64::from_le_bytes(word));
        }
        hash
    }

    /// Returns where the document of this key is stored, relative to those of others: keys that grow with the time of their
    /// insertion (integers, object ids, dates) in their order, all others by their hash.
    #[must_use]
    pub(crate) fn storage_order(&self) -> (u8, u128) {
        /// Maps integers to numbers of the same order.
        fn ordered(value: i64) -> u128 {
            u128::from((value as u64) ^ (1 << 63))
        }
        if let Some(whole) = self.whole_number() {
            return (1, ordered(whole));
        }
        match (self.kind(), <[u8; 8]>::try_from(self.value())) {
            (0x09, Ok(millis)) => (2, ordered(i64::from_le_bytes(millis))),
            (0x07, _) => {
                let bytes =
                    self.value().iter().fold(0, |of: u128, byte| of << 8 | u128::from(*byte));
                (3, bytes)
            }
            _ => (0, self.hash64().into()),
        }
    }

    /// Returns the integer that a numeric key is equal to; `None` for a fraction, for a double beyond ±2^53, and for
    /// another type.
    fn whole_number(&self) -> Option<i64> {
        match self.kind() {
            0x10 => Some(i32::from_le_bytes(self.value().try_into().ok()?).into()),
            0x12 => Some(i64::from_le_bytes(self.value().try_into().ok()?)),
            0x01 => {
                let value = f64::from_le_bytes(self.value().try_into().ok()?);
                // Within ±2^53, each whole double is exactly one integer.
                let whole = value.trunc() == value && value.abs() <= 9_007_199_254_740_992.0;
                whole.then_some(value as i64)
            }
            _ => None,
        }
    }
}

/// Mixes the bits of a value with the finalizer of MurmurHash3 (Appleby). The value is first XORed with a constant,
/// since 0 is a fixed point of the finalizer.
fn mixed(value: u64) -> u64 {
    let mut hash = value ^ 0x9e37_79b9_7f4a_7c15;
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// Encodes a BSON document with one field, whose name is empty and whose value has the type `kind` and these bytes.
fn alone(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = value.len() + 7;
    let mut document = Vec::with_capacity(length);
    document.extend_from_slice(&(length as u32).to_le_bytes());
    document.extend_from_slice(&[kind, 0]);
    document.extend_from_slice(value);
    document.push(0);
    document
}

/// Returns true if `value` is exactly one value of the BSON type `kind`. Types of a fixed size are checked by length,
/// as nearly all keys have such a type.
fn is_value(kind: u8, value: &[u8]) -> bool {
    match kind {
        0x01 | 0x09 | 0x11 | 0x12 => value.len() == 8,
        0x10 => value.len() == 4,
        0x07 => value.len() == 12,
        0x13 => value.len() == 16,
        0x08 => matches!(value, [0 | 1]),
        0x0a | 0x7f | 0xff => value.is_empty(),
        _ => {
            let Ok(document) = RawDocumentBuf::from_bytes(alone(kind, value)) else { return false };
            let mut fields = document.iter();
            let first =
                matches!(fields.next(), Some(Ok((_, field))) if Bson::try_from(field).is_ok());
            first && fields.next().is_none()
        }
    }
}

impl From<i64> for Key {
    fn from(value: i64) -> Self {
        Self::unchecked(0x12, &value.to_le_bytes())
    }
}

impl From<&Bson> for Key {
    fn from(value: &Bson) -> Self {
        match value {
            Bson::Int64(value) => Self::from(*value),
            other => {
                let document = bson::doc! { "": other.clone() };
                let bytes = document.to_vec().expect("a document in memory is written to memory");
                Self::unchecked(bytes[4], &bytes[6..bytes.len() - 1])
            }
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_bson())
    }
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::{DateTime, doc};

    use super::*;

    fn kinds() -> Vec<Bson> {
        vec![
            Bson::Int64(-7),
            Bson::Int32(7),
            Bson::Double(0.5),
            Bson::String("order-1042".into()),
            Bson::String("an identifier that is longer than twenty-two bytes".into()),
            Bson::ObjectId(ObjectId::from_bytes([9; 12])),
            Bson::DateTime(DateTime::from_millis(1_700_000_000_000)),
            Bson::Boolean(true),
            Bson::Null,
            Bson::MinKey,
            Bson::from(bson::Uuid::from_bytes([3; 16])),
            Bson::Document(doc! { "region": "eu", "number": 7 }),
        ]
    }

    #[test]
    fn a_key_is_the_value_that_it_was_made_of() {
        for value in kinds() {
            let key = Key::from(&value);
            assert_eq!(key.to_bson(), value);
            assert_eq!(Key::from_parts(key.kind(), key.value()), Some(key.clone()));
            let raw = RawDocumentBuf::try_from(&doc! { "_id": value }).unwrap();
            assert_eq!(Key::from_raw(raw.get("_id").unwrap().unwrap()), key);
        }
    }

    #[test]
    fn keys_that_differ_have_different_hashes() {
        let hashes: std::collections::HashSet<u64> =
            kinds().iter().map(|value| Key::from(value).hash64()).collect();
        assert_eq!(hashes.len(), kinds().len());
    }

    #[test]
    fn numbers_that_are_one_id_to_mongodb_have_one_hash() {
        let hash = |value: Bson| Key::from(&value).hash64();
        assert_eq!(hash(Bson::Int32(7)), hash(Bson::Int64(7)));
        assert_eq!(hash(Bson::Double(7.0)), hash(Bson::Int64(7)));
        assert_ne!(hash(Bson::Double(7.5)), hash(Bson::Int64(7)));
    }

    #[test]
    fn the_low_bits_of_hashes_of_consecutive_numbers_are_spread_evenly() {
        let mut counts = [0u32; 16];
        for number in 0..16_000 {
            counts[(Key::from(number).hash64() & 15) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn bytes_that_are_no_value_of_their_type_are_no_key() {
        assert_eq!(Key::from_parts(0x12, &[0; 7]), None);
        assert_eq!(Key::from_parts(0x02, &[9, 0, 0, 0, b'a', 0]), None);
        assert_eq!(Key::from_parts(0x08, &[2]), None);
        assert_eq!(Key::from_parts(0x44, &[]), None);
    }

    #[test]
    fn a_key_takes_24_bytes() {
        assert_eq!(size_of::<Key>(), 24);
    }
}

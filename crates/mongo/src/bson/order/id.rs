//! An owned `_id`: a small, comparable, hashable value that preserves the stored bytes.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use bson::{RawBsonRef, RawDocument};
use thiserror::Error;

use super::{Element, Value, element, hash_value, id_element, payload_of};
use crate::bson::ext_json::ExtJson;

/// Largest size in bytes of an `_id`, with seven bytes of frame, that is stored without a heap allocation. It
/// suffices for ObjectIds, numbers, dates, UUIDs and strings of up to 18 bytes.
const INLINE_BYTES: usize = 30;

/// Reason why a document has no usable `_id`.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum IdError {
    /// The document has no `_id` field.
    #[error("a document of {document_bytes} bytes has no _id field")]
    Missing {
        /// Length of the document, in bytes.
        document_bytes: usize,
    },
    /// The `_id` contains bytes that are not a valid BSON value (mostly strings that are not UTF-8).
    #[error(
        "the _id of type 0x{kind:02x} with the bytes {hex} cannot be read as BSON: {cause}; \
         rewrite that document under a valid _id"
    )]
    Malformed {
        /// BSON type byte of the `_id`.
        kind: u8,
        /// The first 32 bytes of the `_id`'s value, in hexadecimal.
        hex: String,
        /// Error message of the BSON parser.
        cause: String,
    },
}

/// An owned `_id` value of any BSON type.
///
/// `Eq`, `Ord` and `Hash` agree with mongod: `1`, `1.0` and `NumberDecimal("1.00")` are one `_id`. The stored bytes
/// are preserved, so that [`Id::as_raw`] returns the original type.
#[derive(Clone)]
pub struct Id(Repr);

/// The BSON document `{"": value}` that stores an `_id`; inline if it is at most [`INLINE_BYTES`] long.
#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

impl Id {
    /// Returns an `_id` that owns a copy of `value`.
    #[must_use]
    pub fn from_raw(value: RawBsonRef<'_>) -> Self {
        match value {
            RawBsonRef::ObjectId(v) => Self::from_parts(0x07, &v.bytes()),
            RawBsonRef::Int32(v) => Self::from_parts(0x10, &v.to_le_bytes()),
            RawBsonRef::Int64(v) => Self::from_parts(0x12, &v.to_le_bytes()),
            RawBsonRef::Document(v) => Self::from_parts(0x03, v.as_bytes()),
            other => Self::from_parts(other.element_type() as u8, &payload_of(other)),
        }
    }

    /// Returns the `_id` of `document`, as a server stored it.
    ///
    /// # Errors
    /// Fails if the document has no `_id`, or its `_id` is not valid BSON.
    pub fn of_document(document: &RawDocument) -> Result<Self, IdError> {
        let bytes = document.as_bytes();
        let found = id_element(bytes).ok_or(IdError::Missing { document_bytes: bytes.len() })?;
        let id = Self::from_parts(found.kind, found.payload);
        match id.check() {
            Ok(()) => Ok(id),
            Err(cause) => {
                let hex = found.payload.iter().take(32).map(|b| format!("{b:02x}")).collect();
                Err(IdError::Malformed { kind: found.kind, hex, cause: cause.to_string() })
            }
        }
    }

    /// Returns the `_id` as a BSON value of its original type.
    #[must_use]
    pub fn as_raw(&self) -> RawBsonRef<'_> {
        self.parse().expect("an Id was parsed when it was made")
    }

    /// Returns the memory that this `_id` takes, in bytes, including the heap.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let heap = match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Heap(bytes) => bytes.len(),
        };
        size_of::<Self>() + heap
    }

    /// Returns a hash of the `_id` that is the same in every process and release of Imago, for lanes and buckets.
    /// Equal `_id`s have equal hashes.
    #[must_use]
    pub fn stable_hash(&self) -> u64 {
        let mut state = StableHasher::new();
        hash_value(self.as_raw(), &mut state);
        state.finish()
    }

    fn from_parts(kind: u8, payload: &[u8]) -> Self {
        let frame = element::WRAPPED_PAYLOAD + 1;
        let len = payload.len() + frame;
        let size = i32::try_from(len).expect("a BSON value is below 2 GiB").to_le_bytes();
        let fill = |bytes: &mut [u8]| {
            bytes[..4].copy_from_slice(&size);
            bytes[4] = kind;
            bytes[element::WRAPPED_PAYLOAD..len - 1].copy_from_slice(payload);
        };
        if len <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            fill(&mut bytes);
            Id(Repr::Inline { len: u8::try_from(len).expect("at most 30"), bytes })
        } else {
            let mut bytes = vec![0; len].into_boxed_slice();
            fill(&mut bytes);
            Id(Repr::Heap(bytes))
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }

    fn parse(&self) -> bson::error::Result<RawBsonRef<'_>> {
        let document = RawDocument::from_bytes(self.bytes())?;
        let first = document.iter_elements().next();
        first.expect("an Id holds one element")?.value()
    }

    fn check(&self) -> bson::error::Result<()> {
        check_deep(self.parse()?)
    }

    /// Returns the `_id` as an element of a document, with an empty name.
    #[must_use]
    pub fn as_element(&self) -> Element<'_> {
        let bytes = self.bytes();
        Element {
            kind: bytes[4],
            name: b"",
            payload: &bytes[element::WRAPPED_PAYLOAD..bytes.len() - 1],
        }
    }

    fn value(&self) -> Value<'_> {
        self.as_element().value()
    }
}

/// Checks that `value` and every nested value can be parsed, so that no later access to the `_id` fails.
fn check_deep(value: RawBsonRef<'_>) -> bson::error::Result<()> {
    let document = match value {
        RawBsonRef::Document(document) => document,
        RawBsonRef::Array(array) => RawDocument::from_bytes(array.as_bytes())?,
        RawBsonRef::JavaScriptCodeWithScope(code) => code.scope,
        _ => return Ok(()),
    };
    // The server limits nesting to 200 levels, so the recursion does not exhaust the stack.
    document.iter().try_for_each(|field| check_deep(field?.1))
}

impl Ord for Id {
    fn cmp(&self, other: &Self) -> Ordering {
        self.value().cmp(&other.value())
    }
}

impl PartialOrd for Id {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes() || self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value().hash_into(state);
    }
}

impl fmt::Display for Id {
    /// Writes the `_id` as canonical extended JSON, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_string(&ExtJson(self.as_raw())) {
            Ok(text) => f.write_str(&text),
            Err(cause) => write!(f, "(_id that is no valid BSON: {cause})"),
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A hasher: 64-bit FNV-1a with a final mix of the bits, so that the low bits can select a lane.
struct StableHasher(u64);

impl StableHasher {
    fn new() -> Self {
        StableHasher(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        let mut bits = self.0;
        bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        bits ^ (bits >> 33)
    }
}

//! Serialization of keys and values as byte strings, not as sequences of numbers.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::{Key, Value as Stored};

/// A row's value that is serialized as a byte string.
pub(crate) struct Bytes(pub(crate) Stored);

/// The visitor that deserializes a value from a byte string, or from a sequence of bytes.
struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = Stored;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(bytes.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(byte) = bytes.next_element()? {
            all.push(byte);
        }
        Ok(all.into())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(Whole).map(Self)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(Whole).map(|bytes| Self::from_bytes(&bytes))
    }
}

/// Serde functions for a field that is one value, serialized as a byte string.
pub(crate) mod value {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer, Stored};

    pub(crate) fn serialize<S: Serializer>(value: &Stored, to: S) -> Result<S::Ok, S::Error> {
        Bytes(Stored::clone(value)).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Stored, D::Error> {
        Bytes::deserialize(from).map(|bytes| bytes.0)
    }
}

/// Serde functions for a field that is a list of keys with their values, each serialized as a byte string.
pub(crate) mod pairs {
    use super::{Bytes, Deserialize, Deserializer, Key, Serializer, Stored};

    pub(crate) fn serialize<S: Serializer>(
        pairs: &[(Key, Stored)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(pairs.iter().map(|(key, value)| (key, Bytes(Stored::clone(value)))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(Key, Stored)>, D::Error> {
        let pairs = Vec::<(Key, Bytes)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(key, value)| (key, value.0)).collect())
    }
}

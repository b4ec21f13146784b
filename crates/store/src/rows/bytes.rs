//! Serialization of rows: a sequence in key order.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Row, Rows};
use crate::key::{Key, Value};
use crate::record::StoredValue;

impl Serialize for Rows {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        let mut all = to.serialize_seq(usize::try_from(self.size().rows).ok())?;
        for (key, row) in self.iter() {
            all.serialize_element(&(key, row.version, StoredValue(Value::clone(&row.value))))?;
        }
        all.end()
    }
}

/// The visitor that deserializes rows from a sequence, and rejects a sequence that is not in key order.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Rows;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("rows in the order of their keys")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Rows, A::Error> {
        let mut all: Vec<(Key, Row)> = Vec::new();
        while let Some((key, version, value)) = rows.next_element::<(Key, u64, StoredValue)>()? {
            if all.last().is_some_and(|(last, _)| *last >= key) {
                return Err(serde::de::Error::custom("the keys are not in their order"));
            }
            all.push((key, Row { version, value: value.0 }));
        }
        Ok(Rows::from_sorted(all))
    }
}

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(InOrder)
    }
}

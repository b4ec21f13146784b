//! A shard key: its valid forms, and its value for a document.
//!
//! The value of a key is a document of the key's fields, in their order; chunks are ranges of such documents. A field
//! that a document lacks counts as null. For a hashed field the hash counts, which the servers compute themselves
//! (`$toHashedIndexKey`), so that Imago never disagrees with them about a type.
//!
//! Invariant: [`Key::value`] orders documents as the servers' chunks do.

use bson::raw::{CString, RawBsonRef};
use bson::{Bson, Document, RawBson, RawDocument, RawDocumentBuf, doc};

use crate::bson::ext_json::ExtJson;
use crate::bson::input::parse_document;
use crate::bson::order::Id;
use crate::error::{Error, Result};

/// The hash that stands for an absent field in a hashed shard key: the servers' hash of null.
const HASH_OF_NULL: i64 = 2_338_878_944_348_059_895;

/// A shard key that the servers accept.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The key as the servers write it: `1` or `"hashed"` for each field, in order.
    pub pattern: Document,
}

/// The value of a shard key for one document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The value, as a document of the key's fields.
    pub(crate) at: Id,
    /// True if the document lacks a field of the key.
    pub(crate) is_missing: bool,
    /// True if a field of the key holds an array, which is not allowed in a shard key.
    pub(crate) is_array: bool,
}

impl Key {
    /// Parses a shard key that a user typed, in extended JSON.
    ///
    /// # Errors
    /// Returns a usage error if the servers would refuse the key.
    pub fn parse(text: &str) -> Result<Self> {
        let key = Self { pattern: parse_document(text, "the shard key")? };
        let bad = |why: String| {
            Err(Error::usage(
                format!("{text} cannot be a shard key: {why}"),
                r#"name its fields with 1, at most one of them with "hashed", such as {"user": 1, "_id": "hashed"}"#,
            ))
        };
        if key.pattern.is_empty() {
            return bad("it has no field".into());
        }
        for (field, way) in &key.pattern {
            if field.split('.').any(|part| part.is_empty() || part.starts_with('$')) {
                return bad(format!("{field:?} is no name of a field"));
            }
            if !is_hashed(way) && !is_ascending(way) {
                return bad(format!("{field} is neither 1 nor \"hashed\" but {way}"));
            }
        }
        if key.pattern.values().filter(|way| is_hashed(way)).count() > 1 {
            return bad("more than one field is hashed".into());
        }
        Ok(key)
    }

    /// Returns the names of the key's fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.pattern.keys().map(String::as_str)
    }

    /// Returns true if the shard key `other` has the same fields in the same order, each hashed or not as in this
    /// key; `1` and `1.0` are the same.
    #[must_use]
    pub fn is_same(&self, other: &Document) -> bool {
        let ways = self.pattern.iter().zip(other);
        self.pattern.len() == other.len() && { ways }
            .all(|((field, way), (other, its))| field == other && is_hashed(way) == is_hashed(its))
    }

    /// Returns the key as extended JSON, in the form in which a user types it.
    #[must_use]
    pub fn text(&self) -> String {
        let field = |(name, way): (&String, &Bson)| {
            let way = if is_hashed(way) { "\"hashed\"" } else { "1" };
            format!("{}: {way}", Bson::String(name.clone()))
        };
        format!("{{{}}}", self.pattern.iter().map(field).collect::<Vec<String>>().join(", "))
    }

    /// Returns true if a collection that is sharded by this key can have `index`. Each shard enforces a unique index
    /// only among its own documents. The index is unique in the cluster if equal documents are on one shard, and they
    /// are if the index begins with the key. An index that begins with `_id` is no less unique than the index of
    /// `_id`, which every collection has.
    pub(crate) fn keeps(&self, index: &Document) -> bool {
        if !index.get_bool("unique").unwrap_or(false) {
            return true;
        }
        let Ok(indexed) = index.get_document("key") else { return true };
        let fields: Vec<&str> = indexed.keys().map(String::as_str).collect();
        let wanted: Vec<&str> = self.fields().collect();
        fields.first() == Some(&"_id") || fields.starts_with(&wanted)
    }

    /// Returns the aggregation expression that extracts from a document the fields that [`Key::value`] needs. The
    /// extracted fields are named `f0`, `f1`, …, because the name of a key's field may have dots.
    pub(crate) fn expression(&self) -> Document {
        let part = |(index, (field, way)): (usize, (&String, &Bson))| {
            let path = format!("${field}");
            // Missing fields and arrays, which no key may hold, are extracted unchanged and not hashed.
            let as_it_is = doc! {"$or": [
                {"$isArray": [&path]}, {"$eq": [{"$type": &path}, "missing"]},
            ]};
            let taken = match is_hashed(way) {
                false => Bson::String(path),
                true => Bson::Document(doc! {
                    "$cond": [as_it_is, &path, {"$toHashedIndexKey": &path}],
                }),
            };
            (format!("f{index}"), taken)
        };
        self.pattern.iter().enumerate().map(part).collect()
    }

    /// Returns the key's value for a document, given the document's extract by [`Key::expression`].
    pub(crate) fn value(&self, taken: &RawDocument) -> Result<Value> {
        let (mut is_missing, mut is_array) = (false, false);
        let mut at = RawDocumentBuf::new();
        for (index, (field, way)) in self.pattern.iter().enumerate() {
            let failed = |cause: bson::error::Error| Error::malformed("a sampled document", cause);
            let name = CString::try_from(field.as_str()).map_err(failed)?;
            let part = taken.get(format!("f{index}")).map_err(failed)?;
            is_missing |= part.is_none();
            is_array |= matches!(part, Some(RawBsonRef::Array(_)));
            match part {
                Some(value) => at.append(name, value),
                None if is_hashed(way) => at.append(name, HASH_OF_NULL),
                None => at.append(name, RawBson::Null),
            }
        }
        Ok(Value { at: Id::from_raw(RawBsonRef::Document(&at)), is_missing, is_array })
    }
}

pub(crate) fn is_hashed(way: &Bson) -> bool {
    way.as_str() == Some("hashed")
}

fn is_ascending(way: &Bson) -> bool {
    match way {
        Bson::Int32(way) => *way == 1,
        Bson::Int64(way) => *way == 1,
        #[expect(clippy::float_cmp, reason = "exactly this number")]
        Bson::Double(way) => *way == 1.0,
        _ => false,
    }
}

/// Returns the value of a shard key as canonical extended JSON.
pub(crate) fn text_of(value: &Id) -> Result<String> {
    let failed = |cause| Error::malformed("a shard key's value", cause);
    serde_json::to_string(&ExtJson(value.as_raw())).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;
    use proptest::prelude::*;

    #[test]
    fn what_servers_refuse_is_a_mistake_in_typing() {
        for bad in [
            "{}",
            "{user: 1",
            r#"{"user": -1}"#,
            r#"{"place": "2dsphere"}"#,
            r#"{"words": "text"}"#,
            r#"{"a": "hashed", "b": "hashed"}"#,
            r#"{"$a": 1}"#,
            r#"{"a..b": 1}"#,
            "[1]",
        ] {
            assert!(matches!(Key::parse(bad), Err(Error::Usage { .. })), "{bad}");
        }
    }

    #[test]
    fn a_key_is_written_as_it_is_typed() {
        let text = r#"{"a.b": 1, "c": "hashed"}"#;
        assert_eq!(Key::parse(text).unwrap().text(), text);
        assert!(Key::parse(text).unwrap().is_same(&doc! {"a.b": 1.0, "c": "hashed"}));
        assert!(!Key::parse(text).unwrap().is_same(&doc! {"c": "hashed", "a.b": 1}));
        assert_eq!(Key::parse("{'a.b': 1, c: 'hashed'}").unwrap().text(), text);
    }

    fn value(taken: &RawDocument) -> Value {
        Key::parse(r#"{"a": 1, "b.c": 1}"#).unwrap().value(taken).unwrap()
    }

    #[test]
    fn a_field_that_is_not_there_counts_as_null() {
        let lacking = value(&rawdoc! {"f1": 5});
        assert_eq!(lacking.at, value(&rawdoc! {"f0": null, "f1": 5}).at);
        assert!(lacking.is_missing);
        assert!(!value(&rawdoc! {"f0": null, "f1": 5}).is_missing);
    }

    #[test]
    fn an_array_is_told() {
        assert!(value(&rawdoc! {"f0": [1], "f1": 5}).is_array);
    }

    #[test]
    fn the_ends_of_the_key_space_lie_outside_of_every_value() {
        let end = |end: RawBson| {
            Id::from_raw(RawBsonRef::Document(&rawdoc! {"a": end.clone(), "b.c": end}))
        };
        let null = value(&rawdoc! {}).at;
        assert!(end(RawBson::MinKey) < null && null < end(RawBson::MaxKey));
    }

    proptest! {
        #[test]
        fn values_order_field_by_field(
            a in (any::<i32>(), "[a-c]{0,2}"), b in (any::<i32>(), "[a-c]{0,2}"),
        ) {
            let of = |(number, text): &(i32, String)| {
                value(&rawdoc! {"f0": *number % 3, "f1": text.as_str()}).at
            };
            let pair = |(number, text): &(i32, String)| (*number % 3, text.clone());
            prop_assert_eq!(of(&a).cmp(&of(&b)), pair(&a).cmp(&pair(&b)));
        }
    }
}

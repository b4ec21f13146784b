//! The form of write by which a document arrives byte for byte.
//!
//! Servers replace zero timestamps by the present time, interpret `$` and dots in top-level names as operators, and
//! describe a change by the names of fields, two of which may be equal in one document. So not every document can be
//! inserted, or replaced, or changed: its bytes decide.

use std::collections::HashSet;
use std::sync::LazyLock;

use bson::raw::{RawArrayBuf, RawBsonRef, cstr};
use bson::spec::ElementType;
use bson::{RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use memchr::memmem::Finder;

use super::Found;
use crate::bson::order::element_at;
use crate::replicate::pair::Pair;

/// The forms of write by which a document arrives at a server unchanged, byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// True if a plain insert leaves the document unchanged. Otherwise only the upsert of a [`replacement`] does, and
    /// only if no version of the document exists: a server that changes a top-level zero timestamp inserts its own
    /// time.
    pub inserts: bool,
    /// True if an update whose `u` is the plain document leaves it unchanged.
    pub replaces: bool,
}

/// Determines the forms of write that leave a document unchanged, from its top-level fields.
pub(crate) fn form(raw: &RawDocument) -> Form {
    let mut form = Form { inserts: true, replaces: true };
    for field in raw.iter_elements() {
        // The server may be able to read a field that this library cannot: the document is written in the plain form.
        let Ok(field) = field else { break };
        let name = field.key().as_str();
        if name.starts_with('$') || name.contains('.') {
            form.replaces = false;
        }
        if field.element_type() == ElementType::Timestamp
            && name != "_id"
            && matches!(
                field.value(),
                Ok(RawBsonRef::Timestamp(Timestamp { time: 0, increment: 0 }))
            )
        {
            form = Form { inserts: false, replaces: false };
        }
    }
    form
}

/// Returns [`Form::inserts`] of a document, without parsing every field if no zero timestamp is possible: in the
/// bulk, parsing would cost more than all other work on a document.
///
/// A zero timestamp is encoded as its type, its name, a NUL and eight zeros: before nine zeros, only the bytes back
/// to the previous NUL can be its type and name.
pub(crate) fn inserts(raw: &RawDocument) -> bool {
    static ZEROS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(&[0; 9]));
    const TIMESTAMP: u8 = ElementType::Timestamp as u8;
    let bytes = raw.as_bytes();
    let is_suspect = |at: usize| {
        let before = bytes[..at].iter().rev().take_while(|byte| **byte != 0);
        before.copied().any(|byte| byte == TIMESTAMP)
    };
    !ZEROS.find_iter(bytes).any(is_suspect) || form(raw).inserts
}

/// Returns true if only an insert leaves the document unchanged, so that an older version at the destination must be
/// removed first.
pub(super) fn needs_room(raw: &RawDocument) -> bool {
    let form = form(raw);
    !form.inserts || (!form.replaces && has_twins(raw))
}

/// Returns true if a document has two fields of the same name, at any depth. Servers store such documents, but
/// describe a change of one by the names of its fields: their secondaries would make both fields equal.
fn has_twins(raw: &RawDocument) -> bool {
    let mut names = HashSet::new();
    raw.iter_elements().filter_map(Result::ok).any(|field| {
        !names.insert(field.key().as_str().to_owned()) || value_has_twins(field.value().ok())
    })
}

fn value_has_twins(value: Option<RawBsonRef<'_>>) -> bool {
    match value {
        Some(RawBsonRef::Document(inner)) => has_twins(inner),
        Some(RawBsonRef::Array(inner)) => inner.into_iter().any(|item| value_has_twins(item.ok())),
        _ => false,
    }
}

/// Size of a document, in bytes, up to which an update writes only its difference to the oplog. A larger document is
/// replaced as a whole if that leaves it unchanged.
const DIFF_BYTES_MAX: usize = 256 * 1024;

/// Returns the update statement that makes the destination of `pair` hold exactly the document `found`.
///
/// The fields of the shard key, which route the statement, are compared by bytes, as chunk bounds are: under another
/// collation several values are equal and may be on several shards, and a router refuses the statement (code 61).
pub(super) fn replacement(found: &Found<'_>, pair: &Pair) -> RawDocumentBuf {
    let mut q = RawDocumentBuf::new();
    match found.id.as_raw() {
        value @ RawBsonRef::Document(_) => q.append(cstr!("_id"), rawdoc! {"$eq": value}),
        value => q.append(cstr!("_id"), value),
    }
    for field in key_of(found.raw, &pair.shard_key).iter_elements() {
        let field = field.expect("a key is well framed");
        q.append(field.key(), rawdoc! {"$eq": field.value().unwrap_or(RawBsonRef::Null)});
    }
    let mut statement = RawDocumentBuf::new();
    statement.append(cstr!("q"), q);
    let is_large = found.raw.as_bytes().len() > DIFF_BYTES_MAX;
    if form(found.raw).replaces && (is_large || has_twins(found.raw)) {
        statement.append(cstr!("u"), RawBsonRef::Document(found.raw));
    } else {
        // As a pipeline, the update writes only the difference to the destination's oplog, or nothing if there is
        // none.
        let literal = rawdoc! {"$literal": RawBsonRef::Document(found.raw)};
        let mut pipeline = RawArrayBuf::new();
        pipeline.push(rawdoc! {"$replaceWith": literal});
        statement.append(cstr!("u"), pipeline);
    }
    statement.append(cstr!("upsert"), true);
    if pair.is_collated && !pair.shard_key.is_empty() {
        statement.append(cstr!("collation"), rawdoc! {"locale": "simple"});
    }
    statement
}

/// Returns a document with the values that `raw` has at `fields`, the paths of a shard key; null for an absent field,
/// as in a shard key.
pub(crate) fn key_of(raw: &RawDocument, fields: &[String]) -> RawDocumentBuf {
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.extend([0; 4]);
    for field in fields {
        let found = element_at(raw.as_bytes(), field);
        let (kind, payload) = found.map_or((NULL, [].as_slice()), |of| (of.kind, of.payload));
        key.push(kind);
        key.extend(field.as_bytes());
        key.push(0);
        key.extend(payload);
    }
    key.push(0);
    let len = i32::try_from(key.len()).expect("a part of a document is below 2 GiB");
    key[..4].copy_from_slice(&len.to_le_bytes());
    RawDocumentBuf::from_bytes(key).expect("a document's frame is around it")
}

/// Initial capacity of a key's buffer, in bytes.
const KEY_BYTES: usize = 64;
const NULL: u8 = ElementType::Null as u8;

/// Returns true if a document has an array at a field of a shard key (`fields`), or on the path to it, where none is
/// allowed. No shard owns such a document, and a router that filters by ownership never returns it.
pub(crate) fn has_array(raw: &RawDocument, fields: &[String]) -> bool {
    fields.iter().any(|path| {
        let mut here = raw;
        for name in path.split('.') {
            match here.get(name) {
                Ok(Some(RawBsonRef::Array(_))) => return true,
                Ok(Some(RawBsonRef::Document(inner))) => here = inner,
                _ => return false,
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn an_array_at_a_key_or_on_the_way_to_it_is_seen() {
        let has = |raw: &RawDocument, path: &str| has_array(raw, &["x".into(), path.into()]);
        let raw = rawdoc! {"x": 1, "a": {"b": [1], "c": {"d": 1}}, "e": [{"f": 1}]};
        assert!(has(&raw, "a.b") && has(&raw, "e") && has(&raw, "e.f"));
        assert!(
            !has(&raw, "a.c") && !has(&raw, "a.c.d") && !has(&raw, "a.c.d.g") && !has(&raw, "h")
        );
    }

    #[test]
    fn a_zero_timestamp_at_the_top_needs_a_pipeline() {
        let zero = Timestamp { time: 0, increment: 0 };
        let plain = Form { inserts: true, replaces: true };
        assert_eq!(form(&rawdoc! {"_id": 1, "t": Timestamp { time: 1, increment: 0 }}), plain);
        assert_eq!(form(&rawdoc! {"_id": zero, "deep": {"t": zero}}), plain);
        assert_eq!(form(&rawdoc! {"_id": 1, "t": zero}), Form { inserts: false, replaces: false });
    }

    proptest! {
        #[test]
        fn the_quick_look_misses_no_zero_timestamp(
            fields in vec((prop::sample::select(vec!["", "a", "\u{11}", "long name"]), 0..6_usize), 0..6),
        ) {
            let mut raw = RawDocumentBuf::new();
            for (name, kind) in fields {
                let name: &bson::raw::CStr = name.try_into().unwrap();
                match kind {
                    0 => raw.append(name, Timestamp { time: 0, increment: 0 }),
                    1 => raw.append(name, 0_i64),
                    2 => raw.append(name, 0.0),
                    3 => raw.append(name, rawdoc! {}),
                    4 => raw.append(name, Timestamp { time: 0, increment: 1 << 24 }),
                    _ => raw.append(name, 17),
                }
            }
            prop_assert_eq!(inserts(&raw), form(&raw).inserts);
        }
    }

    #[test]
    fn an_operator_like_name_is_no_replacement() {
        for name in [cstr!("$set"), cstr!("a.b")] {
            let mut odd = rawdoc! {"_id": 1};
            odd.append(name, 1);
            assert_eq!(form(&odd), Form { inserts: true, replaces: false });
        }
    }

    #[test]
    fn two_fields_of_one_name_are_found_at_any_depth() {
        let mut twins = rawdoc! {"a": 1};
        twins.append(cstr!("a"), 2);
        assert!(has_twins(&twins));
        assert!(has_twins(&rawdoc! {"_id": 1, "in": [{"deep": twins}]}));
        assert!(!has_twins(&rawdoc! {"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}));
    }

    #[test]
    fn a_missing_shard_key_field_is_null() {
        let raw = rawdoc! {"_id": 1, "a": {"b": 5}, "s": "text", "l": [{"b": 6}]};
        let key = |paths: &[&str]| {
            key_of(&raw, &paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(key(&["s", "a.b", "a"]), rawdoc! {"s": "text", "a.b": 5, "a": {"b": 5}});
        let missing = ["a.c", "a.b.c", "l.b", "b"];
        assert_eq!(key(&missing), rawdoc! {"a.c": null, "a.b.c": null, "l.b": null, "b": null});
    }
}

//! Detection of reads by `_id`: a `find` whose filter requires the `_id` to equal a value or one of a list, and whose
//! reply has all existing documents of these values. The filter may also require other fields to equal a value, as for
//! a shard key; a document that does not match them counts as missing.

use bson::raw::{RawBsonRef, RawDocument};

use crate::trace::Key;

/// Returns the keys that a `find` by `_id` requests, in order; `None` if the command is another kind of read.
pub(super) fn keys(find: &RawDocument) -> Option<Vec<Key>> {
    let filter = find.get_document("filter").ok()?;
    let keys = equal_to(filter.get("_id").ok()??)?;
    let others = filter.iter().all(|field| {
        field.is_ok_and(|(name, value)| name.as_str() == "_id" || is_equality(name.as_str(), value))
    });
    if !others {
        return None;
    }
    is_whole(find, &keys).then_some(keys)
}

/// Returns true if a condition of a filter requires the field `name` to equal a value, as for a shard key next to the
/// `_id`.
fn is_equality(name: &str, value: RawBsonRef<'_>) -> bool {
    let is_value = !matches!(
        value,
        RawBsonRef::Document(_) | RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_)
    );
    is_value && !name.starts_with('$')
}

/// Returns the values that a filter's condition on `_id` selects; `None` if the condition is not `$eq` or `$in` of
/// plain values.
fn equal_to(condition: RawBsonRef<'_>) -> Option<Vec<Key>> {
    let RawBsonRef::Document(document) = condition else {
        // A regular expression is a pattern, not a value.
        let is_value = !matches!(condition, RawBsonRef::RegularExpression(_));
        return is_value.then(|| vec![Key::from_raw(condition)]);
    };
    let mut fields = document.iter();
    let Some(first) = fields.next() else { return Some(vec![Key::from_raw(condition)]) };
    let (name, value) = first.ok()?;
    if !name.as_str().starts_with('$') {
        // The `_id` is a document.
        return Some(vec![Key::from_raw(condition)]);
    }
    if fields.next().is_some() {
        return None;
    }
    match (name.as_str(), value) {
        ("$eq", value) => Some(vec![Key::from_raw(value)]),
        ("$in", RawBsonRef::Array(values)) => {
            let values = values.into_iter().map(|value| match value.ok()? {
                RawBsonRef::RegularExpression(_) => None,
                value => Some(Key::from_raw(value)),
            });
            values.collect()
        }
        _ => None,
    }
}

/// Returns true if the reply to `find` shows for each of the keys whether its document exists: no limit, projection
/// or other option omits a document.
fn is_whole(find: &RawDocument, keys: &[Key]) -> bool {
    let number = |name: &str| match find.get(name) {
        Ok(Some(RawBsonRef::Int32(value))) => Some(i64::from(value)),
        Ok(Some(RawBsonRef::Int64(value))) => Some(value),
        Ok(Some(RawBsonRef::Double(value))) => Some(value as i64),
        _ => None,
    };
    let given = |name: &str| matches!(find.get(name), Ok(Some(_)));
    let wanted = i64::try_from(keys.len()).unwrap_or(i64::MAX);
    // A negative limit means its absolute value, in one batch.
    let all = |limit: Option<i64>| {
        limit.is_none_or(|limit| limit == 0 || limit.saturating_abs() >= wanted)
    };
    let without_id = match find.get_document("projection") {
        Ok(fields) => {
            matches!(
                fields.get("_id"),
                Ok(Some(RawBsonRef::Int32(0) | RawBsonRef::Int64(0) | RawBsonRef::Boolean(false)))
            ) || matches!(fields.get("_id"), Ok(Some(RawBsonRef::Double(value))) if value == 0.0)
        }
        Err(_) => false,
    };
    let one_batch = find.get_bool("singleBatch").unwrap_or(false);
    number("skip").is_none_or(|skip| skip == 0)
        && all(number("limit"))
        && (!one_batch || all(number("batchSize")))
        && !without_id
        && !given("collation")
        && !given("min")
        && !given("max")
}

#[cfg(test)]
mod tests {
    use bson::raw::cstr;
    use bson::{Bson, Document, RawDocumentBuf, doc};

    use super::*;

    fn of(find: Document) -> Option<Vec<Bson>> {
        let find = RawDocumentBuf::try_from(&find).unwrap();
        Some(keys(&find)?.iter().map(Key::to_bson).collect())
    }

    #[test]
    fn reads_by_id_are_known_in_their_forms() {
        let of = |filter: Document| of(doc! { "find": "messages", "filter": filter }).unwrap();
        assert_eq!(of(doc! { "_id": 17_i64 }), [Bson::Int64(17)]);
        assert_eq!(of(doc! { "_id": { "$eq": "order-7" } }), [Bson::from("order-7")]);
        assert_eq!(of(doc! { "_id": { "$in": [1, 2, 1] } }), [1, 2, 1].map(Bson::Int32));
        let composed = doc! { "region": "eu", "number": 7 };
        assert_eq!(of(doc! { "_id": composed.clone() }), [Bson::Document(composed)]);
        assert_eq!(of(doc! { "_id": { "$in": [] } }), []);
        assert_eq!(of(doc! { "region": "eu", "_id": 17_i64 }), [Bson::Int64(17)]);
    }

    #[test]
    fn other_reads_are_not_by_id() {
        let (pattern, options) = (cstr!("^a").to_owned(), cstr!("").to_owned());
        let pattern = Bson::RegularExpression(bson::Regex { pattern, options });
        for filter in [
            doc! {},
            doc! { "name": "Ada" },
            doc! { "_id": 17, "age": { "$gt": 40 } },
            doc! { "_id": 17, "$or": [{ "name": "Ada" }] },
            doc! { "_id": 17, "$comment": "a test" },
            doc! { "_id": { "$gt": 17 } },
            doc! { "_id": { "$in": [1], "$gt": 0 } },
            doc! { "_id": pattern.clone() },
        ] {
            assert_eq!(of(doc! { "find": "messages", "filter": filter.clone() }), None, "{filter}");
        }
        assert_eq!(of(doc! { "find": "messages" }), None);
    }

    #[test]
    fn a_read_whose_reply_leaves_documents_out_is_another() {
        let two = doc! { "find": "messages", "filter": { "_id": { "$in": [1, 2] } } };
        for (name, value) in [
            ("limit", Bson::Int32(1)),
            ("limit", Bson::Int64(-1)),
            ("skip", Bson::Int64(1)),
            ("projection", Bson::Document(doc! { "_id": 0 })),
            ("collation", Bson::Document(doc! { "locale": "en" })),
        ] {
            let mut find = two.clone();
            find.insert(name, value);
            assert_eq!(of(find.clone()), None, "{find}");
        }
        let mut whole = two;
        whole.insert("limit", 2);
        whole.insert("skip", 0);
        whole.insert("projection", doc! { "text": 1 });
        assert!(of(whole).is_some());
    }
}

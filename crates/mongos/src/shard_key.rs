//! Shard keys: their fields, and reading their values from documents and queries.

use std::cmp::Ordering;

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document};

use super::answer::{Failure, code};
use super::{hashed, order};

/// The fields of a collection's shard key, in order.
#[derive(Debug, Clone)]
pub(super) struct ShardKey {
    fields: Vec<Field>,
}

#[derive(Debug, Clone)]
struct Field {
    path: String,
    hashed: bool,
}

/// Position of a document, or of the matches of a query, in the order of a shard key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Located {
    /// A known position: one value for each field of the key, hashed for a hashed field.
    At(Vec<Bson>),
    /// A single position that only the servers can compute; the document has each field's value before hashing.
    AskServer(Document),
    /// The matches of the query may have more than one position.
    Ambiguous,
}

impl ShardKey {
    /// Creates the key from its pattern, the field `key` of an entry in `config.collections`.
    pub(super) fn new(pattern: &Document) -> Self {
        let fields = pattern.iter().map(|(path, kind)| Field {
            path: path.clone(),
            hashed: kind.as_str() == Some("hashed"),
        });
        Self { fields: fields.collect() }
    }

    /// Returns the values of `bound`, a bound of a chunk, in the order of the key's fields.
    pub(super) fn bound(&self, bound: &Document) -> Vec<Bson> {
        let value = |field: &Field| bound.get(&field.path).cloned().unwrap_or(Bson::Null);
        self.fields.iter().map(value).collect()
    }

    /// Returns the position of `document`. A missing field counts as null, as on the servers; an array is an error.
    pub(super) fn of_document(&self, document: &RawDocument) -> Result<Located, Failure> {
        let mut values = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let value = value_at(document, &field.path).map_err(|Array| {
                let message = format!(
                    "Shard key cannot contain array values or array descendants: field {}",
                    field.path
                );
                Failure::new(code::SHARD_KEY_NOT_FOUND, message)
            })?;
            values.push(value.unwrap_or(Bson::Null));
        }
        Ok(self.place(values))
    }

    /// Returns the position of the matches of `query`, which only equality on every field of the key determines.
    pub(super) fn of_query(&self, query: &Document) -> Located {
        let values = self.fields.iter().map(|field| equality(query, &field.path));
        match values.collect() {
            Some(values) => self.place(values),
            None => Located::Ambiguous,
        }
    }

    fn place(&self, values: Vec<Bson>) -> Located {
        let placed = self.fields.iter().zip(&values).map(|(field, value)| {
            if field.hashed {
                hashed::hash(value).map(Bson::Int64)
            } else {
                // A value that is comparable with itself is comparable with every bound.
                order::compare(value, value).map(|_| value.clone())
            }
        });
        match placed.collect() {
            Some(placed) => Located::At(placed),
            None => {
                let paths = self.fields.iter().map(|field| field.path.clone());
                Located::AskServer(paths.zip(values).collect())
            }
        }
    }
}

/// Compares two positions field by field. Returns `None` if only the servers can compare them.
pub(super) fn compare(left: &[Bson], right: &[Bson]) -> Option<Ordering> {
    for (left, right) in left.iter().zip(right) {
        match order::compare(left, right)? {
            Ordering::Equal => {}
            order => return Some(order),
        }
    }
    Some(Ordering::Equal)
}

/// Error: a field of the shard key contains an array in the document.
struct Array;

fn value_at(document: &RawDocument, path: &str) -> Result<Option<Bson>, Array> {
    let (first, rest) =
        path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    match (document.get(first), rest) {
        (Ok(Some(RawBsonRef::Array(_))), _) => Err(Array),
        (Ok(Some(RawBsonRef::Document(inner))), Some(rest)) => value_at(inner, rest),
        (Ok(Some(value)), None) => Ok(Bson::try_from(value).ok()),
        _ => Ok(None),
    }
}

/// Returns the single value that `query` requires of the field `path`; `None` if it does not require one value.
fn equality(query: &Document, path: &str) -> Option<Bson> {
    if let Some(condition) = query.get(path) {
        return value_of(condition);
    }
    let conjuncts = query.get_array("$and").ok()?;
    conjuncts.iter().filter_map(Bson::as_document).find_map(|part| equality(part, path))
}

fn value_of(condition: &Bson) -> Option<Bson> {
    let value = match condition {
        Bson::RegularExpression(_) => return None,
        Bson::Document(operators) if operators.keys().any(|key| key.starts_with('$')) => {
            if let Some(value) = operators.get("$eq") {
                value
            } else {
                // A choice of one value is equality.
                match operators.get_array("$in").map(|choices| &**choices) {
                    Ok([Bson::RegularExpression(_)]) => return None,
                    Ok([only]) => only,
                    _ => return None,
                }
            }
        }
        value => value,
    };
    // An array also matches documents that contain it as an element.
    (!matches!(value, Bson::Array(_))).then(|| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{bson, doc, rawdoc};

    fn at(values: impl IntoIterator<Item = Bson>) -> Located {
        Located::At(values.into_iter().collect())
    }

    #[test]
    fn a_document_is_placed_by_dotted_paths_and_nulls() {
        let key = ShardKey::new(&doc! { "a.b": 1, "c": 1 });
        let placed = key.of_document(&rawdoc! { "a": { "b": 5 } }).unwrap();
        assert_eq!(placed, at([bson!(5), Bson::Null]));
        assert!(key.of_document(&rawdoc! { "a": [1] }).is_err());
    }

    #[test]
    fn a_hashed_field_is_placed_by_its_hash() {
        let key = ShardKey::new(&doc! { "_id": "hashed" });
        let placed = key.of_document(&rawdoc! { "_id": 1 }).unwrap();
        assert_eq!(placed, at([Bson::Int64(5_902_408_780_260_971_510)]));
    }

    #[test]
    fn only_equality_on_every_field_places_a_query() {
        let key = ShardKey::new(&doc! { "a": 1, "b": 1 });
        let located = |query: Document| key.of_query(&query);
        assert_eq!(located(doc! { "a": 1, "b": { "$eq": 2 } }), at([bson!(1), bson!(2)]));
        assert_eq!(
            located(doc! { "$and": [{ "a": 1 }, { "b": { "$in": [2] } }] }),
            at([bson!(1), bson!(2)])
        );
        assert_eq!(located(doc! { "a": 1 }), Located::Ambiguous);
        assert_eq!(located(doc! { "a": 1, "b": { "$gt": 2 } }), Located::Ambiguous);
        assert_eq!(located(doc! { "a": 1, "b": { "$in": [2, 3] } }), Located::Ambiguous);
        assert_eq!(located(doc! { "a": 1, "b": [2] }), Located::Ambiguous);
    }

    #[test]
    fn a_decimal_is_for_the_server_to_place() {
        let decimal = Bson::Decimal128("1".parse().unwrap());
        let key = ShardKey::new(&doc! { "a": 1 });
        let located = key.of_query(&doc! { "a": decimal.clone() });
        assert_eq!(located, Located::AskServer(doc! { "a": decimal }));
    }
}

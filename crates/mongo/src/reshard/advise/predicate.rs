//! The conditions of a query that bound a shard key: equalities, lists and ranges of single fields.
//!
//! A condition that no router uses to choose shards is left out, and its kind is counted ([`Ignored`]). Ranges are taken as
//! closed: which side of its bound an open range lies on concerns one value.

use bson::raw::{RawBsonRef, RawDocument};

use crate::bson::order::Id;

/// Largest number of conditions of a query that are read.
const CONDITIONS_MAX: usize = 64;
/// Largest depth of nested `$and` and `$or`.
const DEPTH_MAX: usize = 8;
/// Largest size of a document that is compared as a value, in bytes.
const DOCUMENT_MAX: usize = 4_096;

/// A value in a condition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Datum {
    /// The value.
    Plain(Id),
    /// The value's hash as the server computes it, and the part of the documents with a smaller value in the field, in
    /// 2⁻³² of all. Equal values are known as such, and about where they lie, but not the value.
    Hidden {
        /// The server's hash.
        hash: i64,
        /// The part of the documents below.
        below: u32,
    },
}

/// A condition on one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// The field equals this value.
    Equal(Datum),
    /// The field equals one of these values.
    In(Vec<Datum>),
    /// The field is between these values; `None`: without a bound on that side.
    Between(Option<Datum>, Option<Datum>),
}

/// Returns true unless `value` is a document that is too large to be compared: a client could nest it without end, and
/// shard keys are small.
pub(super) fn is_small(value: RawBsonRef<'_>) -> bool {
    value.as_document().is_none_or(|document| document.as_bytes().len() <= DOCUMENT_MAX)
}

/// Returns a value of a query.
pub(super) fn plain(value: RawBsonRef<'_>) -> Datum {
    Datum::Plain(Id::from_raw(value))
}

/// A part of a query that does not bound shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ignored {
    /// `$or` of different fields.
    Or,
    /// `$expr`, `$where`, `$jsonSchema`, `$nor`, `$text`.
    Expression,
    /// An operator other than equality, list or range, such as `$ne`, `$exists`, `$regex`.
    Operator,
    /// A comparison with an array, which no shard key holds.
    Array,
    /// More conditions than are read, or deeper ones.
    TooMany,
    /// The source shortened the command, or redacted its values.
    Shortened,
    /// A collation, under which strings are not compared byte by byte.
    Collation,
}

impl Ignored {
    /// All kinds.
    pub(super) const ALL: [Self; 7] = [
        Self::Or,
        Self::Expression,
        Self::Operator,
        Self::Array,
        Self::TooMany,
        Self::Shortened,
        Self::Collation,
    ];

    /// Returns the description of such conditions for a report.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Or => "$or of several fields",
            Self::Expression => "$expr, $where, $nor, $text or $jsonSchema",
            Self::Operator => "operators other than equality, $in and ranges",
            Self::Array => "comparison with an array",
            Self::TooMany => "more or deeper conditions than are read",
            Self::Shortened => "commands that the source shortened or redacted",
            Self::Collation => "a collation, under which no router chooses shards",
        }
    }
}

/// The conditions of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Predicate {
    /// Conditions by the path of their field, such as `address.city`; no path occurs twice.
    pub(super) bounds: Vec<(String, Bound)>,
    /// Kinds of conditions that were left out, without repetition.
    pub(super) ignored: Vec<Ignored>,
}

impl Predicate {
    /// Reads the conditions of `query`.
    pub(super) fn of(query: &RawDocument) -> Self {
        let mut predicate = Self::default();
        predicate.read(query, 0);
        predicate
    }

    fn read(&mut self, query: &RawDocument, depth: usize) {
        for (name, value) in query.iter().flatten() {
            let name = name.as_str();
            if depth > DEPTH_MAX || self.bounds.len() >= CONDITIONS_MAX {
                return self.ignore(Ignored::TooMany);
            }
            match name {
                "$and" => self.read_all(value, depth),
                "$or" => self.read_or(value, depth),
                // They do not select documents.
                "$comment" | "$hint" => {}
                name if name.starts_with('$') => self.ignore(Ignored::Expression),
                path => self.read_field(path, value),
            }
        }
    }

    fn read_all(&mut self, branches: RawBsonRef<'_>, depth: usize) {
        for branch in documents(branches) {
            self.read(branch, depth + 1);
        }
    }

    /// Reads an `$or`: one branch counts as its conditions, and branches with equalities of one field as a list.
    fn read_or(&mut self, branches: RawBsonRef<'_>, depth: usize) {
        let branches: Vec<&RawDocument> = documents(branches).collect();
        if let [only] = &branches[..] {
            return self.read(only, depth + 1);
        }
        let mut values = Vec::new();
        let mut of: Option<String> = None;
        for branch in branches {
            let mut read = Self::default();
            read.read(branch, depth + 1);
            let [(path, bound)] = &read.bounds[..] else { return self.ignore(Ignored::Or) };
            let is_other = of.get_or_insert_with(|| path.clone()) != path;
            match bound {
                Bound::Equal(value) if !is_other => values.push(value.clone()),
                Bound::In(list) if !is_other => values.extend(list.iter().cloned()),
                _ => return self.ignore(Ignored::Or),
            }
        }
        if let Some(path) = of {
            self.add(path, Bound::In(values));
        }
    }

    fn read_field(&mut self, path: &str, value: RawBsonRef<'_>) {
        let operators = match value {
            RawBsonRef::Document(document) if is_operators(document) => document,
            RawBsonRef::RegularExpression(_) => return self.ignore(Ignored::Operator),
            RawBsonRef::Array(_) => return self.ignore(Ignored::Array),
            value if !is_small(value) => return self.ignore(Ignored::TooMany),
            value => return self.add(path.to_owned(), Bound::Equal(plain(value))),
        };
        let (mut low, mut high) = (None, None);
        for (operator, value) in operators.iter().flatten() {
            if !is_small(value) {
                self.ignore(Ignored::TooMany);
                continue;
            }
            match (operator.as_str(), value) {
                (
                    "$eq" | "$in" | "$gt" | "$gte" | "$lt" | "$lte",
                    RawBsonRef::RegularExpression(_),
                ) => {
                    self.ignore(Ignored::Operator);
                }
                ("$eq", RawBsonRef::Array(_)) => self.ignore(Ignored::Array),
                ("$eq", value) => self.add(path.to_owned(), Bound::Equal(plain(value))),
                ("$in", RawBsonRef::Array(values)) => {
                    let values: Vec<RawBsonRef<'_>> = values.into_iter().flatten().collect();
                    let is_plain = |value: &RawBsonRef<'_>| {
                        is_small(*value)
                            && !matches!(
                                value,
                                RawBsonRef::RegularExpression(_) | RawBsonRef::Array(_)
                            )
                    };
                    if values.iter().all(is_plain) {
                        let values = values.into_iter().map(plain).collect();
                        self.add(path.to_owned(), Bound::In(values));
                    } else {
                        self.ignore(Ignored::Operator);
                    }
                }
                ("$gt" | "$gte", value) => low = Some(plain(value)),
                ("$lt" | "$lte", value) => high = Some(plain(value)),
                _ => self.ignore(Ignored::Operator),
            }
        }
        if low.is_some() || high.is_some() {
            self.add(path.to_owned(), Bound::Between(low, high));
        }
    }

    /// Adds a condition; of several on one field the narrowest counts: an equality before a list, a list before a range.
    fn add(&mut self, path: String, bound: Bound) {
        let Some((_, known)) = self.bounds.iter_mut().find(|(other, _)| *other == path) else {
            return self.bounds.push((path, bound));
        };
        let narrowness = |bound: &Bound| match bound {
            Bound::Equal(_) => 0,
            Bound::In(_) => 1,
            Bound::Between(..) => 2,
        };
        match (&mut *known, bound) {
            (Bound::Between(low, high), Bound::Between(lower, higher)) => {
                // Both hold, so the greater lower and the smaller upper bound count.
                *low = low.take().into_iter().chain(lower).max();
                *high = high.take().into_iter().chain(higher).min();
            }
            (known, bound) if narrowness(&bound) < narrowness(known) => *known = bound,
            _ => {}
        }
    }

    fn ignore(&mut self, kind: Ignored) {
        if !self.ignored.contains(&kind) {
            self.ignored.push(kind);
        }
    }
}

fn documents(array: RawBsonRef<'_>) -> impl Iterator<Item = &RawDocument> {
    let array = array.as_array().into_iter().flat_map(|array| array.into_iter().flatten());
    array.filter_map(RawBsonRef::as_document)
}

/// Returns true if `document` is a condition, such as `{"$gt": 5}`, and not a value.
fn is_operators(document: &RawDocument) -> bool {
    let first = document.iter().flatten().next();
    first.is_some_and(|(name, _)| name.as_str().starts_with('$'))
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::{Bson, Document, RawDocumentBuf, doc};

    use super::*;

    fn of(query: Document) -> Predicate {
        Predicate::of(&RawDocumentBuf::try_from(&query).unwrap())
    }

    fn id(value: impl Into<Bson>) -> Datum {
        let document = RawDocumentBuf::try_from(&doc! {"v": value.into()}).unwrap();
        plain(document.get("v").unwrap().unwrap())
    }

    fn only(query: Document) -> (String, Bound) {
        let read = of(query);
        assert_eq!((read.bounds.len(), &read.ignored[..]), (1, &[][..]), "{read:?}");
        read.bounds[0].clone()
    }

    #[test]
    fn equalities_lists_and_ranges_bound_a_key() {
        let customer = ObjectId::parse_str("65f1c0ffee00000000000001").unwrap();
        assert_eq!(only(doc! {"customer": customer}).1, Bound::Equal(id(customer)));
        assert_eq!(
            only(doc! {"address.city": {"$in": ["Urbana", "Bonn"]}}),
            ("address.city".into(), Bound::In(vec![id("Urbana"), id("Bonn")]))
        );
        assert_eq!(
            only(doc! {"placed": {"$gte": 10, "$lt": 20}}).1,
            Bound::Between(Some(id(10)), Some(id(20)))
        );
        assert_eq!(
            only(doc! {"$and": [{"n": {"$gt": 1}}, {"n": {"$lt": 9}}, {"n": {"$gt": 3}}]}).1,
            Bound::Between(Some(id(3)), Some(id(9)))
        );
        assert_eq!(only(doc! {"$and": [{"n": {"$gt": 1}}, {"n": 5}]}).1, Bound::Equal(id(5)));
        // A document is a value unless it has operators.
        let place = doc! {"x": 1, "y": 2};
        assert_eq!(only(doc! {"place": place.clone()}).1, Bound::Equal(id(place)));
    }

    #[test]
    fn alternatives_of_one_field_are_a_list() {
        assert_eq!(
            only(doc! {"$or": [{"user": "ada"}, {"user": {"$in": ["bob", "eve"]}}]}).1,
            Bound::In(vec![id("ada"), id("bob"), id("eve")])
        );
        assert_eq!(only(doc! {"$or": [{"user": "ada"}]}).1, Bound::Equal(id("ada")));
        let two = of(doc! {"shop": 4, "$or": [{"user": "ada"}, {"owner": "ada"}]});
        assert_eq!(two.bounds, [("shop".to_owned(), Bound::Equal(id(4)))]);
        assert_eq!(two.ignored, [Ignored::Or]);
    }

    #[test]
    fn what_bounds_no_key_is_named() {
        for (query, kind) in [
            (doc! {"$expr": {"$eq": ["$a", 1]}}, Ignored::Expression),
            (doc! {"$where": "this.a == 1"}, Ignored::Expression),
            (doc! {"a": {"$ne": 3}}, Ignored::Operator),
            (doc! {"a": {"$exists": true}}, Ignored::Operator),
            (doc! {"a": {"$regex": "^x"}}, Ignored::Operator),
            (
                doc! {"a": Bson::RegularExpression(bson::Regex {
                    pattern: bson::raw::cstr!("^x").to_owned(),
                    options: bson::raw::cstr!("").to_owned(),
                })},
                Ignored::Operator,
            ),
            (doc! {"tags": ["new", "sale"]}, Ignored::Array),
        ] {
            let read = of(query.clone());
            assert_eq!((read.bounds, read.ignored), (vec![], vec![kind]), "{query}");
        }
        assert_eq!(of(doc! {"$comment": "nightly report"}), Predicate::default());
    }

    #[test]
    fn a_query_of_any_depth_is_read_within_bounds() {
        let mut nested = doc! {"a": 1};
        for _ in 0..40 {
            nested = doc! {"$and": [nested]};
        }
        assert_eq!(of(nested).ignored, [Ignored::TooMany]);
        let mut nested = doc! {"a": 1};
        for _ in 0..60 {
            nested = doc! {"$or": [nested.clone(), {"a": 2}]};
        }
        assert!(!of(nested).ignored.is_empty());
        let wide: Document = (0..500).map(|n| (format!("field{n}"), Bson::Int32(n))).collect();
        let read = of(wide);
        assert_eq!((read.bounds.len(), read.ignored), (CONDITIONS_MAX, vec![Ignored::TooMany]));
    }
}

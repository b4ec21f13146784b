//! The known values of each field, in the server's order: those of the sampled documents, and the bounds of chunks. They
//! turn values into the numbers with which [`imago_plan::shard_key`] computes.
//!
//! Known values have odd ranks, and all values between two known ones the even rank between: a chunk begins at a known
//! value, so no decision depends on the order of those between. Hashes of known values are the server's own; those of
//! others are computed as the server computes them.

use std::collections::HashMap;

use bson::Bson;
use bson::raw::RawBsonRef;

use imago_plan::shard_key::{Field, Value};

use crate::bson::order::Id;

/// Rank below those of all values.
const RANK_MIN: u32 = 0;

/// The known values of all fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Dictionary {
    /// Path of each field.
    paths: Vec<String>,
    /// Number of each path.
    fields: HashMap<String, Field>,
    /// Known values of each field, in order, with the server's hash where it is known.
    values: Vec<Vec<(Id, Option<i64>)>>,
}

impl Dictionary {
    /// Returns a dictionary of fields with these paths, without values.
    pub(super) fn new(paths: Vec<String>) -> Self {
        let fields = paths.iter().enumerate().map(|(at, path)| (path.clone(), at as Field));
        Self { fields: fields.collect(), values: vec![Vec::new(); paths.len()], paths }
    }

    /// Adds values of `field`, with their hashes where those are known.
    pub(super) fn add(&mut self, field: Field, values: impl Iterator<Item = (Id, Option<i64>)>) {
        self.values[usize::from(field)].extend(values);
    }

    /// Sorts the values, which completes the dictionary.
    pub(super) fn sort(&mut self) {
        for values in &mut self.values {
            // Those with a hash first, so that they remain.
            values.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.is_some().cmp(&a.1.is_some())));
            values.dedup_by(|later, first| later.0 == first.0);
        }
    }

    /// Returns the number of fields.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Returns the path of `field`.
    pub(super) fn path(&self, field: Field) -> &str {
        &self.paths[usize::from(field)]
    }

    /// Returns the field at `path`; `None` if it is not in the dictionary.
    pub(super) fn field(&self, path: &str) -> Option<Field> {
        self.fields.get(path).copied()
    }

    /// Returns the fields that change with the field at `path`: itself, those in it, and those that it is in.
    pub(super) fn changed_with(&self, path: &str) -> impl Iterator<Item = Field> {
        let is_in = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let paths = self.paths.iter().enumerate();
        paths
            .filter(move |(_, other)| is_in(other, path) || is_in(path, other))
            .map(|(at, _)| at as Field)
    }

    /// Returns the number of known values of `field`.
    pub(super) fn known(&self, field: Field) -> usize {
        self.values[usize::from(field)].len()
    }

    /// Returns the numbers of `value` in `field`.
    pub(super) fn value(&self, field: Field, value: &Id) -> Value {
        let known = &self.values[usize::from(field)];
        match known.binary_search_by(|(other, _)| other.cmp(value)) {
            Ok(at) => {
                let hash = known[at].1.unwrap_or_else(|| hash_of(value));
                Value { rank: 2 * at as u32 + 1, hash }
            }
            Err(at) => Value { rank: 2 * at as u32, hash: hash_of(value) },
        }
    }

    /// Returns the numbers of null in each field.
    pub(super) fn nulls(&self) -> Vec<Value> {
        let null = Id::from_raw(RawBsonRef::Null);
        (0..self.len() as Field).map(|field| self.value(field, &null)).collect()
    }

    /// Returns the values before and after all others of `field`.
    pub(super) fn ends(&self, field: Field) -> (Value, Value) {
        let last = Value { rank: 2 * self.known(field) as u32, hash: 0 };
        (Value { rank: RANK_MIN, hash: 0 }, last)
    }

    /// Returns the known values of `field` with a known hash: the hash and the rank of each.
    pub(super) fn hashes(&self, field: Field) -> impl Iterator<Item = (i64, u32)> {
        let known = self.values[usize::from(field)].iter().enumerate();
        known.filter_map(|(at, (_, hash))| Some(((*hash)?, 2 * at as u32 + 1)))
    }
}

/// Returns the hash by which a hashed index orders `value`. Decimals and some old types, whose hash only servers compute,
/// get another one, which spreads them as well.
pub(super) fn hash_of(value: &Id) -> i64 {
    let hash = Bson::try_from(value.as_raw()).ok().and_then(|value| imago_mongos::hash(&value));
    hash.unwrap_or_else(|| value.stable_hash().cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(value: i32) -> Id {
        Id::from_raw(RawBsonRef::Int32(value))
    }

    #[test]
    fn ranks_follow_the_servers_order_and_tell_known_values() {
        let mut dictionary = Dictionary::new(vec!["stars".into(), "user.name".into()]);
        let field = dictionary.field("stars").unwrap();
        dictionary.add(field, [30, 10, 20, 10].into_iter().map(|value| (id(value), None)));
        dictionary.add(field, [(id(20), Some(77))].into_iter());
        dictionary.sort();
        assert_eq!(dictionary.known(field), 3);
        let rank = |value: Id| dictionary.value(field, &value).rank;
        assert_eq!([5, 10, 15, 20, 30, 99].map(|value| rank(id(value))), [0, 1, 2, 3, 5, 6]);
        // A double of equal value is the same value, and null is before numbers.
        assert_eq!(rank(Id::from_raw(RawBsonRef::Double(20.0))), 3);
        assert_eq!(dictionary.nulls()[usize::from(field)].rank, 0);
        assert_eq!(dictionary.value(field, &id(20)).hash, 77, "the server's own hash");
        let (first, last) = dictionary.ends(field);
        assert_eq!((first.rank, last.rank), (0, 6));
        assert_eq!(dictionary.hashes(field).collect::<Vec<_>>(), [(77, 3)]);
    }

    #[test]
    fn hashes_are_the_servers() {
        // `db.c.aggregate({$project: {h: {$toHashedIndexKey: null}}})` on MongoDB 6.0.
        assert_eq!(hash_of(&Id::from_raw(RawBsonRef::Null)), 2_338_878_944_348_059_895);
        assert_ne!(hash_of(&id(1)), hash_of(&id(2)));
    }
}

//! The fields that a key may have: those in operations' conditions, in indexes and in `_id`, with the facts that rule a field
//! out, from a sample of the documents.

use std::collections::{BTreeMap, HashMap, HashSet};

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document, doc};
use imago_job::control::Control;
use imago_plan::shard_key::{Documents, Field, SampledDocument, Value};
use serde::{Deserialize, Serialize};

use super::dictionary::{Dictionary, hash_of};
use super::predicate::Datum;
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::reshard::plan::sample::{draw_each, owner_and_size, part};
use crate::reshard::plan::survey::Survey;
use crate::server::collection::Handle;
use crate::server::shard_key::Key;

/// Largest number of fields that are sampled.
pub(super) const FIELDS_MAX: usize = 64;
/// Share of documents that may lack a field of a key; of more, null would be a value that cannot be divided.
const MISSING_MAX: f64 = 0.1;
/// Share of documents with an array in a field from which on the field is ruled out; servers refuse any.
const ARRAYS_MAX: f64 = 0.0;

/// A field of the collection, as a part of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldFacts {
    /// Path of the field.
    pub field: String,
    /// Number of operations with a condition on the field, inserts not included.
    pub operations: u64,
    /// Number of different values in the sample.
    pub values: u64,
    /// Share of the sampled documents that lack the field.
    pub missing: f64,
    /// Share of the sampled documents that have an array there.
    pub arrays: f64,
    /// The reason why the field is in no key that is judged; `None` if it may be.
    pub ruled_out: Option<String>,
}

/// The sampled documents, and the known values of their fields.
pub(super) struct FieldSample {
    pub(super) documents: Documents,
    pub(super) dictionary: Dictionary,
    pub(super) facts: Vec<FieldFacts>,
    /// Ranks of known values by their hash, for each field.
    by_hash: Vec<HashMap<i64, u32>>,
    /// Ranks of the documents' values in order, for each field.
    ranks: Vec<Vec<u32>>,
}

impl FieldSample {
    fn new(documents: Documents, dictionary: Dictionary, facts: Vec<FieldFacts>) -> Self {
        let fields = 0..documents.fields() as Field;
        let by_hash = fields.clone().map(|field| unambiguous(dictionary.hashes(field))).collect();
        let nulls = dictionary.nulls();
        let sorted = |field| {
            let ranks = (0..documents.len()).map(|index| documents.value(index, field).rank);
            // Positions are among the documents that have the field.
            let null = nulls[usize::from(field)].rank;
            let mut ranks: Vec<u32> = ranks.filter(|rank| *rank != null).collect();
            ranks.sort_unstable();
            ranks
        };
        let ranks = fields.map(sorted).collect();
        Self { documents, dictionary, facts, by_hash, ranks }
    }

    /// Returns the numbers of a value of `field`. A hidden value that is not in the sample has the rank before the value at
    /// its part of the documents.
    pub(super) fn value(&self, field: Field, value: &Datum) -> Value {
        let (hash, below) = match value {
            Datum::Plain(id) => return self.dictionary.value(field, id),
            Datum::Hidden { hash, below } => (*hash, *below),
        };
        if let Some(rank) = self.by_hash[usize::from(field)].get(&hash) {
            return Value { rank: *rank, hash };
        }
        let ranks = &self.ranks[usize::from(field)];
        let at = (u64::from(below) * ranks.len() as u64) >> 32;
        let rank = ranks.get(at as usize).map_or(0, |rank| rank.saturating_sub(1));
        Value { rank, hash }
    }

    /// Returns the fields that a key may have.
    pub(super) fn usable(&self) -> Vec<Field> {
        let fields = self.facts.iter().enumerate().filter(|(_, facts)| facts.ruled_out.is_none());
        fields.map(|(field, _)| field as Field).collect()
    }
}

/// Returns the ranks by hash, without the hashes of several values: the server's hash of a double is that of its integer
/// part.
fn unambiguous(hashes: impl Iterator<Item = (i64, u32)>) -> HashMap<i64, u32> {
    let mut ranks: HashMap<i64, Option<u32>> = HashMap::new();
    for (hash, rank) in hashes {
        ranks.entry(hash).and_modify(|known| *known = None).or_insert(Some(rank));
    }
    ranks.into_iter().filter_map(|(hash, rank)| Some((hash, rank?))).collect()
}

/// Returns the paths of the fields to sample: those of `needed`, and those with conditions in most operations, by `uses`.
pub(super) fn paths(needed: Vec<String>, uses: &BTreeMap<String, u64>) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut paths: Vec<String> = Vec::new();
    let mut by_use: Vec<(&String, &u64)> = uses.iter().collect();
    by_use.sort_by_key(|(path, uses)| (std::cmp::Reverse(**uses), *path));
    for path in needed.into_iter().chain(by_use.into_iter().map(|(path, _)| path.clone())) {
        if paths.len() < FIELDS_MAX && is_path(&path) && seen.insert(path.clone()) {
            paths.push(path);
        }
    }
    paths
}

/// Returns true if `path` can be the path of a shard key's field.
fn is_path(path: &str) -> bool {
    path.split('.').all(|part| !part.is_empty() && !part.starts_with('$'))
}

/// Samples about `wanted` documents of the collection `of`, with the fields at `paths`. `old` is the present shard key,
/// `uses` the number of operations with a condition on each path.
///
/// # Errors
/// Fails if the cluster does not reply, or has no documents of the collection.
pub(super) async fn sample(
    of: &Handle,
    survey: &Survey,
    old: &Key,
    paths: Vec<String>,
    uses: &BTreeMap<String, u64>,
    wanted: u64,
    control: &Control,
) -> Result<FieldSample> {
    let pattern =
        |way: Bson| Key { pattern: paths.iter().map(|path| (path.clone(), way.clone())).collect() };
    let (plain, hashed) = (pattern(Bson::Int32(1)), pattern("hashed".into()));
    let projection: Document = doc! {
        "n": plain.expression(), "h": hashed.expression(), "o": old.expression(),
        "s": {"$bsonSize": "$$ROOT"},
    };
    let mut read = Read::new(paths.len());
    let drawn = draw_each(of, survey, projection, wanted, control, |document| {
        read.add(document, survey, old)
    });
    let is_whole = drawn.await?.is_whole;
    if read.documents.is_empty() {
        return Err(Error::precondition(
            format!("{} has no documents to sample", of.ns),
            "advice on a shard key needs the collection's documents",
        ));
    }
    if !is_whole {
        read.scale(survey.stored.bytes);
    }
    Ok(read.finish(paths, uses, survey, old))
}

/// The documents as they are read: of each field its value and the server's hash of it.
struct Read {
    fields: usize,
    documents: Vec<SampledDocument>,
    values: Vec<(Id, i64)>,
    missing: Vec<u64>,
    arrays: Vec<u64>,
}

impl Read {
    fn new(fields: usize) -> Self {
        Self {
            fields,
            documents: Vec::new(),
            values: Vec::new(),
            missing: vec![0; fields],
            arrays: vec![0; fields],
        }
    }

    fn add(&mut self, document: &RawDocument, survey: &Survey, old: &Key) -> Result<()> {
        let (shard, bytes) = owner_and_size(document, &survey.owners, old)?;
        let (plain, hashed) = (part(document, "n")?, part(document, "h")?);
        for field in 0..self.fields {
            let name = format!("f{field}");
            let value = match plain.get(&name).ok().flatten() {
                None => {
                    self.missing[field] += 1;
                    RawBsonRef::Null
                }
                Some(RawBsonRef::Array(_)) => {
                    self.arrays[field] += 1;
                    RawBsonRef::Null
                }
                Some(value) => value,
            };
            let id = Id::from_raw(value);
            let hash = match hashed.get(&name) {
                Ok(Some(RawBsonRef::Int64(hash))) if value != RawBsonRef::Null => hash,
                _ => hash_of(&id),
            };
            self.values.push((id, hash));
        }
        self.documents.push(SampledDocument { bytes, shard: shard as u16 });
        Ok(())
    }

    /// Has the documents stand for a collection of `bytes` bytes.
    fn scale(&mut self, bytes: u64) {
        let drawn: u64 = self.documents.iter().map(|document| document.bytes).sum();
        for document in &mut self.documents {
            let scaled = u128::from(document.bytes) * u128::from(bytes) / u128::from(drawn.max(1));
            document.bytes = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
    }

    fn finish(
        self,
        paths: Vec<String>,
        uses: &BTreeMap<String, u64>,
        survey: &Survey,
        old: &Key,
    ) -> FieldSample {
        let mut dictionary = Dictionary::new(paths.clone());
        for field in 0..self.fields {
            let values = self.values[field..].iter().step_by(self.fields);
            dictionary.add(field as Field, values.map(|(id, hash)| (id.clone(), Some(*hash))));
        }
        let distinct: Vec<u64> = {
            dictionary.sort();
            (0..self.fields).map(|field| dictionary.known(field as Field) as u64).collect()
        };
        add_bounds(&mut dictionary, survey, old);
        dictionary.sort();
        let count = self.documents.len() as f64;
        let mut documents = Documents::new(self.fields);
        for (document, values) in self.documents.iter().zip(self.values.chunks(self.fields)) {
            let ranked =
                |(field, (id, _)): (usize, &(Id, i64))| dictionary.value(field as Field, id);
            let values: Vec<_> = values.iter().enumerate().map(ranked).collect();
            documents.push(*document, &values);
        }
        let facts = paths.into_iter().enumerate().map(|(field, path)| {
            let missing = self.missing[field] as f64 / count;
            let arrays = self.arrays[field] as f64 / count;
            FieldFacts {
                ruled_out: ruled_out(distinct[field], missing, arrays),
                operations: uses.get(&path).copied().unwrap_or(0),
                values: distinct[field],
                field: path,
                missing,
                arrays,
            }
        });
        FieldSample::new(documents, dictionary, facts.collect())
    }
}

/// Adds the bounds of the present chunks to the known values, so that each operation is routed as it is now.
fn add_bounds(dictionary: &mut Dictionary, survey: &Survey, old: &Key) {
    for (path, way) in &old.pattern {
        let Some(field) = dictionary.field(path) else { continue };
        if crate::server::shard_key::is_hashed(way) {
            continue;
        }
        let bounds = survey.owners.chunks().iter().filter_map(|(bound, _)| {
            let value = bound.as_raw().as_document()?.get(path).ok()??;
            let is_value = !matches!(value, RawBsonRef::MinKey | RawBsonRef::MaxKey);
            is_value.then(|| (Id::from_raw(value), None))
        });
        dictionary.add(field, bounds.collect::<Vec<_>>().into_iter());
    }
}

fn ruled_out(values: u64, missing: f64, arrays: f64) -> Option<String> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    if arrays > ARRAYS_MAX {
        return Some(format!("{} of the documents hold an array there", percent(arrays)));
    }
    if missing > MISSING_MAX {
        return Some(format!("{} of the documents lack it", percent(missing)));
    }
    (values < 2).then(|| "all documents have one value there".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_needed_come_before_those_of_most_operations() {
        let uses = [("user", 90), ("product", 900), ("$bad", 9_000), ("stars", 1)];
        let uses = uses.into_iter().map(|(path, uses)| (path.to_owned(), uses)).collect();
        let paths = paths(vec!["_id".into(), "user".into(), "_id".into()], &uses);
        assert_eq!(paths, ["_id", "user", "product", "stars"]);
        let many = (0..200).map(|n| (format!("attributes.a{n}"), n)).collect();
        assert_eq!(super::paths(vec!["_id".into()], &many).len(), FIELDS_MAX);
    }

    #[test]
    fn a_field_is_ruled_out_with_its_reason() {
        assert_eq!(ruled_out(1_000, 0.01, 0.0), None);
        assert!(ruled_out(1_000, 0.0, 0.001).unwrap().contains("array"));
        assert!(ruled_out(1_000, 0.3, 0.0).unwrap().contains("30.0 % of the documents lack it"));
        assert!(ruled_out(1, 0.0, 0.0).unwrap().contains("one value"));
    }
}

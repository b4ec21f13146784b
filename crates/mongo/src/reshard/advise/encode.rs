//! Operations as numbers: the [`Workload`] of a source.

use imago_plan::shard_key::{Condition, Field, Kind, Shape, Value, Workload, WorkloadFull};

use super::fields::FieldSample;
use super::operation::Operation;
use super::predicate::{Bound, Datum, Ignored};
use super::source::{Observed, Source};
use crate::error::{Error, Result};

/// Largest number of values of a list that are kept; of a longer one the first.
const LIST_MAX: usize = 1_000;
/// Number of the newest sampled documents that stand for inserted documents which a source does not show.
const NEWEST: usize = 20;

/// Description of inserts whose documents a source does not show.
const UNSEEN: &str = "inserts whose documents the source does not show";

/// A workload, and the shard that showed each operation.
pub(super) struct Encoded {
    pub(super) workload: Workload,
    /// Shard of each operation, of sources that are shards.
    pub(super) shards: Vec<Option<u16>>,
    /// What bounds no shards in each operation: a bit for each kind, by [`Ignored::ALL`], and one for unseen inserts.
    pub(super) ignored: Vec<u16>,
    /// Number of operations whose form was one too many: inserts among them are left out, others reach all shards.
    pub(super) forms_left_out: u64,
}

/// Returns the bits of an operation; see [`Encoded::ignored`].
fn bits(operation: &Operation) -> u16 {
    let kinds = Ignored::ALL.iter().enumerate();
    let kinds = kinds.filter(|(_, kind)| operation.ignored.contains(kind));
    let unseen = u16::from(operation.is_unseen_insert) << Ignored::ALL.len();
    kinds.fold(unseen, |bits, (at, _)| bits | 1 << at)
}

/// Returns the number of operations with each kind of what bounds no shards, of those that are kept.
pub(super) fn ignored(bits: impl Iterator<Item = u16>) -> Vec<(&'static str, u64)> {
    let texts = Ignored::ALL.iter().map(|kind| kind.text()).chain([UNSEEN]);
    let mut counts: Vec<(&'static str, u64)> = texts.map(|text| (text, 0)).collect();
    for bits in bits.filter(|bits| *bits != 0) {
        for (at, (_, count)) in counts.iter_mut().enumerate() {
            *count += u64::from(bits >> at & 1);
        }
    }
    counts.retain(|(_, count)| *count > 0);
    counts
}

/// Reads `source` as a workload over the fields of `sample`; `is_collated` tells whether the collection has a collation.
///
/// # Errors
/// The source cannot be read, or has more values than are kept.
pub(super) fn encode(
    source: &mut dyn Source,
    sample: &FieldSample,
    is_collated: bool,
) -> Result<Encoded> {
    let mut encoder = Encoder::new(sample, is_collated);
    let mut encoded = Encoded {
        workload: Workload::default(),
        shards: Vec::new(),
        ignored: Vec::new(),
        forms_left_out: 0,
    };
    source.read(&mut |observed| {
        let Observed { operation, shard } = observed;
        encoder.encode(operation);
        let (documents, transaction) = (operation.documents, operation.transaction);
        let mut push = |shape: &Shape, values: &[Value]| {
            encoded.workload.push(shape, values, documents, transaction)
        };
        let pushed = match push(&encoder.shape, &encoder.values) {
            Err(WorkloadFull::Shapes) => {
                encoded.forms_left_out += 1;
                if operation.kind == Kind::Insert {
                    return Ok(());
                }
                push(&opaque(operation.kind), &[])
            }
            pushed => pushed,
        };
        encoded.shards.push(shard);
        encoded.ignored.push(bits(operation));
        pushed.map_err(|full| too_many(&full))
    })?;
    Ok(encoded)
}

/// Returns the form of an operation of which only the kind is known.
fn opaque(kind: Kind) -> Shape {
    Shape { kind, conditions: Vec::new(), sets: Vec::new(), is_upsert: false, is_opaque: true }
}

fn too_many(full: &WorkloadFull) -> Error {
    Error::precondition(
        format!("the recorded operations cannot be judged: {full}"),
        "record for a shorter time",
    )
}

/// Turns operations into numbers.
struct Encoder<'a> {
    sample: &'a FieldSample,
    shape: Shape,
    values: Vec<Value>,
    /// Indexes of the documents that stand for unseen inserts.
    newest: Vec<usize>,
    inserts: usize,
    /// True if the collection has a collation, under which no router chooses shards by text.
    is_collated: bool,
}

impl<'a> Encoder<'a> {
    fn new(sample: &'a FieldSample, is_collated: bool) -> Self {
        let shape = opaque(Kind::Read);
        Self { sample, shape, values: Vec::new(), newest: newest(sample), inserts: 0, is_collated }
    }

    /// Sets [`Encoder::shape`] and [`Encoder::values`] to those of `operation`.
    fn encode(&mut self, operation: &Operation) {
        self.shape.kind = operation.kind;
        self.shape.is_upsert = operation.is_upsert;
        let is_insert = operation.kind == Kind::Insert;
        self.shape.is_opaque = operation.is_unknown || self.is_collated && !is_insert;
        self.shape.conditions.clear();
        self.shape.sets.clear();
        self.values.clear();
        let (sample, dictionary) = (self.sample, &self.sample.dictionary);
        for path in &operation.sets {
            for field in dictionary.changed_with(path) {
                if !self.shape.sets.contains(&field) {
                    self.shape.sets.push(field);
                }
            }
        }
        if operation.is_unseen_insert {
            return self.stand_in();
        }
        for (path, bound) in &operation.bounds {
            let Some(field) = dictionary.field(path) else { continue };
            let condition = match bound {
                Bound::Equal(value) => {
                    self.values.push(sample.value(field, value));
                    Condition::Equal
                }
                Bound::In(list) => {
                    let kept = &list[..list.len().min(LIST_MAX)];
                    self.values.push(Value { rank: kept.len() as u32, hash: 0 });
                    self.values.extend(kept.iter().map(|value| sample.value(field, value)));
                    Condition::In
                }
                Bound::Between(low, high) => {
                    let bound_of = (low, high);
                    let bound = |value: &Option<Datum>, end: Value| {
                        value.as_ref().map_or(end, |value| sample.value(field, value))
                    };
                    let (first, last) = dictionary.ends(field);
                    let (low, high) = (bound(low, first), bound(high, last));
                    // Approximate positions may be on the wrong side of each other.
                    let is_empty = matches!(bound_of, (Some(Datum::Plain(low)), Some(Datum::Plain(high))) if low > high);
                    self.values.extend([low, if is_empty { high } else { high.max(low) }]);
                    Condition::Between
                }
            };
            self.shape.conditions.push((field, condition));
        }
    }

    /// Encodes an insert whose document is not shown: as one of the newest documents of the sample.
    fn stand_in(&mut self) {
        let index = self.newest[self.inserts % self.newest.len()];
        self.inserts += 1;
        for field in 0..self.sample.documents.fields() as Field {
            self.shape.conditions.push((field, Condition::Equal));
            self.values.push(self.sample.documents.value(index, field));
        }
    }
}

/// Returns the documents with the greatest `_id`s, which are the newest if `_id`s grow with time, as object ids do.
fn newest(sample: &FieldSample) -> Vec<usize> {
    let mut indexes: Vec<usize> = (0..sample.documents.len()).collect();
    if let Some(id) = sample.dictionary.field("_id") {
        indexes.sort_by_key(|index| std::cmp::Reverse(sample.documents.value(*index, id).rank));
    }
    indexes.truncate(NEWEST);
    indexes
}

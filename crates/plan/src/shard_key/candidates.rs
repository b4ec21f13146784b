//! The keys that are worth judging: made of the fields of operations' conditions, of indexes, and of `_id`.

use std::collections::HashSet;

use super::workload::Condition;
use super::{Documents, Field, Key, Kind, Part, Workload};

/// Largest number of keys that are judged, but for those that are named.
pub const CANDIDATES_MAX: usize = 50;
/// Number of fields, of those that most operations have conditions on, that keys begin with.
const FIRST_MAX: usize = 8;
/// Number of these fields that are the first or second of three.
const TRIPLES_MAX: usize = 3;

/// What keys are made of, beside the workload.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Fields that a key may have: they exist in most documents, hold no arrays, and have more than one value.
    pub usable: Vec<Field>,
    /// The field `_id`, if it is known.
    pub id: Option<Field>,
    /// Keys of existing indexes, without special ones; their first fields are candidates.
    pub indexes: Vec<Vec<Field>>,
    /// Keys that are judged in any case, such as the present one.
    pub named: Vec<Key>,
}

/// Returns the keys to judge: those that are named, and at most [`CANDIDATES_MAX`] others, the most promising first.
///
/// Fields are ordered by the share of operations with a condition on them. Each of the first few is a key alone and hashed,
/// and begins keys of two and three fields; the fields that follow are the other ones, and `_id`, which divides any value
/// further.
#[must_use]
pub fn candidates(workload: &Workload, documents: &Documents, wanted: &Wanted) -> Vec<Key> {
    let mut keys = Keys { found: wanted.named.clone(), seen: HashSet::new(), left: CANDIDATES_MAX };
    keys.seen.extend(wanted.named.iter().cloned());
    let first = fields_by_use(workload, documents, &wanted.usable);
    let first = &first[..first.len().min(FIRST_MAX)];
    for field in first {
        keys.add(&[(*field, false)]);
        keys.add(&[(*field, true)]);
    }
    if let Some(id) = wanted.id {
        keys.add(&[(id, true)]);
        for field in first {
            keys.add(&[(*field, false), (id, false)]);
        }
    }
    for index in &wanted.indexes {
        for len in 1..=index.len().min(3) {
            let parts: Vec<(Field, bool)> = index[..len].iter().map(|at| (*at, false)).collect();
            if index[..len].iter().all(|field| wanted.usable.contains(field)) {
                keys.add(&parts);
            }
        }
    }
    for one in first {
        for two in first {
            keys.add(&[(*one, false), (*two, false)]);
        }
    }
    for one in &first[..first.len().min(TRIPLES_MAX)] {
        for two in &first[..first.len().min(TRIPLES_MAX)] {
            if let Some(id) = wanted.id {
                keys.add(&[(*one, false), (*two, false), (id, false)]);
                keys.add(&[(*one, false), (id, true)]);
            }
        }
    }
    keys.found
}

/// The keys so far.
struct Keys {
    found: Vec<Key>,
    seen: HashSet<Key>,
    left: usize,
}

impl Keys {
    fn add(&mut self, parts: &[(Field, bool)]) {
        let parts =
            parts.iter().map(|(field, is_hashed)| Part { field: *field, is_hashed: *is_hashed });
        let Some(key) = Key::new(parts.collect()) else { return };
        if self.left > 0 && self.seen.insert(key.clone()) {
            self.left -= 1;
            self.found.push(key);
        }
    }
}

/// Returns the usable fields with conditions, those with conditions in most operations first; a range counts half as much
/// as an equality, because it may reach several shards. Inserts do not count: they reach one shard by any key.
fn fields_by_use(workload: &Workload, documents: &Documents, usable: &[Field]) -> Vec<Field> {
    let mut uses = vec![0_u64; documents.fields()];
    for (shape, count) in workload.shapes().iter().zip(workload.counts()) {
        if shape.kind == Kind::Insert || shape.is_opaque {
            continue;
        }
        for (field, condition) in &shape.conditions {
            let weight = if *condition == Condition::Between { 1 } else { 2 };
            uses[usize::from(*field)] += count * weight;
        }
    }
    let mut fields: Vec<Field> = usable.to_vec();
    fields.retain(|field| uses[usize::from(*field)] > 0);
    fields.sort_by_key(|field| (std::cmp::Reverse(uses[usize::from(*field)]), *field));
    fields
}

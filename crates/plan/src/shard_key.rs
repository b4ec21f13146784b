//! The choice of a shard key: the effect of each possible key on a recorded load.
//!
//! A key decides which shards an operation reaches. An operation with an equality on all fields of a key, or on its first
//! ones, usually reaches one shard; one without a condition on the first field reaches all of them. So a key is judged by
//! the operations that clients made ([`Workload`]), routed as a router would route them over the chunks that a plan of
//! the change would make ([`Layout`]), from a sample of the documents. The result ([`Effect`]) is the load of each shard;
//! keys are ranked by the throughput at which the busiest shard is saturated.
//!
//! Values are numbers here ([`Value`]): the rank of a value among those of its field in the server's order, and the
//! server's hash of it, for keys with a hashed field. Values that lie between two known ones share a rank; no chunk
//! begins between them.
//!
//! Invariants: each operation of a workload is counted once for each key, as answered by one shard, by several, by all,
//! or as refused; the loads of the shards of a key add up to those of its operations.

mod candidates;
mod documents;
mod effect;
mod layout;
mod routing;
mod workload;

#[cfg(test)]
mod tests;

pub use candidates::{CANDIDATES_MAX, Wanted, candidates};
pub use documents::{Documents, SampledDocument};
pub use effect::{Costs, Effect, Estimate, Reach, compare, effect};
pub use layout::{Layout, LayoutError};
pub use routing::{Rules, count_once};
pub use workload::{Condition, Kind, Operation, Shape, Workload, WorkloadFull};

/// Largest number of fields of a key that is judged.
pub const FIELDS_MAX: usize = 6;

/// Index of a field in the table of fields, which documents, operations and keys share.
pub type Field = u16;

/// A value of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// Rank of the value among the known values of its field. Values between two known ones have the rank between.
    pub rank: u32,
    /// The server's hash of the value, by which a hashed index orders it.
    pub hash: i64,
}

/// One field of a shard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The field.
    pub field: Field,
    /// True if the key has the hash of the field's value in place of the value.
    pub is_hashed: bool,
}

impl Part {
    /// Returns the number by which the key orders `value` in this field.
    #[must_use]
    pub fn position(self, value: Value) -> i64 {
        if self.is_hashed { value.hash } else { i64::from(value.rank) }
    }
}

/// A shard key: at least one field, and at most [`FIELDS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    parts: Vec<Part>,
}

impl Key {
    /// Returns the key of these fields; `None` if there are none or too many of them, or if one occurs twice.
    #[must_use]
    pub fn new(parts: Vec<Part>) -> Option<Self> {
        let is_repeated = |(at, part): (usize, &Part)| {
            parts[..at].iter().any(|earlier| earlier.field == part.field)
        };
        let is_valid = !parts.is_empty()
            && parts.len() <= FIELDS_MAX
            && !parts.iter().enumerate().any(is_repeated);
        is_valid.then_some(Self { parts })
    }

    /// Returns the key's fields, in order.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns true if a field of this key is `field`.
    #[must_use]
    pub fn has(&self, field: Field) -> bool {
        self.parts.iter().any(|part| part.field == field)
    }
}

/// A point of a key's space: the position of each of its fields; positions beyond the key's last field are 0.
pub type Point = [i64; FIELDS_MAX];

//! Suspects: the documents that differed at the first comparison, as many as the memory limit allows.

use crate::bson::order::Id;

/// Limit on the memory of the `_id`s of all suspects, in bytes.
const BYTES_MAX: usize = 256 << 20;

/// The `_id`s of documents that differed and are to be compared again, bounded in number and memory.
#[derive(Debug)]
pub(super) struct Suspects {
    ids: Vec<Id>,
    bytes: usize,
    len_max: usize,
    is_full: bool,
}

impl Suspects {
    pub(super) fn new(len_max: usize) -> Self {
        Self { ids: Vec::new(), bytes: 0, len_max, is_full: false }
    }

    /// Adds the `_id`s until a limit is reached; further ones are dropped.
    pub(super) fn extend(&mut self, ids: impl IntoIterator<Item = Id>) {
        for id in ids {
            if self.ids.len() >= self.len_max || self.bytes + id.memory_bytes() > BYTES_MAX {
                self.is_full = true;
                return;
            }
            self.bytes += id.memory_bytes();
            self.ids.push(id);
        }
    }

    /// Returns true if a suspect was dropped because of a limit, so that further search is of no use.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the `_id`s of the suspects, each once, in order.
    pub(super) fn into_ids(mut self) -> Vec<Id> {
        self.ids.sort_unstable();
        self.ids.dedup();
        self.ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::RawBsonRef;

    #[test]
    fn one_too_many_fills_the_set() {
        let id = |n| Id::from_raw(RawBsonRef::Int32(n));
        let mut suspects = Suspects::new(2);
        suspects.extend([id(2), id(1)]);
        assert!(!suspects.is_full());
        suspects.extend([id(3)]);
        assert!(suspects.is_full());
        assert_eq!(suspects.into_ids(), [id(1), id(2)]);
    }
}

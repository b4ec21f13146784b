//! The population: the keys that exist, as far as the load knows.
//!
//! Keys are numbered in the order of insertion. Operations choose among the keys `0..settled`, the longest such range
//! in which every insert was answered, so that a read does not overtake the insert of its document. A key whose
//! insert failed settles too; reads of it find nothing, as those of a real client that remembers the key.

use std::collections::{BTreeSet, VecDeque};

/// Limit of the number of deleted keys that are remembered for reinsertion.
const REUSABLE_MAX: usize = 4096;

/// The keys of a load: which were assigned to inserts, had their insert answered, or had their document deleted.
#[derive(Debug)]
pub struct Population {
    next: u64,
    settled: u64,
    answered_ahead: BTreeSet<u64>,
    gone: Vec<u64>,
    reusable: VecDeque<u64>,
}

impl Population {
    /// Returns a population in which the keys `0..initial` exist and no others.
    #[must_use]
    pub fn new(initial: u64) -> Self {
        Self {
            next: initial,
            settled: initial,
            answered_ahead: BTreeSet::new(),
            gone: Vec::new(),
            reusable: VecDeque::new(),
        }
    }

    /// Returns the number of keys from which operations may choose: every insert of the keys `0..settled` was
    /// answered.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns the number of keys that exist or were assigned to an insert; the next new key has this number.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Assigns a key that was never used to a new insert, and returns it.
    pub fn assign(&mut self) -> u64 {
        let key = self.next;
        self.next += 1;
        key
    }

    /// Removes and returns a key whose document was deleted, for a new insert; `None` if there is none.
    pub fn take_deleted(&mut self) -> Option<u64> {
        self.reusable.pop_front()
    }

    /// Records that the insert of `key` was answered or timed out; `present` is true if its document may exist.
    pub fn insert_answered(&mut self, key: u64, present: bool) {
        if present {
            self.set_gone(key, false);
        }
        if key >= self.settled {
            self.answered_ahead.insert(key);
            while self.answered_ahead.remove(&self.settled) {
                self.settled += 1;
            }
        }
    }

    /// Records that a delete of the document under `key` was acknowledged.
    pub fn deleted(&mut self, key: u64) {
        self.set_gone(key, true);
        if self.reusable.len() < REUSABLE_MAX {
            self.reusable.push_back(key);
        }
    }

    /// Returns true if the document under `key` is known to be deleted.
    #[must_use]
    pub fn is_gone(&self, key: u64) -> bool {
        self.gone.get((key / 64) as usize).is_some_and(|word| word >> (key % 64) & 1 == 1)
    }

    fn set_gone(&mut self, key: u64, gone: bool) {
        let (word, bit) = ((key / 64) as usize, 1u64 << (key % 64));
        if self.gone.len() <= word {
            if !gone {
                return;
            }
            self.gone.resize(word + 1, 0);
        }
        if gone {
            self.gone[word] |= bit;
        } else {
            self.gone[word] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_chosen_from_only_once_all_before_it_are_answered() {
        let mut population = Population::new(10);
        assert_eq!((population.assign(), population.assign(), population.assign()), (10, 11, 12));
        population.insert_answered(11, true);
        assert_eq!(population.settled(), 10);
        population.insert_answered(10, false);
        assert_eq!(population.settled(), 12);
        population.insert_answered(12, true);
        assert_eq!(population.settled(), 13);
    }

    #[test]
    fn a_deleted_key_is_gone_until_it_is_inserted_again() {
        let mut population = Population::new(200);
        assert!(!population.is_gone(130));
        population.deleted(130);
        assert!(population.is_gone(130));
        assert_eq!(population.take_deleted(), Some(130));
        assert_eq!(population.take_deleted(), None);
        population.insert_answered(130, true);
        assert!(!population.is_gone(130));
        assert_eq!(population.settled(), 200);
    }
}

//! The population: which keys exist, as far as the load knows.
//!
//! Keys are numbered in the order of insertion. Operations choose among the keys below the
//! *settled* mark, below which every insert was answered, so that a read does not overtake the
//! insert of its document. A key whose insert failed settles too, and reads of it find nothing, as
//! with a real client that had remembered it.

use std::collections::{BTreeSet, VecDeque};

/// Deleted keys that are remembered for being inserted again.
const SPARE_MAX: usize = 4096;

/// The keys that were handed out, settled and deleted.
#[derive(Debug)]
pub struct Population {
    next: u64,
    settled: u64,
    early: BTreeSet<u64>,
    gone: Vec<u64>,
    spare: VecDeque<u64>,
}

impl Population {
    /// A population in which the keys `0..initial` exist.
    #[must_use]
    pub fn new(initial: u64) -> Self {
        Self {
            next: initial,
            settled: initial,
            early: BTreeSet::new(),
            gone: Vec::new(),
            spare: VecDeque::new(),
        }
    }

    /// Number of keys that operations may choose from: `0..settled`.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Number of keys that were handed out.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// A key that was never used, for an insert.
    pub fn fresh(&mut self) -> u64 {
        let key = self.next;
        self.next += 1;
        key
    }

    /// A key whose document was deleted, for an insert; `None` when there is none.
    pub fn spare(&mut self) -> Option<u64> {
        self.spare.pop_front()
    }

    /// Notes that an insert was answered; `present` is true if its document may be there.
    pub fn insert_answered(&mut self, key: u64, present: bool) {
        if present {
            self.set_gone(key, false);
        }
        if key >= self.settled {
            self.early.insert(key);
            while self.early.remove(&self.settled) {
                self.settled += 1;
            }
        }
    }

    /// Notes that a delete was acknowledged.
    pub fn deleted(&mut self, key: u64) {
        self.set_gone(key, true);
        if self.spare.len() < SPARE_MAX {
            self.spare.push_back(key);
        }
    }

    /// True if the key's document is known to be deleted.
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
        assert_eq!((population.fresh(), population.fresh(), population.fresh()), (10, 11, 12));
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
        assert_eq!(population.spare(), Some(130));
        assert_eq!(population.spare(), None);
        population.insert_answered(130, true);
        assert!(!population.is_gone(130));
        assert_eq!(population.settled(), 200);
    }
}

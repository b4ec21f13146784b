//! The entries of a node in the order of their keys, and how a key's place among them is found.
//!
//! The idea: keys lie each somewhere in memory, and comparing with one is mostly waiting for it. Keys of
//! one node mostly begin alike. So the node keeps what all of them begin with, and of each one its
//! *head*, the eight bytes behind that as a number. Places are found among the heads, which lie
//! together; only a key whose head is equal is looked at itself.

use std::cmp::Ordering;
use std::ops::Deref;

use super::FANOUT;
use crate::key::Key;

/// One more than a node may have, which is cut in two then.
const ENTRIES_MAX: usize = FANOUT + 1;
/// As much as is kept of what all keys begin with.
const PREFIX_MAX: usize = 31;

/// A value with a key.
pub(super) trait Keyed {
    fn key(&self) -> &Key;
}

/// In this order: what is looked at first lies in the cache line that finding the node brought.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Entries<T> {
    prefix_len: u8,
    prefix: [u8; PREFIX_MAX],
    entries: Vec<T>,
    /// Behind the last entry's, numbers that no head is above.
    heads: [u64; ENTRIES_MAX],
}

impl<T> Deref for Entries<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

/// The first eight bytes as a number, with zeros behind those that are too short: of two byte strings
/// the greater has no lesser one.
fn head(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    match bytes.first_chunk() {
        Some(first) => head = *first,
        None => head[..bytes.len()].copy_from_slice(bytes),
    }
    u64::from_be_bytes(head)
}

impl<T: Keyed> Entries<T> {
    /// A node's entries, at most one too many.
    pub(super) fn of(mut entries: Vec<T>) -> Self {
        entries.shrink_to(ENTRIES_MAX);
        let mut entries =
            Self { prefix_len: 0, prefix: [0; PREFIX_MAX], heads: [0; ENTRIES_MAX], entries };
        entries.label();
        entries
    }

    pub(super) fn into_entries(self) -> Vec<T> {
        self.entries
    }

    /// Reads a little of each part that finding a place will read, and waits for none of it: what lies
    /// far away is on its way then, while others are looked at.
    pub(super) fn prefetch(&self) -> u64 {
        let heads = self.heads.iter().step_by(8).fold(0, |all, head| all ^ head);
        heads ^ u64::from(self.prefix_len)
    }

    /// The index of a key, or the index at which it would be inserted.
    pub(super) fn place(&self, key: &Key) -> Result<usize, usize> {
        let head = match self.head_of(key) {
            Ok(head) => head,
            Err(Ordering::Less) => return Err(0),
            Err(_) => return Err(self.len()),
        };
        // All of them, without a branch: it is the quickest for so few.
        let mut at = self.heads.iter().map(|other| usize::from(*other < head)).sum::<usize>();
        let length = key.as_bytes().len();
        let is_all_in_head = length <= usize::from(self.prefix_len) + 8;
        while at < self.len() && self.heads[at] == head {
            let other = self.entries[at].key();
            // Equal beginnings, equal heads, equal lengths: there is no more to be looked at.
            if is_all_in_head && other.as_bytes().len() == length {
                return Ok(at);
            }
            match other.cmp(key) {
                Ordering::Less => at += 1,
                Ordering::Equal => return Ok(at),
                Ordering::Greater => break,
            }
        }
        Err(at)
    }

    /// The last entry whose key is not behind another, or the first.
    pub(super) fn way(&self, key: &Key) -> usize {
        match self.place(key) {
            Ok(at) => at,
            Err(at) => at.saturating_sub(1),
        }
    }

    /// An entry, to change anything but its key.
    pub(super) fn entry(&mut self, at: usize) -> &mut T {
        &mut self.entries[at]
    }

    /// An entry, to change its key too, which stays between its neighbours'.
    pub(super) fn rekey(&mut self, at: usize, change: impl FnOnce(&mut T)) {
        change(&mut self.entries[at]);
        match self.head_of(self.entries[at].key()) {
            Ok(head) => self.heads[at] = head,
            Err(_) => self.label(),
        }
    }

    pub(super) fn insert(&mut self, at: usize, entry: T) {
        if self.len() == self.entries.capacity() {
            self.entries.reserve_exact(ENTRIES_MAX.saturating_sub(self.len()).max(1));
        }
        let head = self.head_of(entry.key());
        self.entries.insert(at, entry);
        match head {
            Ok(head) => {
                self.heads.copy_within(at..ENTRIES_MAX - 1, at + 1);
                self.heads[at] = head;
            }
            Err(_) => self.label(),
        }
    }

    pub(super) fn remove(&mut self, at: usize) -> T {
        self.heads.copy_within(at + 1.., at);
        self.heads[ENTRIES_MAX - 1] = u64::MAX;
        self.entries.remove(at)
    }

    /// The head of a key that begins as all do; for another, whether it is before or behind all.
    fn head_of(&self, key: &Key) -> Result<u64, Ordering> {
        let (bytes, prefix) = (key.as_bytes(), &self.prefix[..usize::from(self.prefix_len)]);
        match bytes.strip_prefix(prefix) {
            Some(rest) => Ok(head(rest)),
            None => Err(bytes.cmp(prefix)),
        }
    }

    /// Finds out anew what all keys begin with: what the first and the last have in common.
    fn label(&mut self) {
        self.heads = [u64::MAX; ENTRIES_MAX];
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else { return };
        let both = first.key().as_bytes().iter().zip(last.key().as_bytes());
        let both = both.take(PREFIX_MAX).take_while(|(one, other)| one == other);
        let mut length = 0;
        for (place, (byte, _)) in self.prefix.iter_mut().zip(both) {
            *place = *byte;
            length += 1;
        }
        self.prefix_len = u8::try_from(length).expect("it is cut to what there is place for");
        for (head_of, entry) in self.heads.iter_mut().zip(&self.entries) {
            *head_of = head(&entry.key().as_bytes()[length..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Keyed for Key {
        fn key(&self) -> &Key {
            self
        }
    }

    /// Keys that begin alike, up to a length at which it matters, and end in anything.
    fn keys() -> impl Strategy<Value = Vec<Key>> {
        let end =
            prop::collection::vec(prop_oneof![Just(0), Just(1), Just(255), any::<u8>()], 0..12);
        (0..40_usize, prop::collection::vec(end, 1..ENTRIES_MAX)).prop_map(|(alike, ends)| {
            let key = |end: &Vec<u8>| Key::from_bytes(&[&vec![7; alike], &end[..]].concat());
            ends.iter().map(key).collect()
        })
    }

    proptest! {
        #[test]
        fn a_place_is_where_comparing_all_keys_finds_it(keys in keys(), others in keys()) {
            let mut sorted = Vec::new();
            let mut entries = Entries::of(Vec::new());
            for key in &keys {
                if let Err(at) = sorted.binary_search(key) {
                    prop_assert_eq!(entries.place(key), Err(at));
                    sorted.insert(at, key.clone());
                    entries.insert(at, key.clone());
                }
            }
            let check = |entries: &Entries<Key>, sorted: &[Key]| {
                for key in keys.iter().chain(&others) {
                    assert_eq!(entries.place(key), sorted.binary_search(key));
                    let way = sorted.partition_point(|other| other <= key).saturating_sub(1);
                    assert_eq!(entries.way(key), way);
                }
            };
            check(&entries, &sorted);
            check(&Entries::of(sorted.clone()), &sorted);
            while !sorted.is_empty() {
                let at = sorted.len() / 2;
                prop_assert_eq!(entries.remove(at), sorted.remove(at));
                check(&entries, &sorted);
            }
        }

        #[test]
        fn the_first_key_may_become_less(keys in keys(), least in keys()) {
            let mut sorted = keys;
            sorted.sort();
            sorted.dedup();
            let least = least[0].clone().min(sorted[0].clone());
            let mut entries = Entries::of(sorted.clone());
            entries.rekey(0, |key| *key = least.clone());
            sorted[0] = least;
            for key in &sorted {
                prop_assert_eq!(entries.place(key), sorted.binary_search(key));
            }
        }
    }
}

//! The entries of a node in key order, and the search for a key among them.
//!
//! Keys are scattered in memory, and a comparison with one is mostly waiting for memory. Most keys of one node have a
//! common prefix. So the node stores that prefix, and for each key its *head*: the eight bytes after the prefix as a
//! number. A search compares heads, which are contiguous; only a key with an equal head is read itself.

use std::cmp::Ordering;
use std::ops::Deref;

use super::FANOUT;
use crate::key::Key;

/// Maximum number of entries while a node is changed: one more than a node may have, which is then split.
const ENTRIES_MAX: usize = FANOUT + 1;
/// Maximum length of the stored common prefix, in bytes.
const PREFIX_MAX: usize = 31;

/// An entry of a node, which has a key.
pub(super) trait Keyed {
    /// Returns the entry's key: that of the row, or the separator of the child.
    fn key(&self) -> &Key;
}

/// The entries of a node in key order. The order of fields puts those that a search reads first into the first cache
/// line.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Entries<T> {
    /// Length of the stored prefix that all keys of the node share, in bytes.
    prefix_len: u8,
    /// The prefix that all keys of the node share, in its first `prefix_len` bytes.
    prefix: [u8; PREFIX_MAX],
    /// The rows of a leaf or the children of an inner node, in key order.
    entries: Vec<T>,
    /// The head of each entry's key: the eight bytes after the common prefix as a number. Unused elements after the
    /// last are the greatest number.
    heads: [u64; ENTRIES_MAX],
}

impl<T> Deref for Entries<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

/// Returns the first eight bytes of a byte string as a number, padded with zeros at the end. The number preserves the
/// order of byte strings, except that different strings may have the same number.
fn head(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    match bytes.first_chunk() {
        Some(first) => head = *first,
        None => head[..bytes.len()].copy_from_slice(bytes),
    }
    u64::from_be_bytes(head)
}

impl<T: Keyed> Entries<T> {
    /// Returns a node's entries from a sorted list, which may have one more than a node may have.
    pub(super) fn of(mut entries: Vec<T>) -> Self {
        entries.shrink_to(ENTRIES_MAX);
        let mut entries =
            Self { prefix_len: 0, prefix: [0; PREFIX_MAX], heads: [0; ENTRIES_MAX], entries };
        entries.label();
        entries
    }

    /// Returns the entries as a vector.
    pub(super) fn into_entries(self) -> Vec<T> {
        self.entries
    }

    /// Starts to load the cache lines that a search will read, and does not wait for them: they arrive while other
    /// nodes are read. The result has no meaning; it prevents the compiler from removing the reads.
    pub(super) fn prefetch(&self) -> u64 {
        let heads = self.heads.iter().step_by(8).fold(0, |all, head| all ^ head);
        heads ^ u64::from(self.prefix_len)
    }

    /// Returns the index of the entry with this key as `Ok`, or the index at which the key would be inserted as
    /// `Err`.
    pub(super) fn place(&self, key: &Key) -> Result<usize, usize> {
        let head = match self.head_of(key) {
            Ok(head) => head,
            Err(Ordering::Less) => return Err(0),
            Err(_) => return Err(self.len()),
        };
        // All heads are compared without branches, which is the fastest for so few.
        let mut at = self.heads.iter().map(|other| usize::from(*other < head)).sum::<usize>();
        let length = key.as_bytes().len();
        let is_all_in_head = length <= usize::from(self.prefix_len) + 8;
        while at < self.len() && self.heads[at] == head {
            let other = self.entries[at].key();
            // Equal prefixes, heads and lengths: there are no other bytes to compare.
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

    /// Returns the index of the last entry whose key is at most `key`, or 0 if there is none: in an inner node the
    /// child to descend to.
    pub(super) fn way(&self, key: &Key) -> usize {
        match self.place(key) {
            Ok(at) => at,
            Err(at) => at.saturating_sub(1),
        }
    }

    /// Returns the entry at an index, to change anything except its key.
    pub(super) fn entry(&mut self, at: usize) -> &mut T {
        &mut self.entries[at]
    }

    /// Changes the entry at an index, including its key, which must stay between those of its neighbours.
    pub(super) fn rekey(&mut self, at: usize, change: impl FnOnce(&mut T)) {
        change(&mut self.entries[at]);
        match self.head_of(self.entries[at].key()) {
            Ok(head) => self.heads[at] = head,
            Err(_) => self.label(),
        }
    }

    /// Inserts an entry at an index, which must keep the order of keys.
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

    /// Removes and returns the entry at an index.
    pub(super) fn remove(&mut self, at: usize) -> T {
        self.heads.copy_within(at + 1.., at);
        self.heads[ENTRIES_MAX - 1] = u64::MAX;
        self.entries.remove(at)
    }

    /// Returns the head of a key that has the common prefix; for another key, whether the key is less or greater than
    /// all keys with that prefix.
    fn head_of(&self, key: &Key) -> Result<u64, Ordering> {
        let (bytes, prefix) = (key.as_bytes(), &self.prefix[..usize::from(self.prefix_len)]);
        match bytes.strip_prefix(prefix) {
            Some(rest) => Ok(head(rest)),
            None => Err(bytes.cmp(prefix)),
        }
    }

    /// Computes the common prefix of all keys, which is that of the first and the last key, and the heads of all
    /// keys.
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

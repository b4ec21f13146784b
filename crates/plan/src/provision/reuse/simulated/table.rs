//! A hash table with chains as in Redis: its size is a power of two and doubles when it has as many entries, new entries are the
//! first of their chain, and a sample is taken from neighbouring chains.
//!
//! So entries are not sampled evenly. One behind a gap of empty chains is sampled more often than its neighbours, and again each
//! time that it comes back, because a key has the same place each time. A loop over more keys than fit owes hits to that: some keys
//! are seldom evicted.
//!
//! Invariant: each entry is in exactly one chain, that of its key; the slots that are in none are in `free`.

use rand::{Rng, RngExt as _};

use crate::provision::reuse::hashed::scattered;

/// Number of chains of an empty table.
const SIZE_MIN: usize = 4;
/// The end of a chain.
const NONE: u32 = u32::MAX;
/// Seed of the places of keys; the keys of a sampled trace are chosen by another one.
const SEED: u64 = 0x5EED;
/// Number of consecutive empty chains, at least, after which a sample goes on elsewhere.
const GAP_MIN: usize = 5;
/// Limit on the number of chains that are looked at for each entry of a sample.
const LOOKS_MAX: usize = 10;

/// The table; see the module's documentation. `V` is the value of an entry.
#[derive(Debug)]
pub(super) struct Table<V> {
    /// The first slot of each chain.
    heads: Vec<u32>,
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<V> {
    key: u64,
    value: V,
    next: u32,
}

impl<V: Copy> Table<V> {
    pub(super) fn new() -> Self {
        Self { heads: vec![NONE; SIZE_MIN], slots: Vec::new(), free: Vec::new() }
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn chain(&self, key: u64) -> usize {
        scattered(key, SEED) as usize & (self.heads.len() - 1)
    }

    /// Returns the value of a key.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let mut at = self.heads[self.chain(key)];
        while at != NONE && self.slots[at as usize].key != key {
            at = self.slots[at as usize].next;
        }
        (at != NONE).then(|| &mut self.slots[at as usize].value)
    }

    /// Adds an entry; its key must not be there.
    pub(super) fn insert(&mut self, key: u64, value: V) {
        if self.len() >= self.heads.len() {
            self.grow();
        }
        let chain = self.chain(key);
        let slot = Slot { key, value, next: self.heads[chain] };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                let at = u32::try_from(self.slots.len()).expect("fewer than 2^32 keys");
                self.slots.push(slot);
                at
            }
        };
        self.heads[chain] = at;
    }

    /// Removes the entry of a key and returns its value; `None` if there is none.
    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let chain = self.chain(key);
        let (mut before, mut at) = (NONE, self.heads[chain]);
        while at != NONE && self.slots[at as usize].key != key {
            (before, at) = (at, self.slots[at as usize].next);
        }
        let Slot { value, next, .. } = *self.slots.get(at as usize)?;
        match before {
            NONE => self.heads[chain] = next,
            _ => self.slots[before as usize].next = next,
        }
        self.free.push(at);
        Some(value)
    }

    /// Doubles the number of chains.
    fn grow(&mut self) {
        let entries: Vec<u32> = self.in_order().collect();
        self.heads = vec![NONE; 2 * self.heads.len()];
        for at in entries {
            let chain = self.chain(self.slots[at as usize].key);
            self.slots[at as usize].next = std::mem::replace(&mut self.heads[chain], at);
        }
    }

    /// Returns the slots of all entries, in the order of their chains.
    fn in_order(&self) -> impl Iterator<Item = u32> {
        let after = |at: u32| Some(at).filter(|at| *at != NONE);
        let next = move |at: &u32| after(self.slots[*at as usize].next);
        self.heads.iter().flat_map(move |head| std::iter::successors(after(*head), next))
    }

    /// Samples entries from neighbouring chains, from a random one on (`dictGetSomeKeys`), and passes the key and the value of each to
    /// `of`; all entries if there are no more than `count`.
    pub(super) fn sample(&self, count: usize, rng: &mut impl Rng, mut of: impl FnMut(u64, V)) {
        if count >= self.len() {
            for at in self.in_order() {
                of(self.slots[at as usize].key, self.slots[at as usize].value);
            }
            return;
        }
        let chains = self.heads.len();
        let (mut chain, mut gap, mut found) = (rng.random_range(0..chains), 0, 0);
        for _ in 0..LOOKS_MAX * count {
            let mut at = self.heads[chain];
            gap = if at == NONE { gap + 1 } else { 0 };
            if gap >= GAP_MIN && gap > count {
                (chain, gap) = (rng.random_range(0..chains), 0);
            }
            while at != NONE {
                let slot = &self.slots[at as usize];
                of(slot.key, slot.value);
                found += 1;
                if found == count {
                    return;
                }
                at = slot.next;
            }
            chain = (chain + 1) % chains;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    proptest! {
        /// Beside an ordered map.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..60_u64, any::<bool>()), 0..400)) {
            let (mut table, mut map) = (Table::new(), BTreeMap::new());
            for (number, (key, is_removed)) in steps.into_iter().enumerate() {
                let key = 8_137_000 + key;
                if is_removed {
                    prop_assert_eq!(table.remove(key), map.remove(&key));
                } else if let Some(value) = table.get_mut(key) {
                    prop_assert_eq!(Some(*value), map.insert(key, number));
                    *value = number;
                } else {
                    prop_assert_eq!(map.insert(key, number), None);
                    table.insert(key, number);
                }
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.heads.len().is_power_of_two() && table.heads.len() >= map.len());
            }
            let mut all = BTreeMap::new();
            table.sample(usize::MAX, &mut StdRng::seed_from_u64(1), |key, value| {
                all.insert(key, value);
            });
            prop_assert_eq!(all, map);
        }
    }

    #[test]
    fn each_entry_is_sampled_some_time_but_not_equally_often() {
        let mut table = Table::new();
        (0..200_u64).for_each(|key| table.insert(key, ()));
        let mut rng = StdRng::seed_from_u64(4);
        let (mut counts, mut repeated) = ([0_u32; 200], 0);
        for _ in 0..40_000 {
            let mut keys = Vec::new();
            table.sample(5, &mut rng, |key, ()| keys.push(key));
            keys.iter().for_each(|key| counts[*key as usize] += 1);
            keys.sort_unstable();
            keys.dedup();
            // Where it goes on elsewhere behind a gap, it may come to the same chain, as Redis does.
            repeated += usize::from(keys.len() < 5);
        }
        assert!(repeated < 400, "{repeated}");
        // 1,000 are the mean.
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least > 100 && *least < 700, "{least}");
        assert!(*most > 1_300 && *most < 4_000, "{most}");
    }
}

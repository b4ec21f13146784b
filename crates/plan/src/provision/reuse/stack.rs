//! The LRU stack: the depth in bytes of each key below the most recently used one.
//!
//! Each reference takes the next slot of an array; the slot holds the entry's size in bytes until the key is referenced
//! again. The depth of a key is then the sum of its slot and all later ones. Slots are grouped in blocks, and a Fenwick
//! tree holds the sums of blocks: it is small enough for the processor's cache, and a lookup reads only one block
//! besides it. When the array is full, the used slots are compacted, in order, and the array is doubled if more than
//! half were in use.
//!
//! **Size changes.** A cache of a given capacity holds the entries down to the depth of that capacity. If an entry
//! shrinks, entries that were evicted before do not come back: so the freed bytes stay in the array, as a *hole*, and
//! leave all entries below at their depth. Bytes pushed on top are absorbed by holes, from the top down, before they
//! move any entry further down. This is exact at every capacity: an entry with `s` bytes of entries and `h` bytes of
//! holes down to it is in caches of at least `s + h`; a push of `b` bytes moves it to `s + max(h, b)`, and a cache that
//! holds it needs to evict it exactly if `s + b` does not fit.

use std::collections::BTreeSet;

use super::hashed::KeyMap;

/// Number of slots in a block: four lines of a processor's cache.
const BLOCK: usize = 64;
/// Initial number of slots of a stack.
const SLOTS_MIN: usize = 1 << 10;

/// An LRU stack, from which the depth in bytes of each key is computed.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    slot_of: KeyMap<u32>,
    /// Bytes of the entry or hole in each slot, the newest slot last; 0 for an unused slot.
    slots: Vec<u32>,
    /// Fenwick tree of the sums of blocks in bytes, numbered from 1.
    sums: Vec<u64>,
    total: u64,
    /// Index of the next free slot.
    next: usize,
    holes: BTreeSet<u32>,
}

impl Stack {
    /// Creates an empty stack.
    pub(super) fn new() -> Self {
        Self {
            slot_of: KeyMap::default(),
            slots: vec![0; SLOTS_MIN],
            sums: vec![0; SLOTS_MIN / BLOCK + 1],
            total: 0,
            next: 0,
            holes: BTreeSet::new(),
        }
    }

    /// Moves the key to the top of the stack with an entry of `bytes` bytes. Returns the previous depth of the key in
    /// bytes, its own entry included; `None` if the key is new.
    pub(super) fn refer(&mut self, key: u64, bytes: u32) -> Option<u64> {
        if self.next == self.slots.len() {
            self.compact();
        }
        let slot = self.next as u32;
        self.next += 1;
        let old = self.slot_of.insert(key, slot);
        let depth = old.map(|old| self.depth(old as usize));
        let old_bytes = old.map(|old| self.slots[old as usize]);
        match old {
            Some(old) if old_bytes == Some(bytes) && self.holes.is_empty() => {
                self.set(old as usize, 0);
            }
            _ => {
                self.holes.extend(old);
                self.absorb(bytes);
            }
        }
        self.set(slot as usize, bytes);
        depth
    }

    /// Removes a key from the stack, as if it had never been referenced.
    pub(super) fn remove(&mut self, key: u64) {
        if let Some(slot) = self.slot_of.remove(&key) {
            self.set(slot as usize, 0);
        }
    }

    /// Returns the number of keys in the stack.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slot_of.len()
    }

    /// Returns for each non-empty entry, from newest to oldest, its depth and the bytes of entries down to it.
    pub(super) fn held(&self) -> Vec<(u64, u64)> {
        let (mut depth, mut held) = (0, 0);
        let mut all = Vec::with_capacity(self.slot_of.len());
        for (slot, bytes) in self.slots[..self.next].iter().enumerate().rev() {
            depth += u64::from(*bytes);
            if *bytes > 0 && !self.holes.contains(&(slot as u32)) {
                held += u64::from(*bytes);
                all.push((depth, held));
            }
        }
        all
    }

    /// Returns the memory of all structures in bytes, with the temporary arrays of a compaction. A hash map leaves an
    /// eighth of its capacity free, and uses one byte per place in addition to key and slot.
    pub(super) fn bytes(&self) -> usize {
        let row = self.slots.capacity() * (size_of::<u32>() + size_of::<u32>() + size_of::<bool>());
        let map = self.slot_of.capacity() * 8 / 7 * (size_of::<(u64, u32)>() + 1);
        row + self.sums.capacity() * size_of::<u64>()
            + map
            + self.holes.len() * 2 * size_of::<u32>()
    }

    fn absorb(&mut self, mut bytes: u32) {
        while bytes > 0
            && let Some(&hole) = self.holes.last()
        {
            let size = self.slots[hole as usize];
            if size > bytes {
                self.set(hole as usize, size - bytes);
                return;
            }
            bytes -= size;
            self.set(hole as usize, 0);
            self.holes.pop_last();
        }
    }

    fn set(&mut self, slot: usize, bytes: u32) {
        let change = u64::from(bytes).wrapping_sub(u64::from(self.slots[slot]));
        self.slots[slot] = bytes;
        self.total = self.total.wrapping_add(change);
        let mut at = slot / BLOCK + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the sum of the bytes of this slot and all later ones.
    fn depth(&self, slot: usize) -> u64 {
        let block = slot / BLOCK;
        let end = (block + 1) * BLOCK;
        let own: u64 = self.slots[slot..end].iter().map(|bytes| u64::from(*bytes)).sum();
        let mut before = 0u64;
        let mut at = block + 1;
        while at > 0 {
            before = before.wrapping_add(self.sums[at]);
            at &= at - 1;
        }
        self.total.wrapping_sub(before).wrapping_add(own)
    }

    /// Compacts the used slots to the front, and doubles the array if more than half of the slots are in use.
    fn compact(&mut self) {
        let mut used = vec![false; self.slots.len()];
        let slots = self.slot_of.values().chain(&self.holes);
        slots.for_each(|slot| used[*slot as usize] = true);
        let mut moved = vec![0u32; self.slots.len()];
        let mut next = 0;
        for (slot, used) in used.iter().enumerate() {
            if *used {
                self.slots[next] = self.slots[slot];
                moved[slot] = next as u32;
                next += 1;
            }
        }
        self.next = next;
        self.slots[next..].fill(0);
        if next > self.slots.len() / 2 {
            let doubled = 2 * self.slots.len();
            assert!(u32::try_from(doubled).is_ok(), "a stack holds at most 2^31 keys");
            self.slots.resize(doubled, 0);
        }
        self.slot_of.values_mut().for_each(|slot| *slot = moved[*slot as usize]);
        self.holes = self.holes.iter().map(|slot| moved[*slot as usize]).collect();
        self.sum_up();
    }

    fn sum_up(&mut self) {
        self.sums.clear();
        self.sums.resize(self.slots.len() / BLOCK + 1, 0);
        for (block, slots) in self.slots.chunks(BLOCK).enumerate() {
            let at = block + 1;
            self.sums[at] += slots.iter().map(|bytes| u64::from(*bytes)).sum::<u64>();
            let parent = at + (at & at.wrapping_neg());
            if parent < self.sums.len() {
                self.sums[parent] += self.sums[at];
            }
        }
    }
}

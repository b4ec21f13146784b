//! A table of pending changes by definition: a list of every dirty key that was ever recorded, filtered at each
//! question. Slow, and too simple to be wrong in the same way.

use std::collections::BTreeMap;

use imago_plan::copy::pending_changes::{Change, DirtyKey, Position, SliceState};

use crate::desk::{DirtyKeys, Place, checkpoint_before};
use crate::source::Key;

/// The state of a dirty key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    InRound,
    Gone,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Key,
    slice: usize,
    lane: usize,
    position: Position,
    change: Change,
    fate: Fate,
}

/// Every dirty key, and the slices' states.
#[derive(Debug)]
pub struct Naive {
    entries: Vec<Entry>,
    states: Vec<SliceState>,
    read: Position,
}

impl Naive {
    pub fn new(slices: usize) -> Self {
        Self { entries: Vec::new(), states: vec![SliceState::Untouched; slices], read: 0 }
    }

    pub fn mark_dirty(&mut self, key: Key, slice: usize, lane: usize, dirty_key: DirtyKey) {
        let DirtyKey { first: position, change, .. } = dirty_key;
        self.entries.push(Entry { key, slice, lane, position, change, fate: Fate::Waiting });
    }

    pub fn read_to(&mut self, position: Position) {
        self.read = position;
    }

    pub fn see(&mut self, slice: usize, state: SliceState) {
        self.states[slice] = self.states[slice].max(state);
    }

    /// Drops the keys that were not touched after `position`; what is left of the others begins
    /// after it. Returns how many keys were dropped.
    pub fn horizon(&mut self, position: Position, untouched: &[usize]) -> usize {
        let states = &self.states;
        let is_passed =
            |slice: &usize| untouched.contains(slice) && states[*slice] == SliceState::Untouched;
        let kept: Vec<Key> =
            self.aside().filter(|e| e.position > position).map(|e| e.key).collect();
        let mut dropped: Vec<Key> = Vec::new();
        for entry in self.entries.iter_mut().filter(|e| e.fate == Fate::Waiting) {
            if !is_passed(&entry.slice) || entry.position > position {
                continue;
            }
            if kept.contains(&entry.key) {
                entry.position = position + 1;
            } else {
                entry.fate = Fate::Gone;
                dropped.push(entry.key);
            }
        }
        dropped.sort_unstable();
        dropped.dedup();
        dropped.len()
    }

    /// The dirty keys that the lane's next round may take.
    pub fn ready(&self, lane: usize) -> DirtyKeys {
        coalesced(self.placed(Place::Ready).filter(|entry| entry.lane == lane))
    }

    pub fn take(&mut self, dirty_keys: &DirtyKeys) {
        self.pass(dirty_keys, Fate::Waiting, Fate::InRound);
    }

    pub fn finish(&mut self, dirty_keys: &DirtyKeys) {
        self.pass(dirty_keys, Fate::InRound, Fate::Gone);
    }

    fn pass(&mut self, dirty_keys: &DirtyKeys, from: Fate, to: Fate) {
        for entry in self.entries.iter_mut().filter(|entry| entry.fate == from) {
            if dirty_keys.iter().any(|(key, _)| *key == entry.key) {
                entry.fate = to;
            }
        }
    }

    pub fn aside_keys(&self) -> usize {
        coalesced(self.aside()).len()
    }

    pub fn held_keys(&self) -> usize {
        let in_place = |place| coalesced(self.placed(place)).len();
        in_place(Place::Aside) + in_place(Place::Ready) + in_place(Place::Round)
    }

    pub fn checkpoint(&self) -> Position {
        let held = self.entries.iter().filter(|entry| entry.fate != Fate::Gone);
        checkpoint_before(held.map(|entry| entry.position), self.read)
    }

    pub fn checkpoint_without(&self, place: Place) -> Position {
        let held = self.entries.iter().filter(|entry| entry.fate != Fate::Gone);
        let kept = held.filter(|entry| self.place(entry) != Some(place));
        checkpoint_before(kept.map(|entry| entry.position), self.read)
    }

    pub fn is_drained(&self) -> bool {
        self.entries.iter().all(|entry| entry.fate == Fate::Gone)
            && self.states.iter().all(|state| *state == SliceState::Copied)
    }

    fn aside(&self) -> impl Iterator<Item = &Entry> {
        self.placed(Place::Aside)
    }

    fn placed(&self, place: Place) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| self.place(entry) == Some(place))
    }

    fn place(&self, entry: &Entry) -> Option<Place> {
        match (entry.fate, self.states[entry.slice]) {
            (Fate::Gone, _) => None,
            (Fate::InRound, _) => Some(Place::Round),
            (Fate::Waiting, SliceState::Copied) => Some(Place::Ready),
            (Fate::Waiting, _) => Some(Place::Aside),
        }
    }
}

/// The changes of each key as one, in the order of the keys.
fn coalesced<'a>(entries: impl Iterator<Item = &'a Entry>) -> DirtyKeys {
    let mut keys: BTreeMap<Key, DirtyKey> = BTreeMap::new();
    for entry in entries {
        let dirty_key =
            keys.entry(entry.key).or_insert(DirtyKey::at(entry.position, Change::Inserted));
        dirty_key.first = dirty_key.first.min(entry.position);
        dirty_key.last = dirty_key.last.max(entry.position);
        dirty_key.change = dirty_key.change.max(entry.change);
    }
    keys.into_iter().collect()
}

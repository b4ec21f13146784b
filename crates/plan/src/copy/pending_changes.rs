//! The changes of a collection that are not applied yet: which of them may be applied, which must wait for a slice,
//! and from which position of the change stream a resumed job must read.
//!
//! The idea, after Hydra's treatment of updates (Mailbox, 2013, "Replicating updates after the snapshot"): a
//! change is not replayed. It marks a *dirty key*: the applier reads the key's current state from the source and
//! makes the destination equal to it. Changes of one key coalesce, may be repeated, and need no image. One race
//! remains, with the copy of the slice that holds the key: a document may be read before a change and written
//! after it. So a dirty key waits (is *set aside*) until its slice is copied.
//!
//! A dirty key of a slice that was never leased need not wait: the worker that leases the slice reads it later.
//! The *horizon*, a low watermark, makes this exact. The coordinator first persists a stream position H, then
//! checks which slices have still never been leased, and only then calls [`PendingChanges::horizon`]. A worker
//! first leases a slice, then reads H, and then reads the slice from a source state that includes everything up to
//! H. So the worker's read contains the changes of those slices at or before H, which are dropped.
//!
//! Invariants, where a *position* numbers the batches of the change stream in their order:
//!
//! 1. Every dirty key that was recorded and neither finished nor dropped is held by exactly one of:
//!    a slice's set-aside, a lane's ready set, a round in progress.
//! 2. A dirty key becomes ready only when its slice is copied.
//! 3. A dirty key is dropped only by [`PendingChanges::horizon`], only at or before the horizon, and only in a
//!    slice that was never leased when the horizon was already persisted.
//! 4. At most one round of a lane is in progress, so the changes of one key are applied one after another.
//! 5. No dirty key at or before [`PendingChanges::checkpoint`] is still held: a stream reopened there misses
//!    nothing.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The number of a batch of the change stream, counted from the first one read.
pub type Position = u64;

/// The last known state of a slice, a contiguous range of a collection's `_id`s. The state only advances, in the order
/// of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SliceState {
    /// The slice was never leased: no document of the slice was read.
    Untouched,
    /// The slice was leased by a worker at least once; parts of the slice may be at the destination.
    Leased,
    /// The slice is copied: its last write is durable at the destination.
    Copied,
}

/// The kind of a key's changes, ordered by how much the applier may assume. Of several changes the greatest
/// variant, which allows the fewest assumptions, applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// The key's document was inserted: the destination probably lacks the document.
    Inserted,
    /// Only fields that do not affect placement at the destination were changed: the destination's copy is on the
    /// shard where the document's current state belongs.
    Kept,
    /// The change is any other: of fields that affect placement, a replacement, or a deletion.
    Any,
}

/// The coalesced changes of one key's document, which are applied once, by one read of the document's current state at
/// the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirtyKey {
    /// Position of the key's first change. The checkpoint stays before this position until the dirty key is finished.
    pub first: Position,
    /// Position of the key's last change. The read must see the source as of this position or later.
    pub last: Position,
    /// The combined kind of the key's changes.
    pub change: Change,
}

impl DirtyKey {
    /// Creates a dirty key for one change at a position of the change stream.
    #[must_use]
    pub fn at(position: Position, change: Change) -> Self {
        Self { first: position, last: position, change }
    }

    fn join(&mut self, later: Self) {
        self.first = self.first.min(later.first);
        self.last = self.last.max(later.last);
        self.change = self.change.max(later.change);
    }
}

/// The dirty keys that one lane applies together. A round must be returned to [`PendingChanges::finish`].
#[derive(Debug)]
#[must_use = "a round that is not finished holds the checkpoint back for ever"]
pub struct Round<K> {
    lane: usize,
    /// The keys whose documents are to be made equal at the destination, each once.
    pub dirty_keys: Vec<(K, DirtyKey)>,
}

impl<K> Round<K> {
    /// Returns the index of the lane that applies this round.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// Returns the latest position of the change stream that the reads of this round must include.
    #[must_use]
    pub fn last(&self) -> Position {
        self.dirty_keys.iter().map(|(_, dirty_key)| dirty_key.last).max().unwrap_or(0)
    }
}

#[derive(Debug)]
struct Lane<K> {
    ready: HashMap<K, DirtyKey>,
    busy: bool,
}

#[derive(Debug)]
struct Slice<K> {
    state: SliceState,
    aside: HashMap<K, DirtyKey>,
}

/// The changes of one collection that were read from the change stream and are not yet applied at the destination.
///
/// `K` is the type of a document's `_id`. Its `Eq` and `Hash` must match the database's equality, or two
/// representations of one `_id` would go through two lanes.
#[derive(Debug)]
pub struct PendingChanges<K> {
    slices: Vec<Slice<K>>,
    lanes: Vec<Lane<K>>,
    /// Number of held dirty keys by the position of their first change. The smallest position holds the checkpoint
    /// back.
    held: BTreeMap<Position, usize>,
    /// Position of the last batch of the change stream that was recorded in full.
    read: Position,
}

impl<K: Eq + Hash + Clone> PendingChanges<K> {
    /// Creates an empty set of changes for a collection of `slices` slices and `lanes` lanes. The change stream is
    /// read from after the position `read`.
    ///
    /// # Panics
    /// If there is no slice or no lane.
    #[must_use]
    pub fn new(slices: usize, lanes: usize, read: Position) -> Self {
        assert!(slices > 0, "a collection has at least one slice");
        assert!(lanes > 0, "changes need at least one lane");
        let slice = || Slice { state: SliceState::Untouched, aside: HashMap::new() };
        let lane = || Lane { ready: HashMap::new(), busy: false };
        Self {
            slices: (0..slices).map(|_| slice()).collect(),
            lanes: (0..lanes).map(|_| lane()).collect(),
            held: BTreeMap::new(),
            read,
        }
    }

    /// Records a change of the document with `key`, which lies in the slice with index `slice` and goes through the
    /// lane with index `lane`.
    ///
    /// # Panics
    /// If the dirty key is not after [`PendingChanges::checkpoint`].
    pub fn mark_dirty(&mut self, key: K, slice: usize, lane: usize, dirty_key: DirtyKey) {
        assert!(
            dirty_key.first > self.checkpoint(),
            "a dirty key behind the checkpoint would be forgotten"
        );
        let place = match self.slices[slice].state {
            SliceState::Copied => &mut self.lanes[lane].ready,
            SliceState::Untouched | SliceState::Leased => &mut self.slices[slice].aside,
        };
        hold(&mut self.held, place, key, dirty_key);
    }

    /// Records that the change stream was read up to and including the batch `position`, and that
    /// [`PendingChanges::mark_dirty`] was called for every change in these batches.
    ///
    /// # Panics
    /// If `position` is before the last one.
    pub fn read_to(&mut self, position: Position) {
        assert!(position >= self.read, "the stream went backwards");
        self.read = position;
    }

    /// Records that the slice with index `slice` was observed in `state`. States older than the known one are ignored,
    /// so that observations may arrive out of order. `lane_of` returns the lane of a key.
    pub fn see(&mut self, slice: usize, state: SliceState, lane_of: impl Fn(&K) -> usize) {
        let seen = &mut self.slices[slice];
        if state <= seen.state {
            return;
        }
        seen.state = state;
        if state == SliceState::Copied {
            for (key, dirty_key) in std::mem::take(&mut seen.aside) {
                release(&mut self.held, dirty_key.first);
                let lane = lane_of(&key);
                hold(&mut self.held, &mut self.lanes[lane].ready, key, dirty_key);
            }
        }
    }

    /// Drops the dirty keys of the `untouched` slices at or before `position`, which a later lease of these slices
    /// will read: the horizon was persisted, and *afterwards* these slices were observed as never leased. A key
    /// that was also changed after `position` stays for the later changes alone, so that a key which is written
    /// all the time does not hold the checkpoint back until its slice is copied. Returns the number of dropped
    /// keys.
    pub fn horizon(&mut self, position: Position, untouched: &[usize]) -> usize {
        let mut dropped = 0;
        for &slice in untouched {
            let slice = &mut self.slices[slice];
            if slice.state != SliceState::Untouched {
                continue;
            }
            slice.aside.retain(|_, dirty_key| {
                let keep = dirty_key.last > position;
                if !keep {
                    release(&mut self.held, dirty_key.first);
                    dropped += 1;
                } else if dirty_key.first <= position {
                    release(&mut self.held, dirty_key.first);
                    dirty_key.first = position + 1;
                    *self.held.entry(dirty_key.first).or_insert(0) += 1;
                }
                keep
            });
        }
        dropped
    }

    /// Takes up to `keys_max` ready keys of the lane with index `lane`, the oldest first. Returns `None` if the lane
    /// has none or its last round is still in progress. In any other order some keys would wait, and hold the
    /// checkpoint back, for as long as changes arrive as fast as they are applied.
    pub fn round(&mut self, lane: usize, keys_max: usize) -> Option<Round<K>> {
        let state = &mut self.lanes[lane];
        if state.busy || state.ready.is_empty() || keys_max == 0 {
            return None;
        }
        state.busy = true;
        let dirty_keys = if state.ready.len() <= keys_max {
            state.ready.drain().collect()
        } else {
            let mut oldest: Vec<(Position, &K)> =
                state.ready.iter().map(|(key, dirty_key)| (dirty_key.first, key)).collect();
            oldest.select_nth_unstable_by_key(keys_max - 1, |(first, _)| *first);
            let oldest = oldest.into_iter().take(keys_max);
            let keys: Vec<K> = oldest.map(|(_, key)| key.clone()).collect();
            keys.into_iter().filter_map(|key| state.ready.remove_entry(&key)).collect()
        };
        Some(Round { lane, dirty_keys })
    }

    /// Records that the documents of the round's keys are durably equal at the destination.
    ///
    /// # Panics
    /// If the lane has no round in progress.
    pub fn finish(&mut self, round: Round<K>) {
        let lane = &mut self.lanes[round.lane];
        assert!(lane.busy, "a round is finished once");
        lane.busy = false;
        for (_, dirty_key) in round.dirty_keys {
            release(&mut self.held, dirty_key.first);
        }
    }

    /// Returns the checkpoint: the last position of the change stream such that a stream reopened after it misses
    /// nothing.
    #[must_use]
    pub fn checkpoint(&self) -> Position {
        match self.held.first_key_value() {
            Some((first, _)) => self.read.min(first - 1),
            None => self.read,
        }
    }

    /// Returns the number of dirty keys in memory: set aside for a slice, ready, or in a round in progress.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.values().sum()
    }

    /// Returns the number of dirty keys that wait until their slice is copied.
    #[must_use]
    pub fn aside(&self) -> usize {
        self.slices.iter().map(|slice| slice.aside.len()).sum()
    }

    /// Returns true if every slice is copied and no dirty key is held: the destination equals the source as of the
    /// position read so far, or later for keys that changed meanwhile.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.held.is_empty() && self.is_copied()
    }

    /// Returns true if every slice of the collection is copied.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.slices.iter().all(|slice| slice.state == SliceState::Copied)
    }
}

fn hold<K: Eq + Hash>(
    held: &mut BTreeMap<Position, usize>,
    place: &mut HashMap<K, DirtyKey>,
    key: K,
    dirty_key: DirtyKey,
) {
    match place.entry(key) {
        std::collections::hash_map::Entry::Vacant(vacant) => {
            vacant.insert(dirty_key);
            *held.entry(dirty_key.first).or_insert(0) += 1;
        }
        std::collections::hash_map::Entry::Occupied(mut occupied) => {
            let before = occupied.get().first;
            occupied.get_mut().join(dirty_key);
            let after = occupied.get().first;
            if after != before {
                release(held, before);
                *held.entry(after).or_insert(0) += 1;
            }
        }
    }
}

fn release(held: &mut BTreeMap<Position, usize>, first: Position) {
    let count = held.get_mut(&first).expect("every held dirty key is counted");
    *count -= 1;
    if *count == 0 {
        held.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_lane(slices: usize) -> PendingChanges<u32> {
        PendingChanges::new(slices, 1, 0)
    }

    fn take(pending: &mut PendingChanges<u32>) -> Vec<u32> {
        let Some(round) = pending.round(0, 100) else { return vec![] };
        let mut keys: Vec<u32> = round.dirty_keys.iter().map(|(key, _)| *key).collect();
        pending.finish(round);
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_dirty_key_waits_until_its_slice_is_copied() {
        let mut pending = one_lane(2);
        pending.see(1, SliceState::Copied, |_| 0);
        pending.mark_dirty(7, 0, 0, DirtyKey::at(1, Change::Any));
        pending.mark_dirty(8, 1, 0, DirtyKey::at(1, Change::Any));
        pending.read_to(1);
        assert_eq!(take(&mut pending), [8]);
        assert_eq!(pending.checkpoint(), 0, "7 is still set aside");
        pending.see(0, SliceState::Copied, |_| 0);
        assert_eq!(take(&mut pending), [7]);
        assert_eq!(pending.checkpoint(), 1);
        assert!(pending.is_drained());
    }

    #[test]
    fn the_horizon_drops_only_what_a_later_lease_will_read() {
        let mut pending = one_lane(3);
        for (key, slice, position) in [(1, 0, 1), (2, 0, 3), (3, 1, 1), (4, 2, 1)] {
            pending.mark_dirty(key, slice, 0, DirtyKey::at(position, Change::Any));
        }
        pending.read_to(3);
        pending.see(1, SliceState::Leased, |_| 0);
        assert_eq!(pending.horizon(2, &[0, 1]), 1, "only key 1: 2 is later, 3 leased, 4 not named");
        for slice in 0..3 {
            pending.see(slice, SliceState::Copied, |_| 0);
        }
        assert_eq!(take(&mut pending), [2, 3, 4]);
    }

    #[test]
    fn the_horizon_frees_the_checkpoint_from_a_key_that_is_touched_again() {
        let mut pending = one_lane(1);
        for position in 1..=9 {
            pending.mark_dirty(5, 0, 0, DirtyKey::at(position, Change::Any));
            pending.read_to(position);
        }
        assert_eq!((pending.horizon(8, &[0]), pending.checkpoint()), (0, 8));
        pending.see(0, SliceState::Copied, |_| 0);
        assert_eq!(take(&mut pending), [5]);
    }

    #[test]
    fn changes_of_one_key_coalesce_and_keep_the_earliest_position() {
        let mut pending = one_lane(1);
        pending.see(0, SliceState::Copied, |_| 0);
        pending.mark_dirty(5, 0, 0, DirtyKey::at(2, Change::Inserted));
        pending.mark_dirty(5, 0, 0, DirtyKey::at(4, Change::Kept));
        pending.read_to(4);
        assert_eq!((pending.held(), pending.checkpoint()), (1, 1));
        let round = pending.round(0, 10).expect("a dirty key is ready");
        assert_eq!(round.dirty_keys, [(5, DirtyKey { first: 2, last: 4, change: Change::Kept })]);
        pending.finish(round);
        assert_eq!(pending.checkpoint(), 4);
    }

    #[test]
    fn a_key_touched_during_its_round_waits_for_the_next_round() {
        let mut pending = one_lane(1);
        pending.see(0, SliceState::Copied, |_| 0);
        pending.mark_dirty(5, 0, 0, DirtyKey::at(1, Change::Any));
        let round = pending.round(0, 10).expect("a dirty key is ready");
        pending.mark_dirty(5, 0, 0, DirtyKey::at(2, Change::Any));
        pending.read_to(2);
        assert!(pending.round(0, 10).is_none(), "the lane is busy");
        pending.finish(round);
        assert_eq!(pending.checkpoint(), 1);
        assert_eq!(take(&mut pending), [5]);
    }

    #[test]
    fn a_round_is_bounded_and_leaves_the_rest_ready() {
        let mut pending = one_lane(1);
        pending.see(0, SliceState::Copied, |_| 0);
        for key in 0..10 {
            pending.mark_dirty(key, 0, 0, DirtyKey::at(1, Change::Any));
        }
        pending.read_to(1);
        let round = pending.round(0, 4).expect("dirty keys are ready");
        assert_eq!(round.dirty_keys.len(), 4);
        pending.finish(round);
        assert_eq!(pending.held(), 6);
    }

    #[test]
    fn no_dirty_key_waits_longer_because_others_come_as_fast_as_they_are_applied() {
        let mut pending = one_lane(1);
        pending.see(0, SliceState::Copied, |_| 0);
        // Ten changes come for each round of ten, and two hundred wait.
        for position in 1..1_000_u32 {
            for n in 0..if position == 1 { 200 } else { 10 } {
                pending.mark_dirty(
                    position * 1_000 + n,
                    0,
                    0,
                    DirtyKey::at(position.into(), Change::Any),
                );
            }
            pending.read_to(position.into());
            let round = pending.round(0, 10).expect("dirty keys are ready");
            pending.finish(round);
            let behind = u64::from(position) - pending.checkpoint();
            assert!(behind <= 21, "{behind} behind at {position}");
        }
    }
}

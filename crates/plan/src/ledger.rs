//! Which touched documents may be applied, which must wait for a slice, and how far the change
//! stream is safely behind us.
//!
//! The idea, after Hydra's treatment of updates (Mailbox, 2013, "Replicating updates after the
//! snapshot"): a change is never replayed as such. It is a *touch* of a key: the applier reads the
//! key's present state from the source and makes the destination equal to it. Touches of one key
//! coalesce, may be repeated, and need no image of the change. What is left to get right is the race
//! with the copy of the slice that holds the key: a document that was read before a change and
//! written after it. So a touch waits (is *set aside*) until its slice is copied.
//!
//! A touch of a slice that nobody has ever leased need not wait for ever: whoever leases that slice
//! will read it later. The *horizon* makes this exact. The owner of the ledger first persists a
//! stream position H, then looks which slices have still never been leased, and only then calls
//! [`Ledger::horizon`]; a worker first leases a slice, then reads H, and then reads the slice from a
//! source state that includes everything up to H. Touches of those slices at or before H are
//! therefore in what the worker will read, and are dropped.
//!
//! Invariants, where a *position* numbers the batches of the change stream in their order:
//!
//! 1. Every touch that was recorded and neither finished nor dropped is held by exactly one of:
//!    a slice's set-aside, a lane's ready set, a round in progress.
//! 2. A touch becomes ready only when its slice is copied.
//! 3. A touch is dropped only by [`Ledger::horizon`], only at or before the horizon, and only in a
//!    slice that was never leased when the horizon was already persisted.
//! 4. At most one round of a lane is in progress, so the touches of one key are applied one after
//!    another.
//! 5. No touch at or before [`Ledger::checkpoint`] is still held: a stream reopened there misses
//!    nothing.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The number of a batch of the change stream, counted from the first one read.
pub type Position = u64;

/// What the ledger last heard of a slice. It only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SliceState {
    /// Nobody has read anything of it, ever.
    Untouched,
    /// Somebody leased it at least once; parts of it may be at the destination.
    Leased,
    /// Its last write is durable at the destination.
    Copied,
}

/// What is known of a key's changes, from the one that allows the most to the one that allows the
/// least: several of them are what the least of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It was inserted: the destination probably lacks it.
    Inserted,
    /// It was changed in fields by which the destination does not place it: what the destination
    /// holds of it lies where the present state belongs.
    Kept,
    /// Anything else: a change of those fields, a replacement, a deletion.
    Any,
}

/// The changes of one key that wait together: applied once, by one read of the present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touch {
    /// The first change's position: the checkpoint stays before it until the touch is finished.
    pub first: Position,
    /// The last change's position: the read must see the source as of there, or later.
    pub last: Position,
    /// What the changes were.
    pub change: Change,
}

impl Touch {
    /// A touch by one change.
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

/// The touches that one lane applies together. It must be given back to [`Ledger::finish`].
#[derive(Debug)]
#[must_use = "a round that is not finished holds the checkpoint back for ever"]
pub struct Round<K> {
    lane: usize,
    /// The keys to make equal, each once.
    pub touches: Vec<(K, Touch)>,
}

impl<K> Round<K> {
    /// The lane that this round belongs to.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// The latest position that the reads of this round must include.
    #[must_use]
    pub fn last(&self) -> Position {
        self.touches.iter().map(|(_, touch)| touch.last).max().unwrap_or(0)
    }
}

#[derive(Debug)]
struct Lane<K> {
    ready: HashMap<K, Touch>,
    busy: bool,
}

#[derive(Debug)]
struct Slice<K> {
    state: SliceState,
    aside: HashMap<K, Touch>,
}

/// The touches of one collection, from the change stream to the destination.
///
/// `K` is the document's `_id`: its `Eq` and `Hash` must be the database's own equality, or two
/// names of one document would go through two lanes.
#[derive(Debug)]
pub struct Ledger<K> {
    slices: Vec<Slice<K>>,
    lanes: Vec<Lane<K>>,
    /// Held touches by first position: what keeps the checkpoint back.
    held: BTreeMap<Position, usize>,
    /// The last batch of the stream that was recorded in full.
    read: Position,
}

impl<K: Eq + Hash + Clone> Ledger<K> {
    /// A ledger for a collection of `slices` slices, applied through `lanes` lanes. `read` is the
    /// position that the stream starts after.
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

    /// Records a change of `key`, which lies in `slice` and goes through `lane`.
    ///
    /// # Panics
    /// If the touch lies before a batch that was already recorded in full.
    pub fn touch(&mut self, key: K, slice: usize, lane: usize, touch: Touch) {
        assert!(
            touch.first > self.checkpoint(),
            "a touch behind the checkpoint would be forgotten"
        );
        let place = match self.slices[slice].state {
            SliceState::Copied => &mut self.lanes[lane].ready,
            SliceState::Untouched | SliceState::Leased => &mut self.slices[slice].aside,
        };
        hold(&mut self.held, place, key, touch);
    }

    /// The stream was read up to and including the batch `position`; every change of it has been
    /// recorded by [`Ledger::touch`].
    ///
    /// # Panics
    /// If positions go backwards.
    pub fn read_to(&mut self, position: Position) {
        assert!(position >= self.read, "the stream went backwards");
        self.read = position;
    }

    /// A slice was seen in `state`. States that are older than what is known are ignored, so that
    /// sightings may arrive out of order. `lane_of` names the lane of a key.
    pub fn see(&mut self, slice: usize, state: SliceState, lane_of: impl Fn(&K) -> usize) {
        let seen = &mut self.slices[slice];
        if state <= seen.state {
            return;
        }
        seen.state = state;
        if state == SliceState::Copied {
            for (key, touch) in std::mem::take(&mut seen.aside) {
                release(&mut self.held, touch.first);
                let lane = lane_of(&key);
                hold(&mut self.held, &mut self.lanes[lane].ready, key, touch);
            }
        }
    }

    /// Everything up to `position` is in what a later lease of any of the `untouched` slices will
    /// read: the horizon was persisted, and *afterwards* these slices were seen never leased.
    /// A key that was touched again after `position` is kept for those touches alone, so that a
    /// key which is written all the time does not hold the checkpoint back until its slice is
    /// copied. Returns how many touches were dropped.
    pub fn horizon(&mut self, position: Position, untouched: &[usize]) -> usize {
        let mut dropped = 0;
        for &slice in untouched {
            let slice = &mut self.slices[slice];
            if slice.state != SliceState::Untouched {
                continue;
            }
            slice.aside.retain(|_, touch| {
                let keep = touch.last > position;
                if !keep {
                    release(&mut self.held, touch.first);
                    dropped += 1;
                } else if touch.first <= position {
                    release(&mut self.held, touch.first);
                    touch.first = position + 1;
                    *self.held.entry(touch.first).or_insert(0) += 1;
                }
                keep
            });
        }
        dropped
    }

    /// Takes up to `touches_max` ready touches of a lane, those that have waited longest, or nothing
    /// when the lane has none or its last round is still in progress. In any other order some would
    /// wait, and keep the checkpoint back, for as long as changes come as fast as they are applied.
    pub fn round(&mut self, lane: usize, touches_max: usize) -> Option<Round<K>> {
        let state = &mut self.lanes[lane];
        if state.busy || state.ready.is_empty() || touches_max == 0 {
            return None;
        }
        state.busy = true;
        let touches = if state.ready.len() <= touches_max {
            state.ready.drain().collect()
        } else {
            let mut oldest: Vec<(Position, &K)> =
                state.ready.iter().map(|(key, touch)| (touch.first, key)).collect();
            oldest.select_nth_unstable_by_key(touches_max - 1, |(first, _)| *first);
            let oldest = oldest.into_iter().take(touches_max);
            let keys: Vec<K> = oldest.map(|(_, key)| key.clone()).collect();
            keys.into_iter().filter_map(|key| state.ready.remove_entry(&key)).collect()
        };
        Some(Round { lane, touches })
    }

    /// The round's keys are durably equal at the destination.
    ///
    /// # Panics
    /// If the lane has no round in progress.
    pub fn finish(&mut self, round: Round<K>) {
        let lane = &mut self.lanes[round.lane];
        assert!(lane.busy, "a round is finished once");
        lane.busy = false;
        for (_, touch) in round.touches {
            release(&mut self.held, touch.first);
        }
    }

    /// The last position such that a stream reopened after it misses nothing.
    #[must_use]
    pub fn checkpoint(&self) -> Position {
        match self.held.first_key_value() {
            Some((first, _)) => self.read.min(first - 1),
            None => self.read,
        }
    }

    /// Touches held in memory: set aside, ready, or being applied.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.values().sum()
    }

    /// Touches that wait for their slice.
    #[must_use]
    pub fn aside(&self) -> usize {
        self.slices.iter().map(|slice| slice.aside.len()).sum()
    }

    /// Whether every slice is copied and no touch is held: the destination is the source as of
    /// the position read so far, or later for keys that changed meanwhile.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.held.is_empty() && self.is_copied()
    }

    /// Whether every slice is copied.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.slices.iter().all(|slice| slice.state == SliceState::Copied)
    }
}

fn hold<K: Eq + Hash>(
    held: &mut BTreeMap<Position, usize>,
    place: &mut HashMap<K, Touch>,
    key: K,
    touch: Touch,
) {
    match place.entry(key) {
        std::collections::hash_map::Entry::Vacant(vacant) => {
            vacant.insert(touch);
            *held.entry(touch.first).or_insert(0) += 1;
        }
        std::collections::hash_map::Entry::Occupied(mut occupied) => {
            let before = occupied.get().first;
            occupied.get_mut().join(touch);
            let after = occupied.get().first;
            if after != before {
                release(held, before);
                *held.entry(after).or_insert(0) += 1;
            }
        }
    }
}

fn release(held: &mut BTreeMap<Position, usize>, first: Position) {
    let count = held.get_mut(&first).expect("every held touch is counted");
    *count -= 1;
    if *count == 0 {
        held.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_lane(slices: usize) -> Ledger<u32> {
        Ledger::new(slices, 1, 0)
    }

    fn take(ledger: &mut Ledger<u32>) -> Vec<u32> {
        let Some(round) = ledger.round(0, 100) else { return vec![] };
        let mut keys: Vec<u32> = round.touches.iter().map(|(key, _)| *key).collect();
        ledger.finish(round);
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_touch_waits_until_its_slice_is_copied() {
        let mut ledger = one_lane(2);
        ledger.see(1, SliceState::Copied, |_| 0);
        ledger.touch(7, 0, 0, Touch::at(1, Change::Any));
        ledger.touch(8, 1, 0, Touch::at(1, Change::Any));
        ledger.read_to(1);
        assert_eq!(take(&mut ledger), [8]);
        assert_eq!(ledger.checkpoint(), 0, "7 is still set aside");
        ledger.see(0, SliceState::Copied, |_| 0);
        assert_eq!(take(&mut ledger), [7]);
        assert_eq!(ledger.checkpoint(), 1);
        assert!(ledger.is_drained());
    }

    #[test]
    fn the_horizon_drops_only_what_a_later_lease_will_read() {
        let mut ledger = one_lane(3);
        for (key, slice, position) in [(1, 0, 1), (2, 0, 3), (3, 1, 1), (4, 2, 1)] {
            ledger.touch(key, slice, 0, Touch::at(position, Change::Any));
        }
        ledger.read_to(3);
        ledger.see(1, SliceState::Leased, |_| 0);
        assert_eq!(ledger.horizon(2, &[0, 1]), 1, "only key 1: 2 is later, 3 leased, 4 not named");
        for slice in 0..3 {
            ledger.see(slice, SliceState::Copied, |_| 0);
        }
        assert_eq!(take(&mut ledger), [2, 3, 4]);
    }

    #[test]
    fn the_horizon_frees_the_checkpoint_from_a_key_that_is_touched_again() {
        let mut ledger = one_lane(1);
        for position in 1..=9 {
            ledger.touch(5, 0, 0, Touch::at(position, Change::Any));
            ledger.read_to(position);
        }
        assert_eq!((ledger.horizon(8, &[0]), ledger.checkpoint()), (0, 8));
        ledger.see(0, SliceState::Copied, |_| 0);
        assert_eq!(take(&mut ledger), [5]);
    }

    #[test]
    fn touches_of_one_key_coalesce_and_keep_the_earliest_position() {
        let mut ledger = one_lane(1);
        ledger.see(0, SliceState::Copied, |_| 0);
        ledger.touch(5, 0, 0, Touch::at(2, Change::Inserted));
        ledger.touch(5, 0, 0, Touch::at(4, Change::Kept));
        ledger.read_to(4);
        assert_eq!((ledger.held(), ledger.checkpoint()), (1, 1));
        let round = ledger.round(0, 10).expect("a touch is ready");
        assert_eq!(round.touches, [(5, Touch { first: 2, last: 4, change: Change::Kept })]);
        ledger.finish(round);
        assert_eq!(ledger.checkpoint(), 4);
    }

    #[test]
    fn a_key_touched_during_its_round_waits_for_the_next_round() {
        let mut ledger = one_lane(1);
        ledger.see(0, SliceState::Copied, |_| 0);
        ledger.touch(5, 0, 0, Touch::at(1, Change::Any));
        let round = ledger.round(0, 10).expect("a touch is ready");
        ledger.touch(5, 0, 0, Touch::at(2, Change::Any));
        ledger.read_to(2);
        assert!(ledger.round(0, 10).is_none(), "the lane is busy");
        ledger.finish(round);
        assert_eq!(ledger.checkpoint(), 1);
        assert_eq!(take(&mut ledger), [5]);
    }

    #[test]
    fn a_round_is_bounded_and_leaves_the_rest_ready() {
        let mut ledger = one_lane(1);
        ledger.see(0, SliceState::Copied, |_| 0);
        for key in 0..10 {
            ledger.touch(key, 0, 0, Touch::at(1, Change::Any));
        }
        ledger.read_to(1);
        let round = ledger.round(0, 4).expect("touches are ready");
        assert_eq!(round.touches.len(), 4);
        ledger.finish(round);
        assert_eq!(ledger.held(), 6);
    }

    #[test]
    fn no_touch_waits_longer_because_others_come_as_fast_as_they_are_applied() {
        let mut ledger = one_lane(1);
        ledger.see(0, SliceState::Copied, |_| 0);
        // Ten changes come for each round of ten, and two hundred wait.
        for position in 1..1_000_u32 {
            for n in 0..if position == 1 { 200 } else { 10 } {
                ledger.touch(position * 1_000 + n, 0, 0, Touch::at(position.into(), Change::Any));
            }
            ledger.read_to(position.into());
            let round = ledger.round(0, 10).expect("touches are ready");
            ledger.finish(round);
            let behind = u64::from(position) - ledger.checkpoint();
            assert!(behind <= 21, "{behind} behind at {position}");
        }
    }
}

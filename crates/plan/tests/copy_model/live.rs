//! One real table of pending changes that lives as long as its coordinator, each answer compared with the naive one.

use imago_plan::copy::pending_changes::{DirtyKey, PendingChanges, Position, Round, SliceState};

use crate::desk::{Desk, DirtyKeys, Place};
use crate::naive::Naive;
use crate::source::Key;

/// The real table of pending changes beside the naive one.
#[derive(Debug)]
pub struct Live {
    pending: PendingChanges<Key>,
    rounds: Vec<Option<Round<Key>>>,
    naive: Naive,
}

impl Live {
    fn compare(&self) {
        let Self { pending, naive, .. } = self;
        assert_eq!(pending.checkpoint(), naive.checkpoint(), "checkpoint");
        assert_eq!(pending.held(), naive.held_keys(), "held");
        assert_eq!(pending.aside(), naive.aside_keys(), "aside");
        assert_eq!(pending.is_drained(), naive.is_drained(), "drained");
    }
}

impl Desk for Live {
    fn new(slices: usize, lanes: usize) -> Self {
        Self {
            pending: PendingChanges::new(slices, lanes, 0),
            rounds: (0..lanes).map(|_| None).collect(),
            naive: Naive::new(slices),
        }
    }

    fn mark_dirty(&mut self, key: Key, slice: usize, lane: usize, dirty_key: DirtyKey) {
        self.pending.mark_dirty(key, slice, lane, dirty_key);
        self.naive.mark_dirty(key, slice, lane, dirty_key);
        self.compare();
    }

    fn read_to(&mut self, position: Position) {
        self.pending.read_to(position);
        self.naive.read_to(position);
        self.compare();
    }

    fn see(&mut self, slice: usize, state: SliceState, lane_of: &dyn Fn(Key) -> usize) {
        self.pending.see(slice, state, |key| lane_of(*key));
        self.naive.see(slice, state);
        self.compare();
    }

    fn horizon(&mut self, position: Position, untouched: &[usize]) {
        let dropped = self.pending.horizon(position, untouched);
        assert_eq!(dropped, self.naive.horizon(position, untouched), "dropped");
        self.compare();
    }

    fn take(&mut self, lane: usize, keys_max: usize) -> DirtyKeys {
        let ready = self.naive.ready(lane);
        let round = self.pending.round(lane, keys_max).expect("dirty keys are ready");
        assert!(self.pending.round(lane, keys_max).is_none(), "one round of a lane at a time");
        let mut dirty_keys = round.dirty_keys.clone();
        dirty_keys.sort_unstable_by_key(|(key, _)| *key);
        assert_eq!(dirty_keys.len(), ready.len().min(keys_max), "a round as full as it may be");
        assert!(
            dirty_keys.iter().all(|dirty_key| ready.contains(dirty_key)),
            "a dirty key that was not ready"
        );
        assert_eq!((round.lane(), round.last()), (lane, last(&dirty_keys)));
        self.naive.take(&dirty_keys);
        self.rounds[lane] = Some(round);
        self.compare();
        dirty_keys
    }

    fn finish(&mut self, lane: usize) {
        let round = self.rounds[lane].take().expect("a round is in progress");
        self.naive.finish(&round.dirty_keys);
        self.pending.finish(round);
        self.compare();
    }

    fn checkpoint(&self) -> Position {
        self.pending.checkpoint()
    }

    fn is_drained(&self) -> bool {
        self.pending.is_drained()
    }

    fn has_ready(&self, lane: usize) -> bool {
        self.rounds[lane].is_none() && !self.naive.ready(lane).is_empty()
    }

    fn checkpoint_without(&self, place: Place) -> Position {
        self.naive.checkpoint_without(place)
    }
}

fn last(dirty_keys: &DirtyKeys) -> Position {
    dirty_keys.iter().map(|(_, dirty_key)| dirty_key.last).max().expect("a round is not empty")
}

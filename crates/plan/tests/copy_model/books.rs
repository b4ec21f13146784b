//! The real table of pending changes as a value: written down after each step, rebuilt before the next.
//!
//! A model checker must compare and hash states, which a table of pending changes of hash maps does not offer. So a
//! state carries what the table of pending changes holds, found by emptying it through its public functions; the
//! next step records the same dirty keys in a new table of pending changes. Each time, its own sums must agree
//! with its contents: invariants 1 and 5 of the table of pending changes are checked in every state.

use imago_plan::copy::pending_changes::{DirtyKey, PendingChanges, Position, Round, SliceState};

use crate::desk::{Desk, DirtyKeys, Place, checkpoint_before};
use crate::source::Key;

/// The contents and the answers of a table of pending changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Books {
    states: Vec<SliceState>,
    aside: Vec<DirtyKeys>,
    ready: Vec<DirtyKeys>,
    rounds: Vec<Option<DirtyKeys>>,
    read: Position,
    checkpoint: Position,
    drained: bool,
}

type Rounds = Vec<Option<Round<Key>>>;

impl Books {
    fn act<R>(&mut self, act: impl FnOnce(&mut PendingChanges<Key>, &mut Rounds) -> R) -> R {
        let (mut pending, mut rounds) = self.rebuild();
        let result = act(&mut pending, &mut rounds);
        self.record(pending, rounds);
        result
    }

    fn rebuild(&self) -> (PendingChanges<Key>, Rounds) {
        let mut pending = PendingChanges::new(self.states.len(), self.ready.len(), 0);
        for (slice, state) in self.states.iter().enumerate() {
            pending.see(slice, *state, |_| 0);
        }
        // A dirty key of any copied slice goes straight to its lane.
        let copied = self.states.iter().position(|state| *state == SliceState::Copied);
        let to_lane = |pending: &mut PendingChanges<Key>, lane, dirty_keys: &DirtyKeys| {
            for &(key, dirty_key) in dirty_keys {
                pending.mark_dirty(
                    key,
                    copied.expect("only copied slices are ready"),
                    lane,
                    dirty_key,
                );
            }
        };
        let mut rounds: Rounds = self.rounds.iter().map(|_| None).collect();
        for (lane, dirty_keys) in self.rounds.iter().enumerate() {
            if let Some(dirty_keys) = dirty_keys {
                to_lane(&mut pending, lane, dirty_keys);
                rounds[lane] = pending.round(lane, usize::MAX);
            }
        }
        for (lane, dirty_keys) in self.ready.iter().enumerate() {
            to_lane(&mut pending, lane, dirty_keys);
        }
        for (slice, dirty_keys) in self.aside.iter().enumerate() {
            for &(key, dirty_key) in dirty_keys {
                pending.mark_dirty(key, slice, 0, dirty_key);
            }
        }
        pending.read_to(self.read);
        assert_eq!(pending.checkpoint(), self.checkpoint, "the table depends on its history");
        (pending, rounds)
    }

    fn record(&mut self, mut pending: PendingChanges<Key>, rounds: Rounds) {
        self.checkpoint = pending.checkpoint();
        self.drained = pending.is_drained();
        let (held, aside) = (pending.held(), pending.aside());
        for (lane, round) in rounds.into_iter().enumerate() {
            self.rounds[lane] = round.map(|round| finished(&mut pending, round));
            self.ready[lane] = emptied(&mut pending, lane);
        }
        assert_eq!(pending.held(), aside, "what is left waits for a slice");
        for slice in 0..self.states.len() {
            pending.see(slice, SliceState::Copied, |_| 0);
            self.aside[slice] = emptied(&mut pending, 0);
        }
        assert!(pending.is_drained(), "the table holds a dirty key nowhere");
        assert_eq!(pending.checkpoint(), self.read, "an empty table is at its stream's position");
        assert_eq!(held, self.held().count(), "every dirty key is held once");
        let firsts = self.held().map(|(_, dirty_key)| dirty_key.first);
        assert_eq!(self.checkpoint, checkpoint_before(firsts, self.read));
    }

    fn held(&self) -> impl Iterator<Item = (Place, DirtyKey)> + '_ {
        let of = |place, dirty_keys: &DirtyKeys| {
            dirty_keys.iter().map(|(_, dirty_key)| (place, *dirty_key)).collect::<Vec<_>>()
        };
        let aside = self.aside.iter().flat_map(move |dirty_keys| of(Place::Aside, dirty_keys));
        let ready = self.ready.iter().flat_map(move |dirty_keys| of(Place::Ready, dirty_keys));
        let rounds =
            self.rounds.iter().flatten().flat_map(move |dirty_keys| of(Place::Round, dirty_keys));
        aside.chain(ready).chain(rounds)
    }
}

impl Desk for Books {
    fn new(slices: usize, lanes: usize) -> Self {
        Self {
            states: vec![SliceState::Untouched; slices],
            aside: vec![Vec::new(); slices],
            ready: vec![Vec::new(); lanes],
            rounds: vec![None; lanes],
            read: 0,
            checkpoint: 0,
            drained: false,
        }
    }

    fn mark_dirty(&mut self, key: Key, slice: usize, lane: usize, dirty_key: DirtyKey) {
        self.act(|pending, _| pending.mark_dirty(key, slice, lane, dirty_key));
    }

    fn read_to(&mut self, position: Position) {
        let (mut pending, rounds) = self.rebuild();
        pending.read_to(position);
        self.read = position;
        self.record(pending, rounds);
    }

    fn see(&mut self, slice: usize, state: SliceState, lane_of: &dyn Fn(Key) -> usize) {
        let known = self.states[slice];
        self.act(|pending, _| pending.see(slice, state, |key| lane_of(*key)));
        self.states[slice] = known.max(state);
    }

    fn horizon(&mut self, position: Position, untouched: &[usize]) {
        self.act(|pending, _| pending.horizon(position, untouched));
    }

    fn take(&mut self, lane: usize, keys_max: usize) -> DirtyKeys {
        self.act(|pending, rounds| {
            assert!(rounds[lane].is_none(), "a lane is asked only when it is idle");
            rounds[lane] = pending.round(lane, keys_max);
        });
        self.rounds[lane].clone().expect("a lane is asked only when it has dirty keys")
    }

    fn finish(&mut self, lane: usize) {
        self.act(|pending, rounds| {
            pending.finish(rounds[lane].take().expect("a round is in progress"));
        });
    }

    fn checkpoint(&self) -> Position {
        self.checkpoint
    }

    fn is_drained(&self) -> bool {
        self.drained
    }

    fn has_ready(&self, lane: usize) -> bool {
        self.rounds[lane].is_none() && !self.ready[lane].is_empty()
    }

    fn checkpoint_without(&self, place: Place) -> Position {
        let kept = self.held().filter(|(held_in, _)| *held_in != place);
        checkpoint_before(kept.map(|(_, dirty_key)| dirty_key.first), self.read)
    }
}

fn finished(pending: &mut PendingChanges<Key>, round: Round<Key>) -> DirtyKeys {
    let mut dirty_keys = round.dirty_keys.clone();
    dirty_keys.sort_unstable_by_key(|(key, _)| *key);
    pending.finish(round);
    dirty_keys
}

fn emptied(pending: &mut PendingChanges<Key>, lane: usize) -> DirtyKeys {
    pending.round(lane, usize::MAX).map_or_else(Vec::new, |round| finished(pending, round))
}

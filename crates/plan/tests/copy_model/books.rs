//! The real ledger as a value: written down after each step, rebuilt before the next.
//!
//! A model checker must compare and hash states, which a ledger of hash maps does not offer. So a
//! state carries what the ledger holds, found by emptying it through its public functions; the
//! next step records the same touches in a new ledger. Each time, the ledger's own sums must agree
//! with its contents: invariants 1 and 5 of the ledger are checked in every state.

use imago_plan::ledger::{Ledger, Position, Round, SliceState, Touch};

use crate::desk::{Desk, Place, Touches, checkpoint_before};
use crate::source::Key;

/// What a ledger holds, and what it answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Books {
    states: Vec<SliceState>,
    aside: Vec<Touches>,
    ready: Vec<Touches>,
    rounds: Vec<Option<Touches>>,
    read: Position,
    checkpoint: Position,
    drained: bool,
}

type Rounds = Vec<Option<Round<Key>>>;

impl Books {
    fn act<R>(&mut self, act: impl FnOnce(&mut Ledger<Key>, &mut Rounds) -> R) -> R {
        let (mut ledger, mut rounds) = self.rebuild();
        let result = act(&mut ledger, &mut rounds);
        self.record(ledger, rounds);
        result
    }

    fn rebuild(&self) -> (Ledger<Key>, Rounds) {
        let mut ledger = Ledger::new(self.states.len(), self.ready.len(), 0);
        for (slice, state) in self.states.iter().enumerate() {
            ledger.see(slice, *state, |_| 0);
        }
        // A touch of any copied slice goes straight to its lane.
        let copied = self.states.iter().position(|state| *state == SliceState::Copied);
        let to_lane = |ledger: &mut Ledger<Key>, lane, touches: &Touches| {
            for &(key, touch) in touches {
                ledger.touch(key, copied.expect("only copied slices are ready"), lane, touch);
            }
        };
        let mut rounds: Rounds = self.rounds.iter().map(|_| None).collect();
        for (lane, touches) in self.rounds.iter().enumerate() {
            if let Some(touches) = touches {
                to_lane(&mut ledger, lane, touches);
                rounds[lane] = ledger.round(lane, usize::MAX);
            }
        }
        for (lane, touches) in self.ready.iter().enumerate() {
            to_lane(&mut ledger, lane, touches);
        }
        for (slice, touches) in self.aside.iter().enumerate() {
            for &(key, touch) in touches {
                ledger.touch(key, slice, 0, touch);
            }
        }
        ledger.read_to(self.read);
        assert_eq!(ledger.checkpoint(), self.checkpoint, "the ledger depends on its history");
        (ledger, rounds)
    }

    fn record(&mut self, mut ledger: Ledger<Key>, rounds: Rounds) {
        self.checkpoint = ledger.checkpoint();
        self.drained = ledger.is_drained();
        let (held, aside) = (ledger.held(), ledger.aside());
        for (lane, round) in rounds.into_iter().enumerate() {
            self.rounds[lane] = round.map(|round| finished(&mut ledger, round));
            self.ready[lane] = emptied(&mut ledger, lane);
        }
        assert_eq!(ledger.held(), aside, "what is left waits for a slice");
        for slice in 0..self.states.len() {
            ledger.see(slice, SliceState::Copied, |_| 0);
            self.aside[slice] = emptied(&mut ledger, 0);
        }
        assert!(ledger.is_drained(), "the ledger holds a touch nowhere");
        assert_eq!(ledger.checkpoint(), self.read, "an empty ledger is at its stream's position");
        assert_eq!(held, self.held().count(), "every touch is held once");
        let firsts = self.held().map(|(_, touch)| touch.first);
        assert_eq!(self.checkpoint, checkpoint_before(firsts, self.read));
    }

    fn held(&self) -> impl Iterator<Item = (Place, Touch)> + '_ {
        let of = |place, touches: &Touches| {
            touches.iter().map(|(_, touch)| (place, *touch)).collect::<Vec<_>>()
        };
        let aside = self.aside.iter().flat_map(move |touches| of(Place::Aside, touches));
        let ready = self.ready.iter().flat_map(move |touches| of(Place::Ready, touches));
        let rounds =
            self.rounds.iter().flatten().flat_map(move |touches| of(Place::Round, touches));
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

    fn touch(&mut self, key: Key, slice: usize, lane: usize, touch: Touch) {
        self.act(|ledger, _| ledger.touch(key, slice, lane, touch));
    }

    fn read_to(&mut self, position: Position) {
        let (mut ledger, rounds) = self.rebuild();
        ledger.read_to(position);
        self.read = position;
        self.record(ledger, rounds);
    }

    fn see(&mut self, slice: usize, state: SliceState, lane_of: &dyn Fn(Key) -> usize) {
        let known = self.states[slice];
        self.act(|ledger, _| ledger.see(slice, state, |key| lane_of(*key)));
        self.states[slice] = known.max(state);
    }

    fn horizon(&mut self, position: Position, untouched: &[usize]) {
        self.act(|ledger, _| ledger.horizon(position, untouched));
    }

    fn take(&mut self, lane: usize, touches_max: usize) -> Touches {
        self.act(|ledger, rounds| {
            assert!(rounds[lane].is_none(), "a lane is asked only when it is idle");
            rounds[lane] = ledger.round(lane, touches_max);
        });
        self.rounds[lane].clone().expect("a lane is asked only when it has touches")
    }

    fn finish(&mut self, lane: usize) {
        self.act(|ledger, rounds| {
            ledger.finish(rounds[lane].take().expect("a round is in progress"));
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
        checkpoint_before(kept.map(|(_, touch)| touch.first), self.read)
    }
}

fn finished(ledger: &mut Ledger<Key>, round: Round<Key>) -> Touches {
    let mut touches = round.touches.clone();
    touches.sort_unstable_by_key(|(key, _)| *key);
    ledger.finish(round);
    touches
}

fn emptied(ledger: &mut Ledger<Key>, lane: usize) -> Touches {
    ledger.round(lane, usize::MAX).map_or_else(Vec::new, |round| finished(ledger, round))
}

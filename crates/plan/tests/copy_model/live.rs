//! One real ledger that lives as long as its lead, each answer compared with the naive one.

use imago_plan::ledger::{Ledger, Position, Round, SliceState, Touch};

use crate::desk::{Desk, Place, Touches};
use crate::naive::Naive;
use crate::source::Key;

/// The real ledger beside the naive one.
#[derive(Debug)]
pub struct Live {
    ledger: Ledger<Key>,
    rounds: Vec<Option<Round<Key>>>,
    naive: Naive,
}

impl Live {
    fn compare(&self) {
        let Self { ledger, naive, .. } = self;
        assert_eq!(ledger.checkpoint(), naive.checkpoint(), "checkpoint");
        assert_eq!(ledger.held(), naive.held_keys(), "held");
        assert_eq!(ledger.aside(), naive.aside_keys(), "aside");
        assert_eq!(ledger.is_drained(), naive.is_drained(), "drained");
    }
}

impl Desk for Live {
    fn new(slices: usize, lanes: usize) -> Self {
        Self {
            ledger: Ledger::new(slices, lanes, 0),
            rounds: (0..lanes).map(|_| None).collect(),
            naive: Naive::new(slices),
        }
    }

    fn touch(&mut self, key: Key, slice: usize, lane: usize, touch: Touch) {
        self.ledger.touch(key, slice, lane, touch);
        self.naive.touch(key, slice, lane, touch);
        self.compare();
    }

    fn read_to(&mut self, position: Position) {
        self.ledger.read_to(position);
        self.naive.read_to(position);
        self.compare();
    }

    fn see(&mut self, slice: usize, state: SliceState, lane_of: &dyn Fn(Key) -> usize) {
        self.ledger.see(slice, state, |key| lane_of(*key));
        self.naive.see(slice, state);
        self.compare();
    }

    fn horizon(&mut self, position: Position, untouched: &[usize]) {
        let dropped = self.ledger.horizon(position, untouched);
        assert_eq!(dropped, self.naive.horizon(position, untouched), "dropped");
        self.compare();
    }

    fn take(&mut self, lane: usize, touches_max: usize) -> Touches {
        let ready = self.naive.ready(lane);
        let round = self.ledger.round(lane, touches_max).expect("touches are ready");
        assert!(self.ledger.round(lane, touches_max).is_none(), "one round of a lane at a time");
        let mut touches = round.touches.clone();
        touches.sort_unstable_by_key(|(key, _)| *key);
        assert_eq!(touches.len(), ready.len().min(touches_max), "a round as full as it may be");
        assert!(touches.iter().all(|touch| ready.contains(touch)), "a touch that was not ready");
        assert_eq!((round.lane(), round.last()), (lane, last(&touches)));
        self.naive.take(&touches);
        self.rounds[lane] = Some(round);
        self.compare();
        touches
    }

    fn finish(&mut self, lane: usize) {
        let round = self.rounds[lane].take().expect("a round is in progress");
        self.naive.finish(&round.touches);
        self.ledger.finish(round);
        self.compare();
    }

    fn checkpoint(&self) -> Position {
        self.ledger.checkpoint()
    }

    fn is_drained(&self) -> bool {
        self.ledger.is_drained()
    }

    fn has_ready(&self, lane: usize) -> bool {
        self.rounds[lane].is_none() && !self.naive.ready(lane).is_empty()
    }

    fn checkpoint_without(&self, place: Place) -> Position {
        self.naive.checkpoint_without(place)
    }
}

fn last(touches: &Touches) -> Position {
    touches.iter().map(|(_, touch)| touch.last).max().expect("a round is not empty")
}

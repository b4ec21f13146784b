//! The lead's desk: the real ledger and its rounds in progress, in a form that a run can carry.
//!
//! The exhaustive model needs states that are values ([`crate::books::Books`]); the random runs
//! keep one ledger alive and compare each step with a naive one ([`crate::live::Live`]). Both
//! leave every decision to `imago_plan::ledger::Ledger`.

use imago_plan::ledger::{Position, SliceState, Touch};

use crate::source::Key;

/// Where a held touch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Aside,
    Ready,
    Round,
}

/// Touches in the order of their keys.
pub type Touches = Vec<(Key, Touch)>;

/// The operations of a ledger, rounds kept inside.
pub trait Desk {
    /// An empty ledger whose stream starts after position 0.
    fn new(slices: usize, lanes: usize) -> Self;
    fn touch(&mut self, key: Key, slice: usize, lane: usize, touch: Touch);
    fn read_to(&mut self, position: Position);
    fn see(&mut self, slice: usize, state: SliceState, lane_of: &dyn Fn(Key) -> usize);
    fn horizon(&mut self, position: Position, untouched: &[usize]);
    /// Takes a round of up to `touches_max` touches; it stays here until [`Desk::finish`].
    fn take(&mut self, lane: usize, touches_max: usize) -> Touches;
    fn finish(&mut self, lane: usize);
    fn checkpoint(&self) -> Position;
    fn is_drained(&self) -> bool;
    /// Whether a round could be taken.
    fn has_ready(&self, lane: usize) -> bool;
    /// The checkpoint that one would get by forgetting what is held in `place`: a seeded bug.
    fn checkpoint_without(&self, place: Place) -> Position;
}

/// The last position before all of `firsts`, or `read`: the definition of the checkpoint.
pub fn checkpoint_before(firsts: impl Iterator<Item = Position>, read: Position) -> Position {
    firsts.map(|first| first - 1).fold(read, Position::min)
}

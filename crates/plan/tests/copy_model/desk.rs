//! The coordinator's desk: the real table of pending changes and its rounds in progress, in a form that a run can carry.
//!
//! The exhaustive model needs states that are values ([`crate::books::Books`]); the random runs
//! keep one table of pending changes alive and compare each step with a naive one ([`crate::live::Live`]). Both
//! leave every decision to `imago_plan::copy::pending_changes::PendingChanges`.

use imago_plan::copy::pending_changes::{DirtyKey, Position, SliceState};

use crate::source::Key;

/// The place of a held dirty key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Aside,
    Ready,
    Round,
}

/// Dirty keys in the order of their keys.
pub type DirtyKeys = Vec<(Key, DirtyKey)>;

/// The operations of a table of pending changes, rounds kept inside.
pub trait Desk {
    /// An empty table of pending changes whose stream starts after position 0.
    fn new(slices: usize, lanes: usize) -> Self;
    fn mark_dirty(&mut self, key: Key, slice: usize, lane: usize, dirty_key: DirtyKey);
    fn read_to(&mut self, position: Position);
    fn see(&mut self, slice: usize, state: SliceState, lane_of: &dyn Fn(Key) -> usize);
    fn horizon(&mut self, position: Position, untouched: &[usize]);
    /// Takes a round of up to `keys_max` dirty keys; it stays here until [`Desk::finish`].
    fn take(&mut self, lane: usize, keys_max: usize) -> DirtyKeys;
    fn finish(&mut self, lane: usize);
    fn checkpoint(&self) -> Position;
    fn is_drained(&self) -> bool;
    /// True if a round could be taken.
    fn has_ready(&self, lane: usize) -> bool;
    /// The checkpoint that would result if the dirty keys in `place` were forgotten: a seeded bug.
    fn checkpoint_without(&self, place: Place) -> Position;
}

/// The last position before all of `firsts`, or `read`: the definition of the checkpoint.
pub fn checkpoint_before(firsts: impl Iterator<Item = Position>, read: Position) -> Position {
    firsts.map(|first| first - 1).fold(read, Position::min)
}

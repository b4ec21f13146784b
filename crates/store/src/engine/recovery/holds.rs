//! Positions of the log that are being read: a checkpoint removes no log file with entries after a held position.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::record::Position;
use crate::sync::Mutex;

/// The held positions of one log, and the numbering of holds.
#[derive(Default)]
struct Held {
    /// The number that the next [`Hold`] gets.
    next: u64,
    /// The position that each [`Hold`] protects the log after, by the hold's number.
    positions: BTreeMap<u64, Position>,
}

/// The set of positions of one log after which the log must not be removed. Clones share the set.
#[derive(Clone, Default)]
pub(in crate::engine) struct Holds(Arc<Mutex<Held>>);

/// Protects the log after a position from removal, until this hold is dropped.
pub(in crate::engine) struct Hold {
    of: Holds,
    number: u64,
}

impl Holds {
    /// Protects the whole log from removal, until [`Hold::begin_at`] sets the position at which reading begins.
    pub fn hold(&self) -> Hold {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = held.next;
        held.next += 1;
        held.positions.insert(number, Position::START);
        Hold { of: self.clone(), number }
    }

    /// Returns the position up to which the log may be removed: `position`, or the least held position if that is
    /// lower.
    pub fn at_most(&self, position: Position) -> Position {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.positions.values().copied().min().map_or(position, |least| least.min(position))
    }
}

impl Hold {
    /// Reduces the protection of this hold to the log after a position.
    pub fn begin_at(&self, position: Position) {
        let mut held = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.positions.insert(self.number, position);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.positions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_held_position_binds_until_it_is_given_up() {
        let holds = Holds::default();
        let (one, two) = (holds.hold(), holds.hold());
        assert_eq!(holds.at_most(Position(90)), Position::START);
        one.begin_at(Position(40));
        two.begin_at(Position(70));
        assert_eq!(holds.at_most(Position(90)), Position(40));
        drop(one);
        assert_eq!(
            (holds.at_most(Position(90)), holds.at_most(Position(60))),
            (Position(70), Position(60))
        );
        drop(two);
        assert_eq!(holds.at_most(Position(90)), Position(90));
    }
}

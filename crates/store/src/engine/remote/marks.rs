//! The positions at which a site's process was asked for a part of a checkpoint, and the designs there.
//!
//! A site that receives a part of the log does not know the versions of all partitions, and a checkpoint has them: the
//! design of a part is the router's.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::design::Design;
use crate::record::Position;

/// Parts that a site may owe. Further ones are not asked for: a later mark asks again.
const MARKS_MAX: usize = 8;

/// The designs at the marks of one connection, in the order of their positions.
#[derive(Default)]
pub(in crate::engine) struct Marks(Mutex<VecDeque<(Position, Design)>>);

impl Marks {
    /// Notes a mark; false when the site owes too many parts.
    pub fn put(&self, known: Position, design: &Design) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = marks.len() < MARKS_MAX;
        if has_room {
            marks.push_back((known, design.clone()));
        }
        has_room
    }

    /// The design at a mark, whose part has come. No part of an earlier mark comes behind it.
    pub fn take(&self, known: Position) -> Option<Design> {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((at, design)) = marks.pop_front() {
            if at >= known {
                return (at == known).then_some(design);
            }
        }
        None
    }
}

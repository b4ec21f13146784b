//! The positions at which a site's process was asked for a part of a checkpoint, and the designs at these positions.
//!
//! A site that receives only a part of the log does not know the current versions of all partitions, but a checkpoint
//! contains them. So the design of a part is the router's.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::design::Design;
use crate::record::Position;

/// Maximum number of outstanding parts of one site. Beyond it a part is not requested; a later mark requests the
/// next.
const MARKS_MAX: usize = 8;

/// The designs at the marks of one connection, in the order of their positions.
#[derive(Default)]
pub(in crate::engine) struct Marks(Mutex<VecDeque<(Position, Design)>>);

impl Marks {
    /// Records a mark; returns false if the site has too many outstanding parts.
    pub fn put(&self, known: Position, design: &Design) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = marks.len() < MARKS_MAX;
        if has_room {
            marks.push_back((known, design.clone()));
        }
        has_room
    }

    /// Returns the design at the mark whose part has arrived, or `None` if there is no such mark. Earlier marks are
    /// dropped, because parts arrive in order.
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

//! The positions of the log as of which the router has requested parts of checkpoints from a site's process
//! (*marks*), and the designs at these positions.
//!
//! A site that receives only a part of the log does not know the current versions of all partitions, but a checkpoint
//! contains them. So the design of a part is the router's.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::design::Design;
use crate::record::Position;

/// Maximum number of parts of checkpoints that one site was requested to deliver and has not delivered. Beyond it no
/// part is requested; a later mark requests the next.
const MARKS_MAX: usize = 8;

/// The positions and designs of one connection's outstanding marks, in the order of their positions.
#[derive(Default)]
pub(in crate::engine) struct Marks(Mutex<VecDeque<(Position, Design)>>);

impl Marks {
    /// Records that a part of a checkpoint is requested as of position `known`, with the design there. Returns false,
    /// and records nothing, if the site has too many outstanding parts.
    pub fn put(&self, known: Position, design: &Design) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = marks.len() < MARKS_MAX;
        if has_room {
            marks.push_back((known, design.clone()));
        }
        has_room
    }

    /// Returns the design at position `known`, as of which a part of a checkpoint has arrived, or `None` if no part
    /// was requested there. Earlier marks are dropped, because parts arrive in order.
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

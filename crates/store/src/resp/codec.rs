//! Procedures on their way to another process: a byte that says which, and what it is made of.

use serde::Serialize;

/// The kind of a procedure.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Single = 1,
    Batch = 2,
    Watch = 3,
    Step = 4,
}

pub(super) fn encode(kind: Kind, procedure: &impl Serialize) -> Option<Vec<u8>> {
    postcard::to_extend(procedure, vec![kind as u8]).ok()
}

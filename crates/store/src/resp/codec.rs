//! Encodes procedures for another process: a byte for the kind, and the serialized procedure.

use serde::Serialize;

/// The kind of an encoded procedure, whose number is the first byte of the encoded form.
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

//! Properties of a batch that are needed before it is written, found in one pass over its bytes.

use bson::raw::RawBsonRef;
use bson::{RawArray, RawDocument};

use crate::bson::order::{Id, id_element};
use crate::error::{Error, Result};
use crate::replicate::apply::inserts;

/// Properties of a batch of documents, from one pass over its bytes.
pub(super) struct Shape {
    /// Number of documents in the batch.
    pub(super) documents: u64,
    /// True if each document of the batch can be inserted unchanged by a plain insert.
    pub(super) is_plain: bool,
    /// The `_id` of the batch's first document; `None` for an empty batch.
    pub(super) first: Option<Id>,
    /// The `_id` of the batch's last document; `None` for an empty batch.
    pub(super) last: Option<Id>,
    /// `_id`s that two consecutive documents of the batch have.
    pub(super) twice: Vec<Id>,
}

impl Shape {
    pub(super) fn of(batch: &RawArray) -> Result<Self> {
        let mut shape =
            Self { documents: 0, is_plain: true, first: None, last: None, twice: Vec::new() };
        let mut last: Option<&RawDocument> = None;
        for document in batch {
            let malformed = |e: String| Error::malformed("find", e);
            let document = document.map_err(|e| malformed(e.to_string()))?;
            let RawBsonRef::Document(raw) = document else {
                return Err(malformed("not a document".into()));
            };
            shape.is_plain &= inserts(raw);
            if shape.documents == 0 {
                shape.first = raw.get("_id").ok().flatten().map(Id::from_raw);
            }
            shape.documents += 1;
            if last.is_some_and(|last| has_same_id(last, raw)) {
                shape.twice.extend(raw.get("_id").ok().flatten().map(Id::from_raw));
            }
            last = Some(raw);
        }
        shape.last = last.and_then(|raw| raw.get("_id").ok().flatten()).map(Id::from_raw);
        Ok(shape)
    }
}

fn has_same_id(left: &RawDocument, right: &RawDocument) -> bool {
    let ids = id_element(left.as_bytes()).zip(id_element(right.as_bytes()));
    ids.is_some_and(|(left, right)| left.cmp_value(&right).is_eq())
}

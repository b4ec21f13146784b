//! Properties of a batch that are needed before it is written, found in one pass over its bytes.

use bson::RawArray;
use bson::raw::RawBsonRef;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::inserts;

/// Properties of a batch, from one pass over it.
pub(super) struct Shape {
    pub(super) documents: u64,
    /// True if each of them can be inserted as it is.
    pub(super) is_plain: bool,
    pub(super) first: Option<Id>,
    pub(super) last: Option<Id>,
}

impl Shape {
    pub(super) fn of(batch: &RawArray) -> Result<Self> {
        let mut shape = Self { documents: 0, is_plain: true, first: None, last: None };
        let mut last = None;
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
            last = Some(raw);
        }
        shape.last = last.and_then(|raw| raw.get("_id").ok().flatten()).map(Id::from_raw);
        Ok(shape)
    }
}

//! The form of the records that a load writes, the same for all databases.

use imago_workload::history::{Header, IdForm};
use imago_workload::review::Reviews;

/// The form of the documents, rows or records that a load writes: how a key becomes an id, and the content of the other
/// fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schema {
    /// Form of the id (`_id`, the primary key, the last part of a Redis key): how it is made from a key's number.
    pub id_form: IdForm,
    /// Generator of the content: the reviews, and their size.
    pub reviews: Reviews,
}

impl Schema {
    /// Returns the schema of the records that the load of a recorded history wrote; `header` is the history's header.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        Self { id_form: header.id_form, reviews: header.reviews }
    }
}

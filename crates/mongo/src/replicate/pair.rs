//! A collection at the source and its copy at the destination.

use bson::Document;

use crate::server::collection::Handle;

/// A collection at the source and its copy at the destination.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The collection at the source, which is read.
    pub source: Handle,
    /// The collection at the destination, which is written.
    pub destination: Handle,
    /// Condition that a document must match to be copied; `None` for all documents. A document that does not match it
    /// counts as absent at the source.
    pub filter: Option<Document>,
    /// True if `_id`s of different bytes may be equal by the collection's collation.
    pub is_collated: bool,
    /// The fields of the shard key at the destination, if an `_id` alone does not determine the document's shard;
    /// else empty.
    pub shard_key: Vec<String>,
    /// True if the destination holds documents that are not the source's (`--into-existing`).
    pub has_foreign: bool,
}

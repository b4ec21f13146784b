//! The cached default read and write concern.

use std::sync::Mutex;

use bson::Document;
use tokio::time::Instant;

/// The default concerns and the time at which they were read; `None` before the first read.
#[derive(Debug, Default)]
pub(super) struct Defaults(pub(super) Mutex<Option<(Instant, Concerns)>>);

/// Concerns that the cluster applies to commands which state none.
#[derive(Debug, Clone, Default)]
pub(super) struct Concerns {
    pub(super) read: Option<Document>,
    pub(super) write: Option<Document>,
}

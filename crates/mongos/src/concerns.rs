//! The cached default read and write concern.

use std::sync::Mutex;

use bson::Document;
use tokio::time::Instant;

/// Cached default concerns, and the time at which they were read from the config server; `None` before the first read
/// and after a change by a client of this router.
#[derive(Debug, Default)]
pub(super) struct Defaults(pub(super) Mutex<Option<(Instant, Concerns)>>);

/// Default read and write concern, which the router adds to commands that state none.
#[derive(Debug, Clone, Default)]
pub(super) struct Concerns {
    pub(super) read: Option<Document>,
    pub(super) write: Option<Document>,
}

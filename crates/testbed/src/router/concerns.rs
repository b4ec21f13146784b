//! The default read and write concern, as they were last read.

use std::sync::Mutex;

use bson::Document;
use tokio::time::Instant;

/// The last reading.
#[derive(Debug, Default)]
pub(super) struct Defaults(pub(super) Mutex<Option<(Instant, Concerns)>>);

/// The concerns that the cluster gives to commands which state none.
#[derive(Debug, Clone, Default)]
pub(super) struct Concerns {
    pub(super) read: Option<Document>,
    pub(super) write: Option<Document>,
}

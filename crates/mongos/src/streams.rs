//! The table of open change streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::answer::{Failure, code};
use super::cursors::new_id;
use super::stream_merge::Stream;

const STREAMS_MAX: usize = 1_000;

/// Table of the open change streams by cursor id. While [`STREAMS_MAX`] streams are open, opening another fails.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<i64, Open>>);

/// Name of the user who opened a stream (`None` without login), and the stream.
type Open = (Option<String>, Arc<tokio::sync::Mutex<Stream>>);

impl Streams {
    pub(super) fn get(
        &self,
        id: i64,
        user: Option<&str>,
    ) -> Option<Arc<tokio::sync::Mutex<Stream>>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, stream) = open.get(&id)?;
        (owner.as_deref() == user).then(|| Arc::clone(stream))
    }

    pub(super) fn put(&self, user: Option<&str>, stream: Stream) -> Result<i64, Failure> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= STREAMS_MAX {
            let message = format!("{STREAMS_MAX} change streams are open on this router");
            return Err(Failure::new(code::ILLEGAL_OPERATION, message));
        }
        let id = new_id();
        let stream = Arc::new(tokio::sync::Mutex::new(stream));
        open.insert(id, (user.map(str::to_owned), stream));
        Ok(id)
    }

    pub(super) fn remove(&self, id: i64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

//! The location of each open cursor.
//!
//! A cursor exists only on the node that opened it, so a `getMore` must go there. The table is bounded: with
//! [`CURSORS_MAX`] cursors the least recently used one is removed, and its client gets the error that the cursor is
//! not found, as after a server's own time-out.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bson::RawDocumentBuf;

use super::answer::Failure;

const CURSORS_MAX: usize = 10_000;

/// Place where the remaining documents of a client's cursor are.
#[derive(Debug, Clone)]
pub(super) enum CursorLocation {
    /// A node has the cursor; for a routed cursor, that node merges it from several shards.
    Node {
        /// Address of the node that has the cursor.
        address: String,
        /// Name of the command that continues the cursor: `getMore` or `clusterGetMore`.
        command: &'static str,
    },
    /// The router itself has the remaining documents.
    Router,
}

#[derive(Debug)]
struct Cursor {
    location: CursorLocation,
    user: Option<String>,
    rest: VecDeque<RawDocumentBuf>,
    used: u64,
}

/// Table of the open cursors by cursor id.
#[derive(Debug, Default)]
pub(super) struct Cursors(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    open: HashMap<i64, Cursor>,
    clock: u64,
}

impl Cursors {
    /// Records the location of the cursor `id`, which `user` opened.
    pub(super) fn open(&self, id: i64, location: CursorLocation, user: Option<&str>) {
        self.insert(id, location, user, VecDeque::new());
    }

    /// Opens a cursor of `user` whose remaining documents `rest` are held by the router, and returns its id.
    pub(super) fn open_buffered(
        &self,
        user: Option<&str>,
        rest: VecDeque<RawDocumentBuf>,
    ) -> Result<i64, Failure> {
        let id = new_id();
        self.insert(id, CursorLocation::Router, user, rest);
        Ok(id)
    }

    fn insert(
        &self,
        id: i64,
        location: CursorLocation,
        user: Option<&str>,
        rest: VecDeque<RawDocumentBuf>,
    ) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.clock += 1;
        if table.open.len() >= CURSORS_MAX {
            let oldest = table.open.iter().min_by_key(|(_, cursor)| cursor.used).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                table.open.remove(&oldest);
            }
        }
        let used = table.clock;
        table.open.insert(id, Cursor { location, user: user.map(str::to_owned), rest, used });
    }

    /// Returns the location of the cursor `id` and records its use; `None` if `user` has no such cursor.
    pub(super) fn location(&self, id: i64, user: Option<&str>) -> Option<CursorLocation> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.clock += 1;
        let now = table.clock;
        let cursor = table.open.get_mut(&id).filter(|cursor| cursor.user.as_deref() == user)?;
        cursor.used = now;
        Some(cursor.location.clone())
    }

    /// Takes the next documents of the cursor `id`, which the router holds: at most `count` documents and, after the
    /// first, at most `bytes` bytes. Returns them, and true if none is left.
    pub(super) fn next(&self, id: i64, count: usize, bytes: usize) -> (Vec<RawDocumentBuf>, bool) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cursor) = table.open.get_mut(&id) else { return (Vec::new(), true) };
        let batch = take_batch(&mut cursor.rest, count, bytes);
        let done = cursor.rest.is_empty();
        (batch, done)
    }

    /// Removes the cursor `id` from the table.
    pub(super) fn close(&self, id: i64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&id);
    }
}

/// Returns a random cursor id, as servers do: it cannot be guessed, and does not collide with the id of a node's
/// cursor.
pub(super) fn new_id() -> i64 {
    let random = bson::Uuid::new().bytes();
    let id = random.iter().take(8).fold(0, |id: i64, byte| id << 8 | i64::from(*byte));
    (id & i64::MAX).max(1)
}

/// Removes the first documents from `rest` and returns them: at most `count` documents and, after the first, at most
/// `bytes` bytes in total.
pub(super) fn take_batch(
    rest: &mut VecDeque<RawDocumentBuf>,
    count: usize,
    bytes: usize,
) -> Vec<RawDocumentBuf> {
    let mut batch = Vec::new();
    let mut taken = 0;
    while batch.len() < count
        && let Some(document) = rest.front()
    {
        taken += document.as_bytes().len();
        if taken > bytes && !batch.is_empty() {
            break;
        }
        batch.extend(rest.pop_front());
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_cursor_is_only_for_the_user_who_opened_it() {
        let cursors = Cursors::default();
        cursors.open(1, CursorLocation::Router, Some("app"));
        assert!(cursors.location(1, Some("app")).is_some());
        assert!(cursors.location(1, Some("other")).is_none());
        assert!(cursors.location(1, None).is_none());
    }

    #[test]
    fn the_cursor_used_longest_ago_makes_room() {
        let cursors = Cursors::default();
        for id in 0..CURSORS_MAX {
            cursors.open(i64::try_from(id).unwrap(), CursorLocation::Router, None);
        }
        cursors.location(0, None);
        cursors.open(-1, CursorLocation::Router, None);
        assert!(cursors.location(0, None).is_some());
        assert!(cursors.location(1, None).is_none());
    }

    #[test]
    fn a_batch_ends_at_its_count_or_its_bytes_but_is_never_empty() {
        let mut rest: VecDeque<_> = (0..10).map(|n| rawdoc! { "n": n }).collect();
        let size = rest[0].as_bytes().len();
        assert_eq!(take_batch(&mut rest, 3, usize::MAX).len(), 3);
        assert_eq!(take_batch(&mut rest, 10, 2 * size).len(), 2);
        assert_eq!(take_batch(&mut rest, 10, 1).len(), 1);
    }
}

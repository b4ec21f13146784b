//! Inspection of one connection's messages for the recording of a job. Messages are never changed; one that cannot be
//! parsed is ignored here, and left to the server and the driver.

use std::io;
use std::sync::Arc;

use bson::RawArray;
use bson::raw::{RawBsonRef, RawDocument};

use super::filter;
use super::recorder::{Open, Recorder};
use crate::chain::PHASE_COMMENT;
use crate::trace::Key;
use crate::wire::{Command, Handler, Message, Upstream};

/// Databases that drivers and tools read for their own purposes; reads of them are not counted.
const INTERNAL: [&str; 3] = ["admin", "config", "local"];

/// Inspects the messages of one connection between the job and the database.
#[derive(Debug)]
pub(super) struct Tap {
    recorder: Arc<Recorder>,
    present: Present,
}

/// The kind of the connection's last request, which waits for its reply.
#[derive(Debug)]
enum Present {
    /// The request is not a read.
    Pass,
    /// The request is a read by `_id` of the recorded collection.
    ById(Open),
    /// A batch of a read by `_id` was seen, and the read's cursor, with this id, is still open. A reply that follows
    /// without a request has the cursor's next batch.
    Cursor(i64),
    /// The request is a read of the collection `namespace` that is not by `_id`. If `is_first`, it is the first batch
    /// of the read, and counts as one read even if it returns no document.
    Other { namespace: String, is_first: bool },
}

impl Tap {
    pub(super) fn new(recorder: Arc<Recorder>) -> Self {
        Self { recorder, present: Present::Pass }
    }

    /// Inspects a request, which is forwarded unchanged.
    pub(super) fn inspect_request(&mut self, request: &Message) {
        self.present = match request.command() {
            Ok(Some(command)) => self.sent(&command),
            Ok(None) | Err(_) => Present::Pass,
        };
    }

    /// Classifies a command that the job sent, and updates the cursors in the recorder that the command continues or
    /// closes.
    fn sent(&self, command: &Command<'_>) -> Present {
        let (name, database) = (command.name(), command.database());
        let collection = |field: &str| command.body.get_str(field).unwrap_or("");
        if INTERNAL.contains(&database) {
            return Present::Pass;
        }
        match name {
            "find" => self.find(command.body, format!("{database}.{}", collection("find"))),
            "getMore" => {
                let namespace = format!("{database}.{}", collection("collection"));
                let cursor = command.body.get_i64("getMore").unwrap_or(0);
                match self.recorder.resume(cursor) {
                    Some(open) => Present::ById(open),
                    None => Present::Other { namespace, is_first: false },
                }
            }
            "killCursors" => {
                for cursor in command.body.get_array("cursors").into_iter().flatten().flatten() {
                    if let RawBsonRef::Int64(cursor) = cursor {
                        self.recorder.close(cursor);
                    }
                }
                Present::Pass
            }
            // Without a collection, an aggregation reads the server's own state.
            "aggregate" | "count" | "distinct" if !collection(name).is_empty() => {
                let namespace = format!("{database}.{}", collection(name));
                Present::Other { namespace, is_first: true }
            }
            _ => Present::Pass,
        }
    }

    /// Classifies a `find` on the collection `namespace` (`database.collection`). A comment that begins with
    /// [`PHASE_COMMENT`] is the label of its phase.
    fn find(&self, find: &RawDocument, namespace: String) -> Present {
        let Some(keys) = filter::keys(find) else {
            return Present::Other { namespace, is_first: true };
        };
        let comment = find.get_str("comment").ok();
        let label = comment.filter(|comment| comment.starts_with(PHASE_COMMENT)).map(str::to_owned);
        let open = Open::new(keys, label);
        if self.recorder.begin(&namespace, &open) { Present::ById(open) } else { Present::Pass }
    }

    /// Records the database's reply to the last request.
    fn answered(&mut self, reply: &RawDocument) {
        let ok = match reply.get("ok") {
            Ok(Some(RawBsonRef::Double(ok))) => ok == 1.0,
            Ok(Some(RawBsonRef::Int32(ok))) => ok == 1,
            _ => false,
        };
        let (documents, cursor) = batch(reply);
        self.present = match std::mem::replace(&mut self.present, Present::Pass) {
            passed @ (Present::Pass | Present::Cursor(_)) => passed,
            Present::ById(open) if !ok => {
                self.recorder.fail(&open);
                Present::Pass
            }
            Present::ById(mut open) => {
                let documents = documents.into_iter().flatten().flatten();
                for document in documents.filter_map(RawBsonRef::as_document) {
                    if let Ok(Some(id)) = document.get("_id") {
                        let bytes = u32::try_from(document.as_bytes().len()).unwrap_or(u32::MAX);
                        open.found(&Key::from_raw(id), bytes);
                    }
                }
                self.recorder.reply(open, cursor);
                if cursor == 0 { Present::Pass } else { Present::Cursor(cursor) }
            }
            Present::Other { namespace, is_first } => {
                let documents = documents.map_or(0, |documents| documents.into_iter().count());
                let reads = (documents as u64).max(u64::from(is_first));
                if ok {
                    self.recorder.count_other(&namespace, reads);
                }
                Present::Other { namespace, is_first: false }
            }
        };
    }
}

/// Returns the documents in a reply, and the id of the reply's cursor: 0 if no batch follows.
fn batch(reply: &RawDocument) -> (Option<&RawArray>, i64) {
    let Ok(cursor) = reply.get_document("cursor") else { return (None, 0) };
    let documents = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch")).ok();
    (documents, cursor.get_i64("id").unwrap_or(0))
}

impl Handler for Tap {
    async fn request(
        &mut self,
        request: &Message,
        _upstream: &mut Upstream,
    ) -> io::Result<Option<Message>> {
        self.inspect_request(request);
        Ok(None)
    }

    async fn reply(&mut self, _: &Message, reply: &Message) -> io::Result<()> {
        if let Ok(Some(command)) = reply.command() {
            if let Present::Cursor(cursor) = self.present
                && let Some(open) = self.recorder.resume(cursor)
            {
                self.present = Present::ById(open);
            }
            self.answered(command.body);
        }
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The connection ended before the reply.
        if let Present::ById(open) = &self.present {
            self.recorder.fail(open);
        }
    }
}

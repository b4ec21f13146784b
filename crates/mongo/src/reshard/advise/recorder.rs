//! Recording of the operations of clients on one collection, from the commands and replies that pass a proxy.
//!
//! Invariants: recording never fails a client: an error of the file is kept until the end; an operation that the server
//! refused is not in the file.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bson::raw::{RawBsonRef, RawDocument};

use super::operation::{Operation, of_command};
use super::positions::Positions;
use super::recording::Writer;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::endpoint::Endpoint;
use imago_plan::shard_key::Kind;

/// Largest number of reads whose cursors are open; of further ones the documents of the first batch count.
const CURSORS_MAX: usize = 10_000;

/// Records operations into a file.
#[derive(Debug)]
pub struct Recorder {
    ns: Namespace,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writer: Writer,
    /// Reads whose cursor is open on the server, by its id.
    cursors: HashMap<i64, Operation>,
    /// Number of operations that the server refused.
    failed: u64,
    /// The first error of the file.
    error: Option<Error>,
}

/// A command that waits for its reply.
#[derive(Debug, Default)]
pub struct Pending(Waiting);

#[derive(Debug, Default)]
enum Waiting {
    /// The command is no operation on the collection.
    #[default]
    Nothing,
    Operations(Vec<Operation>),
    /// The command asks for the next batch of the read with this cursor.
    Batch(i64),
}

impl Recorder {
    /// Creates the file `path` for the operations on the collection `ns` of `cluster`. With `keeps_values` the file has the
    /// values of conditions, and otherwise their hashes.
    ///
    /// # Errors
    /// Usage if the file cannot be created; a server's error.
    pub async fn create(
        cluster: &Endpoint,
        ns: &Namespace,
        path: &Path,
        keeps_values: bool,
    ) -> Result<Self> {
        let positions =
            if keeps_values { None } else { Some(Positions::sample(cluster, ns).await?) };
        let writer = Writer::create(path, ns, positions)?;
        let state = State { writer, cursors: HashMap::new(), failed: 0, error: None };
        Ok(Self { ns: ns.clone(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a command of a client in the database `db`. `documents` are those outside of the command's body.
    #[must_use]
    pub fn command(&self, db: &str, command: &RawDocument, documents: &[&RawDocument]) -> Pending {
        if db != self.ns.db {
            return Pending::default();
        }
        if let Ok(cursor) = command.get_i64("getMore") {
            return Pending(Waiting::Batch(cursor));
        }
        if command.get_str("killCursors").is_ok() {
            for cursor in command.get_array("cursors").into_iter().flatten().flatten() {
                if let Some(operation) = cursor.as_i64().and_then(|id| self.take_cursor(id)) {
                    self.state().write(&operation);
                }
            }
            return Pending::default();
        }
        let operations = of_command(command, &self.ns.coll, documents);
        Pending(if operations.is_empty() {
            Waiting::Nothing
        } else {
            Waiting::Operations(operations)
        })
    }

    fn take_cursor(&self, cursor: i64) -> Option<Operation> {
        self.state().cursors.remove(&cursor)
    }

    /// Records the operations of a command to which the server does not reply.
    pub fn unacknowledged(&self, pending: Pending) {
        if let Waiting::Operations(operations) = pending.0 {
            let mut state = self.state();
            operations.iter().for_each(|operation| state.write(operation));
        }
    }

    /// Records the operations of a command with the server's reply to it.
    pub fn reply(&self, pending: Pending, reply: &RawDocument) {
        let is_ok = match reply.get("ok") {
            Ok(Some(RawBsonRef::Double(ok))) => ok == 1.0,
            Ok(Some(RawBsonRef::Int32(ok))) => ok == 1,
            _ => false,
        };
        let (returned, cursor) = batch(reply);
        let mut state = self.state();
        match pending.0 {
            Waiting::Nothing => {}
            Waiting::Operations(operations) if !is_ok => state.failed += operations.len() as u64,
            Waiting::Operations(mut operations) => {
                let refused = refused(reply);
                if !refused.is_empty() {
                    state.failed += refused.len() as u64;
                    let mut index = 0;
                    operations.retain(|_| {
                        index += 1;
                        !refused.contains(&(index - 1))
                    });
                }
                if operations.is_empty() {
                    return;
                }
                let written = number(reply, "n");
                let each = written.div_ceil(u32::try_from(operations.len()).unwrap_or(u32::MAX));
                for operation in &mut operations {
                    operation.documents = match operation.kind {
                        Kind::Read => returned,
                        Kind::FindAndModify => 1,
                        _ => each,
                    };
                }
                if cursor != 0 && operations.len() == 1 && state.cursors.len() < CURSORS_MAX {
                    state.cursors.extend(operations.pop().map(|operation| (cursor, operation)));
                }
                operations.iter().for_each(|operation| state.write(operation));
            }
            Waiting::Batch(id) => {
                let Some(mut operation) = state.cursors.remove(&id) else { return };
                operation.documents = operation.documents.saturating_add(returned);
                if is_ok && cursor != 0 {
                    state.cursors.insert(cursor, operation);
                } else {
                    state.write(&operation);
                }
            }
        }
    }

    /// Writes what was recorded to the operating system, where it survives the death of this process.
    pub fn flush(&self) {
        let mut state = self.state();
        let flushed = state.writer.flush();
        state.keep(flushed);
    }

    /// Ends the recording. Returns the number of recorded operations, and of those that the server refused.
    ///
    /// # Errors
    /// The file could not be written, now or before.
    pub fn finish(&self) -> Result<(u64, u64)> {
        let mut state = self.state();
        for (_, operation) in std::mem::take(&mut state.cursors) {
            state.write(&operation);
        }
        let flushed = state.writer.flush();
        state.keep(flushed);
        let (operations, failed) = (state.writer.operations, state.failed);
        state.error.take().map_or(Ok((operations, failed)), Err)
    }
}

impl State {
    fn write(&mut self, operation: &Operation) {
        if self.error.is_none() {
            let written = self.writer.write(operation);
            self.keep(written);
        }
    }

    fn keep(&mut self, done: Result<()>) {
        if let Err(error) = done {
            if self.error.is_none() {
                tracing::warn!(%error, "the recording has failed; clients go on");
            }
            self.error.get_or_insert(error);
        }
    }
}

/// Returns the number of documents in a reply, and the id of its cursor: 0 if no batch follows.
fn batch(reply: &RawDocument) -> (u32, i64) {
    let Ok(cursor) = reply.get_document("cursor") else { return (1, 0) };
    let documents = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
    let count = documents.map_or(0, |documents| documents.into_iter().count());
    (u32::try_from(count).unwrap_or(u32::MAX), cursor.get_i64("id").unwrap_or(0))
}

/// Returns the indexes of the statements that the server refused.
fn refused(reply: &RawDocument) -> HashSet<usize> {
    let errors = reply.get_array("writeErrors").into_iter().flatten().flatten();
    let errors = errors.filter_map(RawBsonRef::as_document);
    let index = |error: &RawDocument| usize::try_from(error.get_i32("index").ok()?).ok();
    errors.filter_map(index).collect()
}

fn number(reply: &RawDocument, field: &str) -> u32 {
    match reply.get(field) {
        Ok(Some(RawBsonRef::Int32(value))) => u32::try_from(value).unwrap_or(0),
        Ok(Some(RawBsonRef::Int64(value))) => u32::try_from(value).unwrap_or(u32::MAX),
        _ => 0,
    }
}

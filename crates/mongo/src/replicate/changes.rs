//! The change reader: reads a cluster's change stream and reduces it to dirty keys.
//!
//! The idea (Mailbox 2013, "Replicating updates after the snapshot"): a change only says *which* document changed. Its
//! state is read from the source when the change is applied, so events carry neither the full document nor the update.
//! The server sends a few dozen bytes for each, and an event of a 16 MB document cannot exceed the size of a message.
//!
//! Invariants: batches arrive in the stream's order. The token of a batch is after everything in it, so that a reader
//! that opens the stream at that token continues exactly there. A reader that loses its server reopens the stream by
//! itself at the last token, a bounded number of times in a row.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::StreamExt;
use imago_plan::copy::pending_changes::Change;
use imago_plan::pacing::backoff::Backoff;
use mongodb::raw_batch_cursor::RawBatchCursor;

use crate::bson::order::Id;
use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::server::endpoint::{Endpoint, answer, prefer_secondary};

mod parse;

use parse::parse;
pub use parse::token_time;

/// The position of the change stream at which a reader starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// The reader starts with the first change at or after this cluster time of the source.
    At(Timestamp),
    /// The reader starts with the change after this resume token.
    After(RawDocumentBuf),
}

/// One event at the source that concerns a collection of the reader.
#[derive(Clone, Debug)]
pub enum Event {
    /// A document was written or deleted.
    DirtyKey {
        /// The index of the document's collection among the reader's namespaces.
        ns: usize,
        /// The `_id` of the document.
        id: Id,
        /// The kind of change, as far as the applier may rely on it.
        change: Change,
        /// The source's cluster time of the change.
        time: Timestamp,
        /// The write in detail; `None` unless the reader is [`ChangeReader::detailed`].
        detail: Option<Box<Detail>>,
    },
    /// Indexes or options of a collection changed.
    Structure {
        /// The index of the changed collection among the reader's namespaces.
        ns: usize,
        /// The server's name of the operation: `createIndexes`, `dropIndexes`, `modify`, …
        what: String,
    },
    /// The name of a collection no longer belongs to that collection, which was dropped, renamed or replaced.
    Disruption {
        /// The index of the ended collection among the reader's namespaces.
        ns: usize,
        /// The event that ended the collection, as a past participle ("dropped").
        what: String,
        /// The source's cluster time of the event.
        time: Timestamp,
    },
}

/// A write as the stream describes it, for readers that cannot read its document again.
#[derive(Clone, Debug)]
pub struct Detail {
    /// The kind of write.
    pub write: Write,
    /// The UUID, as text, of the collection that was written to: its name may belong to another one since. `None` if
    /// the server does not report it.
    pub of: Option<String>,
    /// The whole document after an insert or a replacement; `None` for other writes.
    pub document: Option<RawDocumentBuf>,
}

/// The kind of a write to a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The document equals [`Detail::document`]: an insert or a replacement.
    Put,
    /// Only some fields of the document were changed.
    Update,
    /// The document was deleted.
    Delete,
}

/// The content of one reply of the change stream.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The events, in the stream's order; empty if nothing happened.
    pub events: Vec<Event>,
    /// The resume token after which a reader gets the changes that follow this batch.
    pub token: RawDocumentBuf,
    /// The source's cluster time up to which every change is in this batch or an earlier one.
    pub time: Timestamp,
    /// The source's wall clock at the first event, in ms since 1970; `None` if there is no event, or the server does
    /// not report it.
    pub first_wall_ms: Option<i64>,
}

/// Reads the changes of some collections of one cluster.
pub struct ChangeReader {
    wanted: Wanted,
    cursor: Option<RawBatchCursor>,
}

/// The change stream to read, and the position from which to read it.
struct Wanted {
    source: Endpoint,
    namespaces: Vec<Namespace>,
    /// The database whose stream is read if there are no namespaces, because that stream's time advances too.
    db: String,
    at: Start,
    /// Longest wait of the server for a change before it sends an empty reply.
    await_max: Duration,
    is_detailed: bool,
    /// True if the stream must continue when one of the collections is dropped or renamed.
    is_open: bool,
    /// For each namespace, the fields given to [`ChangeReader::placing_by`].
    placing: Vec<Vec<String>>,
    /// Most changes in one reply of the stream.
    events_max: usize,
}

/// Most changes in one reply of the stream, unless [`ChangeReader::limit`] sets another limit. Without a limit a
/// reply holds 16 MB of them, tens of thousands: nothing is applied while the source collects those, and then the
/// checkpoint waits for all of them.
pub const EVENTS_MAX: usize = 5_000;
/// Most attempts in a row to reopen the stream, without a batch in between.
const REOPEN_ATTEMPTS_MAX: u32 = 60;
/// Default of the longest time that the server waits for a change before it sends an empty batch.
pub const AWAIT_MAX: Duration = Duration::from_millis(500);

impl ChangeReader {
    /// Creates a reader of the changes of `namespaces` in `source` that starts at `start`. If there is no change, an
    /// empty batch follows after `await_max`. The first read opens the stream.
    #[must_use]
    pub fn new(
        source: Endpoint,
        namespaces: Vec<Namespace>,
        start: Start,
        await_max: Duration,
    ) -> Self {
        let placing = vec![Vec::new(); namespaces.len()];
        let wanted = Wanted {
            source,
            db: namespaces.first().map_or_else(|| "admin".to_owned(), |ns| ns.db.clone()),
            namespaces,
            at: start,
            await_max,
            is_detailed: false,
            is_open: false,
            placing,
            events_max: EVENTS_MAX,
        };
        Self { wanted, cursor: None }
    }

    /// Sets, for each namespace, the fields (also dotted ones) that determine on which shard of the destination a
    /// document is. The reader distinguishes updates of these fields from other updates.
    #[must_use]
    pub fn placing_by(mut self, fields: Vec<Vec<String>>) -> Self {
        assert_eq!(fields.len(), self.wanted.namespaces.len(), "fields for each namespace");
        self.wanted.placing = fields;
        self
    }

    /// Makes the reader return the [`Detail`] of each write.
    #[must_use]
    pub fn detailed(mut self) -> Self {
        self.wanted.is_detailed = true;
        self
    }

    /// Sets whether the stream continues when one of the collections is dropped or renamed (`is_open`), which needs
    /// the stream of the database.
    #[must_use]
    pub fn open_ended(mut self, is_open: bool) -> Self {
        self.wanted.is_open = is_open;
        self
    }

    /// Sets the database whose stream is read if the reader has no namespaces.
    #[must_use]
    pub fn within(mut self, db: &str) -> Self {
        if self.wanted.namespaces.is_empty() {
            db.clone_into(&mut self.wanted.db);
        }
        self
    }

    /// Limits the number of changes in a reply of the stream to `events_max`, from the next reply on. The stream is
    /// reopened if the limit changes.
    pub fn limit(&mut self, events_max: usize) {
        if self.wanted.events_max != events_max {
            (self.wanted.events_max, self.cursor) = (events_max, None);
        }
    }

    /// Opens the stream now, so that an unusable start position is detected before anything depends on it.
    ///
    /// # Errors
    /// Fails as [`ChangeReader::next`] does.
    #[crate::boxed]
    pub async fn open(&mut self) -> Result<()> {
        let mut attempt = 0;
        while self.cursor.is_none() {
            match self.wanted.stream().await {
                Ok(cursor) => self.cursor = Some(cursor),
                Err(error) => {
                    attempt += 1;
                    self.wanted.pause(error, attempt).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the next batch of the stream and returns it. If nothing happens, the batch is empty and its token
    /// and time show the stream's position.
    ///
    /// # Errors
    /// Returns [`Error::OplogRolledOver`] if the position is before the oldest entry of the oplog; otherwise the
    /// server's error, if reopening the stream does not resolve it.
    #[crate::boxed]
    pub async fn next(&mut self) -> Result<Batch> {
        let mut attempt = 0;
        loop {
            let error = match self.try_next().await {
                Ok(batch) => return Ok(batch),
                Err(error) => error,
            };
            self.cursor = None;
            attempt += 1;
            self.wanted.pause(error, attempt).await?;
        }
    }

    async fn try_next(&mut self) -> Result<Batch> {
        let cursor = match self.cursor.take() {
            Some(cursor) => cursor,
            None => self.wanted.stream().await?,
        };
        let cursor = self.cursor.insert(cursor);
        let reply = match answer("reading the change stream", cursor.next()).await? {
            Some(reply) => reply.map_err(|e| Error::server("reading the change stream", e))?,
            None => {
                self.cursor = None;
                return Err(Error::malformed("reading the change stream", "the stream ended"));
            }
        };
        let batch = parse(&reply, &self.wanted)?;
        self.wanted.at = Start::After(batch.token.clone());
        Ok(batch)
    }
}

impl Wanted {
    async fn stream(&self) -> Result<RawBatchCursor> {
        let (db, scope) = self.scope();
        let mut stage = doc! {"showExpandedEvents": true};
        if self.source.version() < [6, 0, 0] {
            stage.remove("showExpandedEvents");
        }
        if scope == Scope::Cluster {
            stage.insert("allChangesForCluster", true);
        }
        match &self.at {
            Start::At(time) => stage.insert("startAtOperationTime", *time),
            Start::After(token) => {
                let token = Document::try_from(token.as_ref())
                    .map_err(|e| Error::malformed("a resume token", e))?;
                // Unlike resumeAfter, startAfter also continues after the end of a database.
                stage.insert("startAfter", token)
            }
        };
        let mut fields = doc! {
            "operationType": 1, "clusterTime": 1, "wallTime": 1, "ns": 1, "to": 1,
            "documentKey": 1,
        };
        if self.is_detailed {
            fields.extend(doc! {"collectionUUID": 1, "fullDocument": 1});
        }
        if self.placing.iter().any(|fields| !fields.is_empty()) {
            fields.insert("changed", changed_fields());
        }
        let pipeline = vec![
            doc! {"$changeStream": stage},
            doc! {"$match": {"$or": self.matching()}},
            doc! {"$project": fields},
        ];
        let of = match scope {
            Scope::Collection => Bson::from(self.namespaces[0].coll.as_str()),
            Scope::Database | Scope::Cluster => Bson::from(1),
        };
        let command = doc! {
            "aggregate": of,
            "pipeline": pipeline,
            "cursor": {},
            "readConcern": {"level": "majority"},
        };
        let db = self.source.client().database(&db);
        db.run_cursor_command(command)
            .selection_criteria(prefer_secondary())
            .max_time(self.await_max)
            .batch_size(u32::try_from(self.events_max).unwrap_or(u32::MAX))
            .batch()
            .await
            .map_err(|error| Error::server("opening the change stream", error))
    }

    /// Returns the narrowest stream that suffices, which needs the fewest privileges and filters the fewest entries:
    /// that of one collection, of one database if all namespaces are in it, or else of the whole cluster.
    ///
    /// The stream of a collection ends when the collection is dropped or renamed. A reader that must continue after
    /// that needs the database's stream.
    fn scope(&self) -> (String, Scope) {
        let db = &self.db;
        if self.namespaces.len() == 1 && !self.is_detailed && !self.is_open {
            (db.clone(), Scope::Collection)
        } else if self.namespaces.iter().all(|ns| ns.db == *db) {
            (db.clone(), Scope::Database)
        } else {
            ("admin".into(), Scope::Cluster)
        }
    }

    /// Returns the conditions by which the server filters. A collection's own stream needs none of them, but is
    /// filtered faster with them: the server evaluates them before its own conditions, which test a dozen fields of
    /// every document that is written, and the name as a whole excludes most documents at once. (For 250,000 entries
    /// of other collections: 0.74 s without it, 0.60 s with it; by `ns.coll` alone, 0.91 s.)
    fn matching(&self) -> Vec<Document> {
        let name = |ns: &Namespace| doc! {"db": ns.db.as_str(), "coll": ns.coll.as_str()};
        let names: Vec<Document> = self.namespaces.iter().map(name).collect();
        vec![
            doc! {"operationType": {"$in": ["dropDatabase", "invalidate"]}},
            doc! {"ns": {"$in": &names}},
            doc! {"to": {"$in": names}},
        ]
    }

    /// Pauses before attempt number `attempt` to reopen the stream after `error`, or returns the error if reopening
    /// would not help.
    async fn pause(&self, error: Error, attempt: u32) -> Result<()> {
        let resumable = error.is_transient() || is_lost_cursor(&error);
        if !resumable || attempt > REOPEN_ATTEMPTS_MAX {
            return Err(self.explained(error));
        }
        tracing::debug!(%error, attempt, "the change stream is reopened");
        let backoff = Backoff { first_ms: 50, max_ms: 2_000 };
        let pause_ms = backoff.pause_ms(attempt, rand::random());
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        Ok(())
    }

    fn explained(&self, error: Error) -> Error {
        let Error::Server { cause, .. } = &error else { return error };
        // ChangeStreamHistoryLost, CappedPositionLost; ChangeStreamFatalError, InvalidResumeToken
        let is_rolled_over = match code(cause) {
            Some(286 | 136) => true,
            Some(280 | 260) => false,
            _ => return error,
        };
        let needed = match &self.at {
            Start::At(time) => format!("{}.{}", time.time, time.increment),
            Start::After(token) => token_time(token).map_or_else(
                || "the job's checkpoint".into(),
                |t| format!("{}.{}", t.time, t.increment),
            ),
        };
        let cause = cause.to_string();
        if is_rolled_over {
            Error::OplogRolledOver { needed, cause }
        } else {
            Error::PositionRefused { needed, cause }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Collection,
    Database,
    Cluster,
}

/// Returns true for the error of a stream that ended without a server's error: it was invalidated or killed. The
/// reader reopens it, and if that is impossible, the server then returns the reason.
fn is_lost_cursor(error: &Error) -> bool {
    matches!(error, Error::Malformed { cause, .. } if cause == "the stream ended")
}

/// Returns the aggregation expression for the paths of the fields that an update changed, without their values; it is
/// empty for other events.
fn changed_fields() -> Document {
    let or_none = |value: Bson| doc! {"$ifNull": [value, []]};
    let each = |of: Bson, part: &str| doc! {"$map": {"input": of, "in": format!("$$this.{part}")}};
    let updated = doc! {"$objectToArray": "$updateDescription.updatedFields"};
    let truncated = "$updateDescription.truncatedArrays";
    doc! {"$concatArrays": [
        or_none(each(updated.into(), "k").into()),
        or_none("$updateDescription.removedFields".into()),
        or_none(each(truncated.into(), "field").into()),
    ]}
}

//! The change reader: a cluster's change stream, reduced to the needs of the dirty key protocol.
//!
//! The idea (Mailbox 2013, "Replicating updates after the snapshot"): a change only says *which*
//! document changed. Its state is read from the source when it is applied, so the events carry
//! neither the full document nor the update: the server sends a few dozen bytes for each, and an
//! event of a 16 MB document cannot outgrow a message.
//!
//! Invariants: batches come in the stream's order; each batch's token lies behind everything in
//! it, so that a reader reopened at that token yields exactly what comes next; a reader that loses
//! its server reopens by itself at the last token, a bounded number of times in a row.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::StreamExt;
use imago_plan::backoff::Backoff;
use imago_plan::pending_changes::Change;
use mongodb::raw_batch_cursor::RawBatchCursor;

use crate::bson::order::Id;
use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::server::endpoint::{Endpoint, answer, prefer_secondary};

mod parse;

pub(crate) use parse::DROPPED_WITH_ITS_DATABASE;
use parse::parse;
pub use parse::token_time;

/// The position at which a reader starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// With the first change after this time.
    At(Timestamp),
    /// With the change after this token.
    After(RawDocumentBuf),
}

/// One thing that happened at the source.
#[derive(Clone, Debug)]
pub enum Event {
    /// A document was written or deleted.
    DirtyKey {
        /// Which of the reader's namespaces.
        ns: usize,
        /// Which document.
        id: Id,
        /// Its change.
        change: Change,
        /// The source's time of the change.
        time: Timestamp,
        /// The details that [`ChangeReader::detailed`] needs.
        detail: Option<Box<Detail>>,
    },
    /// Indexes or options of a collection changed.
    Structure {
        /// Which of the reader's namespaces.
        ns: usize,
        /// `createIndexes`, `dropIndexes`, `modify`, …
        what: String,
    },
    /// The collection ended under its name: dropped, renamed, replaced.
    Disruption {
        /// Which of the reader's namespaces.
        ns: usize,
        /// The event, as a past participle.
        what: String,
        /// The source's time of the event.
        time: Timestamp,
    },
}

/// A write as the stream describes it, for readers that cannot read its document again.
#[derive(Clone, Debug)]
pub struct Detail {
    /// The kind of write.
    pub write: Write,
    /// The UUID of the collection that was written to, as text: a name may have changed hands.
    pub of: Option<String>,
    /// The whole document, of an insert or a replacement.
    pub document: Option<RawDocumentBuf>,
}

/// Kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The document is what [`Detail::document`] says.
    Put,
    /// Only some of its fields were changed.
    Update,
    /// It is gone.
    Delete,
}

/// The content of one reply of the server.
#[derive(Clone, Debug)]
pub struct Batch {
    /// In the stream's order; empty when nothing happened.
    pub events: Vec<Event>,
    /// A reader opened here yields the changes that follow this batch.
    pub token: RawDocumentBuf,
    /// Every change up to here is in this batch or an earlier one.
    pub time: Timestamp,
    /// The source's wall clock at the first event, in ms since the epoch, if the server says it.
    pub first_wall_ms: Option<i64>,
}

/// Reads the changes of some collections of one cluster.
pub struct ChangeReader {
    wanted: Wanted,
    cursor: Option<RawBatchCursor>,
}

/// The stream to read, and its beginning.
struct Wanted {
    source: Endpoint,
    namespaces: Vec<Namespace>,
    /// The database whose stream is read where there are no namespaces: its time goes on.
    db: String,
    at: Start,
    await_max: Duration,
    is_detailed: bool,
    /// True if the stream must outlive the end of any one collection.
    is_open: bool,
    /// For each namespace, the fields of [`ChangeReader::placing_by`].
    placing: Vec<Vec<String>>,
    /// Changes in one answer, at most.
    events_max: usize,
}

/// Changes in one answer. Without a limit an answer holds 16 MB of them, tens of thousands: while
/// the source gathers those, nothing is applied, and after them the checkpoint waits for all.
pub const EVENTS_MAX: usize = 5_000;
/// In a row, without a batch in between.
const REOPEN_ATTEMPTS_MAX: u32 = 60;
/// Default of the longest wait of a stream for a change.
pub const AWAIT_MAX: Duration = Duration::from_millis(500);

impl ChangeReader {
    /// A reader of `namespaces` that starts at `start`; an answer without a change comes after
    /// `await_max`. The stream is opened by the first read.
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

    /// The same, telling apart updates of these fields, dotted ones too, from others: for each
    /// namespace those by which its documents are placed where they go.
    #[must_use]
    pub fn placing_by(mut self, fields: Vec<Vec<String>>) -> Self {
        assert_eq!(fields.len(), self.wanted.namespaces.len(), "fields for each namespace");
        self.wanted.placing = fields;
        self
    }

    /// The same with the [`Detail`] of each write.
    #[must_use]
    pub fn detailed(mut self) -> Self {
        self.wanted.is_detailed = true;
        self
    }

    /// The same, by a stream that goes on when one of the collections is dropped or renamed.
    #[must_use]
    pub fn open_ended(mut self, is_open: bool) -> Self {
        self.wanted.is_open = is_open;
        self
    }

    /// The same in this database, where the reader has no namespaces.
    #[must_use]
    pub fn within(mut self, db: &str) -> Self {
        if self.wanted.namespaces.is_empty() {
            db.clone_into(&mut self.wanted.db);
        }
        self
    }

    /// From the next answer on none holds more changes than this. The stream is opened anew where
    /// that is another number than before.
    pub fn limit(&mut self, events_max: usize) {
        if self.wanted.events_max != events_max {
            (self.wanted.events_max, self.cursor) = (events_max, None);
        }
    }

    /// Opens the stream now, so that an unusable start shows before anything depends on it.
    ///
    /// # Errors
    /// As [`ChangeReader::next`].
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

    /// The next batch: when nothing happens an empty one, which tells how far the stream has come.
    ///
    /// # Errors
    /// [`Error::OplogRolledOver`] when the start lies before the oldest entry; otherwise the
    /// server's error, when reopening does not mend it.
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
                stage.insert("resumeAfter", token)
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

    /// One collection's stream when there is only one, one database's when all namespaces are in one,
    /// else the whole cluster's: fewer privileges are needed, and less is looked at.
    ///
    /// A collection's stream ends where it is dropped or renamed; a reader that goes on behind that
    /// needs the database's.
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

    /// The conditions that the server filters by. A collection's own stream needs none of them, but
    /// is filtered faster with them: the server moves them ahead of its own conditions, which test
    /// a dozen fields of every document that is written, and a name as a whole excludes most of
    /// them at once. (Of 250,000 entries of other collections 0.74 s without, 0.60 s with it; by
    /// `ns.coll` alone, 0.91 s.)
    fn matching(&self) -> Vec<Document> {
        let name = |ns: &Namespace| doc! {"db": ns.db.as_str(), "coll": ns.coll.as_str()};
        let names: Vec<Document> = self.namespaces.iter().map(name).collect();
        vec![
            doc! {"operationType": {"$in": ["dropDatabase", "invalidate"]}},
            doc! {"ns": {"$in": &names}},
            doc! {"to": {"$in": names}},
        ]
    }

    /// Pauses before the stream is opened again, or returns the reason that this would not help.
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

/// A stream that ends without an error was invalidated or killed: it is reopened, and if it cannot
/// be, the server names the reason then.
fn is_lost_cursor(error: &Error) -> bool {
    matches!(error, Error::Malformed { cause, .. } if cause == "the stream ended")
}

/// The paths of the fields that an update changed, without their values; nothing for other events.
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

//! The change reader: a cluster's change stream, reduced to what the touch protocol needs.
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

use bson::raw::RawBsonRef;
use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use futures_util::StreamExt;
use imago_plan::backoff::Backoff;
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};

use crate::endpoint::{Endpoint, answer, prefer_secondary};
use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::order::Id;

/// Where a reader starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// With the first change after this time.
    At(Timestamp),
    /// With what follows this token.
    After(RawDocumentBuf),
}

/// One thing that happened at the source.
#[derive(Clone, Debug)]
pub enum Event {
    /// A document was written or deleted.
    Touch {
        /// Which of the reader's namespaces.
        ns: usize,
        /// Which document.
        id: Id,
        /// Whether it was an insert.
        fresh: bool,
        /// When.
        time: Timestamp,
        /// What else [`ChangeReader::detailed`] wants to know.
        detail: Option<Box<Detail>>,
    },
    /// Indexes or options of a collection changed.
    Structure {
        /// Which of the reader's namespaces.
        ns: usize,
        /// `createIndexes`, `dropIndexes`, `modify`, …
        what: String,
    },
    /// The collection is no longer what it was: dropped, renamed, replaced.
    Disruption {
        /// Which of the reader's namespaces.
        ns: usize,
        /// What happened, as a past participle.
        what: String,
    },
}

/// A write as the stream describes it, for whoever cannot read its document again.
#[derive(Clone, Debug)]
pub struct Detail {
    /// What kind of write.
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

/// What one answer of the server carried.
#[derive(Clone, Debug)]
pub struct Batch {
    /// In the stream's order; empty when nothing happened.
    pub events: Vec<Event>,
    /// A reader opened here yields what follows this batch.
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

/// What is read, and from where.
struct Wanted {
    source: Endpoint,
    namespaces: Vec<Namespace>,
    at: Start,
    await_max: Duration,
    is_detailed: bool,
}

/// Changes in one answer. Without a limit an answer holds 16 MB of them, tens of thousands: while
/// the source gathers those, nothing is applied, and after them the checkpoint waits for all.
const BATCH_EVENTS: u32 = 5_000;
/// In a row, without a batch in between.
const REOPEN_ATTEMPTS_MAX: u32 = 60;
/// How long a stream waits for a change unless told otherwise.
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
        let wanted = Wanted { source, namespaces, at: start, await_max, is_detailed: false };
        Self { wanted, cursor: None }
    }

    /// The same with the [`Detail`] of each write.
    #[must_use]
    pub fn detailed(mut self) -> Self {
        self.wanted.is_detailed = true;
        self
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
        let batch = parse(&reply, &self.wanted.namespaces, self.wanted.is_detailed)?;
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
        let command = doc! {
            "aggregate": 1,
            "pipeline": [
                {"$changeStream": stage},
                {"$match": {"$or": self.matching(scope)}},
                {"$project": fields},
            ],
            "cursor": {},
            "readConcern": {"level": "majority"},
        };
        let db = self.source.client().database(&db);
        db.run_cursor_command(command)
            .selection_criteria(prefer_secondary())
            .max_time(self.await_max)
            .batch_size(BATCH_EVENTS)
            .batch()
            .await
            .map_err(|error| Error::server("opening the change stream", error))
    }

    /// One database's stream when all namespaces are in one, else the whole cluster's: fewer
    /// privileges are needed, and less is looked at, for the common case.
    fn scope(&self) -> (String, Scope) {
        let db = &self.namespaces[0].db;
        if self.namespaces.iter().all(|ns| ns.db == *db) {
            (db.clone(), Scope::Database)
        } else {
            ("admin".into(), Scope::Cluster)
        }
    }

    fn matching(&self, scope: Scope) -> Vec<Document> {
        let mut dbs: Vec<&str> = self.namespaces.iter().map(|ns| ns.db.as_str()).collect();
        dbs.sort_unstable();
        dbs.dedup();
        let mut terms = vec![doc! {"operationType": {"$in": ["dropDatabase", "invalidate"]}}];
        for db in dbs {
            let colls = || {
                let of_db = self.namespaces.iter().filter(|ns| ns.db == db);
                of_db.map(|ns| Bson::from(ns.coll.as_str())).collect::<Vec<_>>()
            };
            for field in ["ns", "to"] {
                let mut term = doc! {};
                if scope == Scope::Cluster {
                    term.insert(format!("{field}.db"), db);
                }
                term.insert(format!("{field}.coll"), doc! {"$in": colls()});
                terms.push(term);
            }
        }
        terms
    }

    /// Pauses before the stream is opened again, or says why that would not help.
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
        // ChangeStreamHistoryLost, ChangeStreamFatalError, CappedPositionLost
        if !matches!(code(cause), Some(286 | 280 | 136)) {
            return error;
        }
        let needed = match &self.at {
            Start::At(time) => format!("{}.{}", time.time, time.increment),
            Start::After(token) => token_time(token).map_or_else(
                || "the job's checkpoint".into(),
                |t| format!("{}.{}", t.time, t.increment),
            ),
        };
        Error::OplogRolledOver { needed, cause: cause.to_string() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Database,
    Cluster,
}

/// A stream that ends without an error was invalidated or killed: it is reopened, and if it cannot
/// be, the server then says why.
fn is_lost_cursor(error: &Error) -> bool {
    matches!(error, Error::Malformed { cause, .. } if cause == "the stream ended")
}

fn parse(reply: &RawBatch, namespaces: &[Namespace], is_detailed: bool) -> Result<Batch> {
    const DOING: &str = "reading the change stream";
    let malformed = |cause: String| Error::malformed(DOING, cause);
    let cursor =
        reply.as_raw_document().get_document("cursor").map_err(|e| malformed(e.to_string()))?;
    let mut batch = Batch {
        events: Vec::new(),
        token: RawDocumentBuf::new(),
        time: Timestamp { time: 0, increment: 0 },
        first_wall_ms: None,
    };
    let mut last_token = None;
    for event in reply.doc_slices().map_err(|e| Error::server(DOING, e))? {
        let event = event.map_err(|e| malformed(e.to_string()))?;
        let event =
            event.as_document().ok_or_else(|| malformed("an event is not a document".into()))?;
        let mut parsed = parse_event(event, namespaces).map_err(|e| malformed(e.to_string()))?;
        if is_detailed && let Some(Event::Touch { detail, .. }) = parsed.events.first_mut() {
            *detail = Some(Box::new(detail_of(event).map_err(|e| malformed(e.to_string()))?));
        }
        batch.time = batch.time.max(parsed.time);
        batch.first_wall_ms = batch.first_wall_ms.or(parsed.wall_ms);
        last_token = parsed.token.or(last_token);
        batch.events.extend(parsed.events);
    }
    let token = cursor.get_document("postBatchResumeToken").ok().or(last_token);
    let token = token.ok_or_else(|| malformed("no resume token".into()))?;
    batch.token = token.to_owned();
    if let Some(time) = token_time(token) {
        batch.time = batch.time.max(time);
    }
    Ok(batch)
}

struct Parsed<'a> {
    events: Vec<Event>,
    time: Timestamp,
    wall_ms: Option<i64>,
    token: Option<&'a RawDocument>,
}

fn parse_event<'a>(
    event: &'a RawDocument,
    namespaces: &[Namespace],
) -> bson::error::Result<Parsed<'a>> {
    let (mut kind, mut key, mut db, mut coll, mut to) = ("", None, "", "", None);
    let mut parsed = Parsed {
        events: Vec::new(),
        time: Timestamp { time: 0, increment: 0 },
        wall_ms: None,
        token: None,
    };
    for field in event {
        let (name, value) = field?;
        match (name.as_str(), value) {
            ("_id", RawBsonRef::Document(token)) => parsed.token = Some(token),
            ("operationType", RawBsonRef::String(text)) => kind = text,
            ("clusterTime", RawBsonRef::Timestamp(time)) => parsed.time = time,
            ("wallTime", RawBsonRef::DateTime(wall)) => {
                parsed.wall_ms = Some(wall.timestamp_millis());
            }
            ("documentKey", RawBsonRef::Document(document)) => key = document.get("_id")?,
            ("ns", RawBsonRef::Document(ns)) => {
                db = ns.get_str("db").unwrap_or_default();
                coll = ns.get_str("coll").unwrap_or_default();
            }
            ("to", RawBsonRef::Document(ns)) => {
                let name = |field| ns.get_str(field).unwrap_or_default();
                to = Some(Namespace::new(name("db"), name("coll")));
            }
            _ => {}
        }
    }
    let at = |db: &str, coll: &str| namespaces.iter().position(|ns| ns.coll == coll && ns.db == db);
    let time = parsed.time;
    match kind {
        "insert" | "update" | "replace" | "delete" => {
            if let (Some(ns), Some(id)) = (at(db, coll), key) {
                let id = Id::from_raw(id);
                let fresh = kind == "insert";
                parsed.events.push(Event::Touch { ns, id, fresh, time, detail: None });
            }
        }
        "drop" | "reshardCollection" => {
            parsed.events.extend(at(db, coll).map(|ns| {
                let what = if kind == "drop" { "dropped" } else { "resharded" };
                Event::Disruption { ns, what: what.into() }
            }));
        }
        "rename" => {
            let to = to.unwrap_or_else(|| Namespace::new("", ""));
            parsed.events.extend(
                at(db, coll).map(|ns| Event::Disruption { ns, what: format!("renamed to {to}") }),
            );
            parsed.events.extend(at(&to.db, &to.coll).map(|ns| Event::Disruption {
                ns,
                what: format!("replaced by a rename of {db}.{coll}"),
            }));
        }
        "dropDatabase" => {
            let of_db = namespaces.iter().enumerate().filter(|(_, ns)| ns.db == db);
            parsed.events.extend(
                of_db.map(|(ns, _)| Event::Disruption {
                    ns,
                    what: "dropped with its database".into(),
                }),
            );
        }
        other => {
            let what = other.to_owned();
            parsed.events.extend(at(db, coll).map(|ns| Event::Structure { ns, what }));
        }
    }
    Ok(parsed)
}

fn detail_of(event: &RawDocument) -> bson::error::Result<Detail> {
    let document = match event.get("fullDocument")? {
        Some(RawBsonRef::Document(document)) => Some(document.to_owned()),
        _ => None,
    };
    let write = match event.get("operationType")? {
        Some(RawBsonRef::String("delete")) => Write::Delete,
        _ if document.is_some() => Write::Put,
        _ => Write::Update,
    };
    let of = event.get("collectionUUID")?.map(Bson::try_from).transpose()?;
    Ok(Detail { write, of: of.as_ref().map(Bson::to_string), document })
}

/// The cluster time inside a resume token: its `_data` is a hexadecimal key string whose first
/// field is the time (`82`, then seconds and increment, big endian). Every server since 4.2 writes
/// it so; high-water-mark tokens, which carry no event, included.
#[must_use]
pub fn token_time(token: &RawDocument) -> Option<Timestamp> {
    let data = token.get_str("_data").ok()?;
    let hex = data.strip_prefix("82")?;
    let part = |range: std::ops::Range<usize>| u32::from_str_radix(hex.get(range)?, 16).ok();
    Some(Timestamp { time: part(0..8)?, increment: part(8..16)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_token_tells_its_cluster_time() {
        let token = rawdoc! {"_data": "8265A1B2C3000000042B0229296E04"};
        assert_eq!(token_time(&token), Some(Timestamp { time: 0x65A1_B2C3, increment: 4 }));
        assert_eq!(token_time(&rawdoc! {"_data": "00"}), None);
    }
}

//! find, aggregate, count, distinct, getMore, killCursors.
//!
//! The servers route reads themselves (`clusterFind`, `clusterAggregate`, `clusterGetMore`). There is no such
//! command for count and distinct, which are translated to pipelines.

use bson::{Bson, Document, doc};

use super::answer::{Answer, Failure, code, cursor_answer, integer};
use super::caller::{Caller, renamed};
use super::core::{Namespace, Repeat, database_of, is_config_database};
use super::cursors::CursorLocation;
use super::defaults::writes_out;

/// Optional fields of count and distinct that are copied to the aggregate command which replaces them.
const SHARED_FIELDS: [&str; 9] = [
    "collation",
    "hint",
    "comment",
    "maxTimeMS",
    "readConcern",
    "$readPreference",
    "lsid",
    "let",
    "apiVersion",
];
/// Limit of the size of one batch from a cursor that the router holds, and of the whole reply to count and distinct,
/// in bytes.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024 - 64 * 1024;

impl Caller {
    /// Runs the find or aggregate command `body` outside of a transaction, and returns its first batch.
    pub(super) async fn open_cursor(&self, body: Document) -> Result<Answer, Failure> {
        let command = body.keys().next().cloned().unwrap_or_default();
        let database = database_of(&body).to_owned();
        if database == "local" {
            return Err(Failure::new(
                code::ILLEGAL_OPERATION,
                format!("`{command}` on the database local: a router has none"),
            ));
        }
        if is_change_stream(&body) {
            return self.open_stream(&body).await;
        }
        // Without a collection the command reads the state of the cluster: operations, sessions.
        let of_cluster = body.values().next().is_some_and(|v| v.as_str().is_none());
        if is_config_database(&database) && !of_cluster {
            return self.open_on_config(body).await;
        }
        let (renamed, proceed) = match &*command {
            "find" => (renamed(&body, "clusterFind"), "clusterGetMore"),
            _ => (renamed(&body, "clusterAggregate"), "clusterGetMore"),
        };
        let writes = writes_out(&body);
        let repeat = if writes { Repeat::Never } else { Repeat::Safe };
        self.open_routed(renamed, proceed, repeat).await
    }

    /// Runs the routed command `body` through a shard's primary, and records that node for the cursor; `proceed` is
    /// the command that continues the cursor.
    async fn open_routed(
        &self,
        body: Document,
        proceed: &'static str,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let mut round: u32 = 0;
        loop {
            let route = self.core.route(self.connection_number + round as usize).await?;
            let address = route.primary(&self.core.pool).await?;
            let user = self.user.as_ref();
            let failure = match self.core.on_node(user, &address, body.clone(), None).await {
                Ok(answer) => {
                    self.remember(&answer, &address, proceed);
                    return Ok(answer.routed());
                }
                Err(failure) => failure,
            };
            let lost = code::is_retryable(failure.code());
            if lost {
                route.forget(&address);
            }
            let untouched = code::is_stale(failure.code())
                || (!failure.unanswered && code::is_not_primary(failure.code()));
            let again = untouched || (lost && repeat == Repeat::Safe);
            if !again || round >= super::core::STALE_ROUNDS {
                return Err(failure);
            }
            round += 1;
            super::caller::pause(round).await;
        }
    }

    pub(super) async fn open_on_config(&self, body: Document) -> Result<Answer, Failure> {
        let config = &self.core.config;
        let address = config.primary(&self.core.pool).await?;
        let user = self.user.as_ref();
        let answer = match self.core.on_node(user, &address, body.clone(), None).await {
            Err(failure) if code::is_retryable(failure.code()) => {
                config.forget(&address);
                let address = config.primary(&self.core.pool).await?;
                let answer = self.core.on_node(user, &address, body, None).await?;
                self.remember(&answer, &address, "getMore");
                return Ok(answer);
            }
            answer => answer?,
        };
        self.remember(&answer, &address, "getMore");
        Ok(answer)
    }

    /// Records that the cursor in `answer`, if it stays open, is on the node at `address`; `proceed` is the command
    /// that continues it.
    pub(super) fn remember(&self, answer: &Answer, address: &str, proceed: &'static str) {
        let id = answer.raw().get_document("cursor").ok();
        let id = id.and_then(|cursor| super::answer::number(cursor, "id")).unwrap_or(0);
        if id != 0 {
            let location = CursorLocation::Node { address: address.to_owned(), command: proceed };
            self.core.cursors.open(id, location, self.user_name());
        }
    }

    /// Runs `getMore` on the node that has the cursor, or on the router's own documents.
    pub(super) async fn get_more(&self, body: Document) -> Result<Answer, Failure> {
        let id = integer(&body, "getMore").unwrap_or(0);
        if let Some(more) = self.get_more_of_stream(&body).await {
            return more;
        }
        let location =
            self.core.cursors.location(id, self.user_name()).ok_or_else(|| not_found(id))?;
        let (address, command) = match location {
            CursorLocation::Node { address, command } => (address, command),
            CursorLocation::Router => return self.more_from_here(id, &body),
        };
        let user = self.user.as_ref();
        let run = self.core.on_node(user, &address, renamed(&body, command), None).await;
        match &run {
            Ok(answer) => {
                let cursor = answer.raw().get_document("cursor").map_err(Failure::malformed)?;
                if super::answer::number(cursor, "id") == Some(0) {
                    self.core.cursors.close(id);
                }
            }
            // A time-out (MaxTimeMSExpired) leaves an awaiting cursor open; any other error ends it.
            Err(failure) if failure.code() == 50 => {}
            Err(_) => self.core.cursors.close(id),
        }
        let answer = run?;
        Ok(if command == "clusterGetMore" { answer.routed() } else { answer })
    }

    fn more_from_here(&self, id: i64, body: &Document) -> Result<Answer, Failure> {
        let count = integer(body, "batchSize").and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| *count > 0).unwrap_or(usize::MAX);
        let (batch, done) = self.core.cursors.next(id, count, BATCH_BYTES_MAX);
        if done {
            self.core.cursors.close(id);
        }
        let collection = body.get_str("collection").unwrap_or_default();
        let namespace = format!("{}.{collection}", database_of(body));
        cursor_answer(if done { 0 } else { id }, &namespace, "nextBatch", &batch)
    }

    /// Runs `killCursors` for cursors of this user, change streams included.
    pub(super) async fn kill_cursors(&self, body: Document) -> Result<Answer, Failure> {
        let listed = body.get_array("cursors").map_err(Failure::malformed)?;
        let (mut killed, mut unknown) = (Vec::new(), Vec::new());
        for id in listed.iter().filter_map(Bson::as_i64) {
            if self.kill_stream(id).await {
                killed.push(id);
                continue;
            }
            match self.core.cursors.location(id, self.user_name()) {
                None => unknown.push(id),
                Some(location) => {
                    self.core.cursors.close(id);
                    self.kill_at(&location, id, &body).await;
                    killed.push(id);
                }
            }
        }
        let none: Vec<i64> = Vec::new();
        Answer::try_from(doc! {
            "cursorsKilled": killed, "cursorsNotFound": unknown, "cursorsAlive": &none,
            "cursorsUnknown": &none, "ok": 1.0,
        })
    }

    async fn kill_at(&self, location: &CursorLocation, id: i64, body: &Document) {
        if let CursorLocation::Node { address, .. } = location {
            let mut kill =
                doc! { "killCursors": body.get("killCursors").cloned(), "cursors": [id] };
            kill.extend(
                body.iter()
                    .filter(|(key, _)| ["lsid", "$db"].contains(&&***key))
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
            // A node that is gone has no cursors; one that does not know the cursor has closed it.
            let _ = self.core.on_node(self.user.as_ref(), address, kill, None).await;
        }
    }

    /// Runs `count` as an aggregation: the number of matching documents, without orphans.
    pub(super) async fn count(&self, body: &Document) -> Result<Answer, Failure> {
        let mut pipeline = matching(body);
        if let Some(skip) = integer(body, "skip").filter(|skip| *skip > 0) {
            pipeline.push(doc! { "$skip": skip });
        }
        // A negative limit is equivalent to a positive one; zero means no limit.
        if let Some(limit) = integer(body, "limit").filter(|limit| *limit != 0) {
            pipeline.push(doc! { "$limit": limit.saturating_abs() });
        }
        pipeline.push(doc! { "$count": "n" });
        let (answer, documents) = self.pipeline(body, pipeline).await?;
        let n = documents.first().and_then(|document| integer(document, "n")).unwrap_or(0);
        let n = i32::try_from(n).map_or(Bson::Int64(n), Bson::Int32);
        answer.with(&doc! { "n": n, "ok": 1.0 })
    }

    /// Runs `distinct` as an aggregation. The elements of an array are separate values.
    pub(super) async fn distinct(&self, body: &Document) -> Result<Answer, Failure> {
        let key = body.get_str("key").map_err(|_| {
            Failure::new(14, "`distinct` needs the field `key`, a string".to_owned())
        })?;
        let mut pipeline = matching(body);
        let mut path = String::new();
        for part in key.split('.') {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(part);
            let unwind = doc! { "path": format!("${path}"), "preserveNullAndEmptyArrays": true };
            pipeline.push(doc! { "$unwind": unwind });
        }
        pipeline.push(doc! { "$match": { key: { "$exists": true } } });
        pipeline.push(doc! { "$group": { "_id": format!("${key}") } });
        let (answer, documents) = self.pipeline(body, pipeline).await?;
        let values = documents.into_iter().map(|mut document| document.remove("_id"));
        let values: Vec<Bson> = values.map(|value| value.unwrap_or(Bson::Null)).collect();
        answer.with(&doc! { "values": values, "ok": 1.0 })
    }

    /// Runs `pipeline` on the collection of `command` to its end, with the options of `command`. Returns the last
    /// reply, for its times, and all result documents, which are limited to the size of one reply.
    async fn pipeline(
        &self,
        command: &Document,
        pipeline: Vec<Document>,
    ) -> Result<(Answer, Vec<Document>), Failure> {
        let namespace = Namespace::of(command)?;
        let mut aggregate = doc! {
            "aggregate": &namespace.collection, "pipeline": pipeline, "cursor": {},
            "$db": &namespace.database,
        };
        for field in SHARED_FIELDS {
            if let Some(value) = command.get(field) {
                aggregate.insert(field, value.clone());
            }
        }
        let mut answer = self.open_cursor(aggregate).await?;
        let mut documents = Vec::new();
        let mut bytes = 0;
        loop {
            bytes += answer.raw().as_bytes().len();
            if bytes > BATCH_BYTES_MAX {
                let message = format!("the answer exceeds {BATCH_BYTES_MAX} bytes");
                return Err(Failure::new(17217, message));
            }
            let batch = answer.document()?;
            let cursor = batch.get_document("cursor").map_err(Failure::malformed)?;
            for part in ["firstBatch", "nextBatch"] {
                let part = cursor.get_array(part).into_iter().flatten();
                documents.extend(part.filter_map(Bson::as_document).cloned());
            }
            let id = cursor.get_i64("id").unwrap_or(0);
            if id == 0 {
                return Ok((answer, documents));
            }
            let mut more = doc! {
                "getMore": id, "collection": &namespace.collection, "$db": &namespace.database,
            };
            if let Some(session) = command.get("lsid") {
                more.insert("lsid", session.clone());
            }
            answer = self.get_more(more).await?;
        }
    }
}

fn matching(body: &Document) -> Vec<Document> {
    let query = body.get_document("query").ok().filter(|query| !query.is_empty());
    query.map(|query| doc! { "$match": query }).into_iter().collect()
}

fn first_stage(body: &Document) -> Option<&Document> {
    body.get_array("pipeline").ok()?.first()?.as_document()
}

fn is_change_stream(body: &Document) -> bool {
    first_stage(body).is_some_and(|stage| stage.contains_key("$changeStream"))
}

fn not_found(id: i64) -> Failure {
    Failure::new(code::CURSOR_NOT_FOUND, format!("cursor id {id} not found"))
}

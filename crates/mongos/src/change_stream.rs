//! Change streams over the whole cluster.
//!
//! The router opens a stream on every shard and merges the streams by resume token, as a `mongos` does: tokens begin
//! with the cluster time and compare as text. (A 6.0 shard that is asked to merge tailable cursors itself may abort:
//! its merger signs cluster times on a thread that has no client.)
//!
//! The resume token of a shard without writes does not advance, so the router writes a no-op entry
//! (`appendOplogNote`) to the shard's oplog when the events of other shards wait for it.
//!
//! Resuming needs no state in the router: each shard's stream starts again at the token's time, and events that do
//! not sort after the token are discarded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::{CString, RawArrayBuf, RawBsonRef};
use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::answer::{Answer, Failure, code, integer};
use super::caller::{Caller, copy};
use super::core::{Repeat, database_of};
use super::stream_merge::{Part, Stream, time_of};
use super::topology::ReplicaSet;

/// Shortest time for which a `getMore` to idle shards waits, in ms. An event that waits for another shard is delayed
/// by it. The wait is short at first, because events rarely come alone, and doubles up to [`ROUND_MS_MAX`] while none
/// comes.
const ROUND_MS_MIN: i64 = 4;
const ROUND_MS_MAX: i64 = 64;
/// Time for which a client's `getMore` waits for events if it has no `maxTimeMS`, in ms.
const AWAIT_MS: i64 = 1_000;

impl Caller {
    /// Opens the change stream that the `aggregate` command `body` requests, on all shards, and returns its first
    /// reply, which has no events.
    pub(super) async fn open_stream(&self, body: &Document) -> Result<Answer, Failure> {
        let (start, after) = self.start_of(body).await?;
        let mut command = body.clone();
        // As a `mongos` does: the first reply contains the position of the stream, which must not be after events
        // that are still to be returned.
        command.insert("cursor", doc! {"batchSize": 0});
        command.remove("$readPreference");
        let mut stream = Stream {
            command,
            parts: Vec::new(),
            after,
            last_token: String::new(),
            ended: false,
            asking: false,
        };
        for shard in self.core.all_shards().await? {
            stream.parts.push(self.open_part(&stream.command, shard, start).await?);
        }
        let promised = stream.parts.iter().map(|part| &part.promised).min();
        stream.last_token =
            promised.cloned().unwrap_or_default().max(stream.after.clone().unwrap_or_default());
        let collection = match body.get_str("aggregate") {
            Ok(collection) => collection.to_owned(),
            Err(_) => "$cmd.aggregate".to_owned(),
        };
        let namespace = format!("{}.{collection}", database_of(body));
        let token = stream.last_token.clone();
        let id = self.core.streams.put(self.user_name(), stream)?;
        stream_answer(id, &namespace, "firstBatch", &[], &token)
    }

    /// Returns the cluster time at which the stream of every shard starts, and the resume token after which events
    /// are returned; the token is `None` unless the client resumes.
    async fn start_of(&self, body: &Document) -> Result<(Timestamp, Option<String>), Failure> {
        let described = description(body)?;
        for key in ["resumeAfter", "startAfter"] {
            if let Ok(token) = described.get_document(key) {
                let text = token.get_str("_data").map_err(Failure::malformed)?;
                return Ok((time_of(text)?, Some(text.to_owned())));
            }
        }
        if let Ok(time) = described.get_timestamp("startAtOperationTime") {
            return Ok((time, None));
        }
        // Without a start position the stream starts after everything that any client of this router has seen.
        self.on_shard(doc! { "ping": 1, "$db": "admin" }).await?;
        let now = self.core.clock.now().map(|(time, _)| time);
        let now = now.ok_or_else(|| Failure::malformed("the shards tell no cluster time"))?;
        Ok((Timestamp { time: now.time, increment: now.increment.saturating_add(1) }, None))
    }

    async fn open_part(
        &self,
        command: &Document,
        shard: Arc<ReplicaSet>,
        start: Timestamp,
    ) -> Result<Part, Failure> {
        let mut command = command.clone();
        let stages = command.get_array_mut("pipeline").map_err(Failure::malformed)?;
        let described = stages.first_mut().and_then(Bson::as_document_mut);
        let described = described.and_then(|stage| stage.get_document_mut("$changeStream").ok());
        if let Some(described) = described {
            described.remove("resumeAfter");
            described.remove("startAfter");
            described.insert("startAtOperationTime", start);
        }
        let user = self.user.as_ref();
        let mut attempts = 0;
        let (address, answer) = loop {
            let address = shard.primary(&self.core.pool).await?;
            match self.core.on_node(user, &address, command.clone(), None).await {
                Err(failure) if code::is_retryable(failure.code()) && attempts < 3 => {
                    shard.forget(&address);
                    attempts += 1;
                }
                answer => break (address, answer?),
            }
        };
        let mut part =
            Part { shard, address, cursor: 0, buffer: VecDeque::new(), promised: String::new() };
        part.take(&answer)?;
        Ok(part)
    }

    /// Runs a `getMore` of a change stream. Returns `None` if the cursor is not a change stream of this user.
    pub(super) async fn get_more_of_stream(
        &self,
        body: &Document,
    ) -> Option<Result<Answer, Failure>> {
        let id = integer(body, "getMore")?;
        let stream = self.core.streams.get(id, self.user_name())?;
        let Ok(mut stream) = stream.try_lock() else {
            let message = format!("cursor id {id} is already in use");
            return Some(Err(Failure::new(12051, message)));
        };
        let outcome = self.advance(&mut stream, id, body).await;
        let killed = self.core.streams.get(id, self.user_name()).is_none();
        if outcome.is_err() || stream.ended || killed {
            self.core.streams.remove(id);
            self.end_parts(&stream).await;
        }
        Some(outcome.map_err(resumable))
    }

    /// Closes the change stream with the cursor `id`, on the router and the shards. Returns false if the cursor is
    /// not a change stream of this user.
    pub(super) async fn kill_stream(&self, id: i64) -> bool {
        let Some(stream) = self.core.streams.get(id, self.user_name()) else { return false };
        self.core.streams.remove(id);
        if let Ok(stream) = stream.try_lock() {
            self.end_parts(&stream).await;
        }
        true
    }

    async fn end_parts(&self, stream: &Stream) {
        let namespace = stream.command.get_str("aggregate").unwrap_or("$cmd.aggregate");
        for part in stream.parts.iter().filter(|part| part.cursor != 0) {
            let kill = doc! {
                "killCursors": namespace, "cursors": [part.cursor],
                "$db": database_of(&stream.command),
            };
            // A node that is gone has no cursors.
            let _ = self.core.on_node(self.user.as_ref(), &part.address, kill, None).await;
        }
    }

    async fn advance(
        &self,
        stream: &mut Stream,
        id: i64,
        body: &Document,
    ) -> Result<Answer, Failure> {
        let wait = integer(body, "maxTimeMS").unwrap_or(AWAIT_MS).max(1);
        let deadline = Instant::now() + Duration::from_millis(wait.unsigned_abs());
        let count = integer(body, "batchSize").and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| *count > 0).unwrap_or(usize::MAX);
        if stream.asking {
            let message = "a getMore of this change stream was interrupted";
            return Err(Failure::new(237, message).labelled("ResumableChangeStreamError"));
        }
        self.join_new_shards(stream).await?;
        let mut round_ms = ROUND_MS_MIN;
        let batch = loop {
            let batch = stream.ready(count);
            let now = Instant::now();
            if !batch.is_empty() || stream.ended || now >= deadline {
                break batch;
            }
            let left = i64::try_from((deadline - now).as_millis()).unwrap_or(i64::MAX);
            self.round(stream, left.clamp(1, round_ms), body).await?;
            round_ms = (2 * round_ms).min(ROUND_MS_MAX);
        };
        let namespace = body.get_str("collection").unwrap_or_default();
        let namespace = format!("{}.{namespace}", database_of(body));
        let id = if stream.ended { 0 } else { id };
        stream_answer(id, &namespace, "nextBatch", &batch, &stream.last_token)
    }

    /// Requests events, within `wait_ms`, from every shard without buffered ones, and writes a no-op entry to the
    /// oplogs of the shards that buffered events wait for. `body` is the client's `getMore`.
    async fn round(
        &self,
        stream: &mut Stream,
        wait_ms: i64,
        body: &Document,
    ) -> Result<(), Failure> {
        let awaited = stream.earliest().map(str::to_owned);
        if let Some(first) = &awaited {
            let time = time_of(first)?;
            let mut heartbeats = Vec::new();
            for part in stream.silent_before(first) {
                heartbeats.push(self.write_heartbeat(&stream.parts[part].shard, time));
            }
            join_all(heartbeats).await;
        }
        // If events wait, a shard is only asked for its current resume token.
        let wait_ms = if awaited.is_some() { 1 } else { wait_ms };
        let mut more = doc! {
            "getMore": 0i64, "collection": body.get("collection").cloned(), "maxTimeMS": wait_ms,
            "$db": database_of(body),
        };
        copy(body, &mut more, &["lsid"]);
        let mut asked = Vec::new();
        for part in &stream.parts {
            asked.push(self.ask_part(part, &more));
        }
        stream.asking = true;
        let answers: Vec<Result<Option<Answer>, Failure>> = join_all(asked).await;
        stream.asking = false;
        for (part, answer) in stream.parts.iter_mut().zip(answers) {
            match answer {
                Ok(Some(answer)) => part.take(&answer)?,
                Ok(None) => {}
                Err(failure) => {
                    if code::is_retryable(failure.code()) {
                        part.shard.forget(&part.address);
                    }
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Sends the `getMore` `more` to the node of `part`; returns `None` without sending it if events of that shard
    /// are still buffered.
    async fn ask_part(&self, part: &Part, more: &Document) -> Result<Option<Answer>, Failure> {
        if !part.buffer.is_empty() {
            return Ok(None);
        }
        let mut more = more.clone();
        more.insert("getMore", part.cursor);
        let user = self.user.as_ref();
        self.core.on_node(user, &part.address, more, None).await.map(Some)
    }

    /// Writes a no-op entry to the oplog of `shard`, so that the shard's resume token advances beyond `time`.
    async fn write_heartbeat(&self, shard: &ReplicaSet, time: Timestamp) {
        // Shards issue their own times: one may have written at exactly this time too, and then its token does not
        // advance beyond it.
        let time = Timestamp { increment: time.increment + 1, ..time };
        let note = doc! {
            "appendOplogNote": 1, "maxClusterTime": time,
            "data": { "noop write for a change stream": 1 }, "$db": "admin",
        };
        // A shard whose time is later already rejects the note, which is equally good. A shard that is gone fails
        // in the round that follows.
        let user = self.core.own_user.as_ref();
        let _ = self.core.on_primary(user, shard, note, None, Repeat::Safe).await;
    }

    /// Opens `stream` on the shards that were added to the cluster since it was opened, from the last returned token
    /// on.
    async fn join_new_shards(&self, stream: &mut Stream) -> Result<(), Failure> {
        let known = |shard: &ReplicaSet| stream.parts.iter().any(|part| part.shard.id == shard.id);
        let added: Vec<_> =
            self.core.all_shards().await?.into_iter().filter(|shard| !known(shard)).collect();
        for shard in added {
            let start = time_of(&stream.last_token)?;
            let part = self.open_part(&stream.command, shard, start).await?;
            stream.after = stream.after.take().max(Some(stream.last_token.clone()));
            stream.parts.push(part);
        }
        Ok(())
    }
}

/// Returns the value of the `$changeStream` stage, the first stage of the pipeline of `body`.
fn description(body: &Document) -> Result<&Document, Failure> {
    let stages = body.get_array("pipeline").map_err(Failure::malformed)?;
    let first = stages.first().and_then(Bson::as_document);
    let described = first.and_then(|stage| stage.get_document("$changeStream").ok());
    described.ok_or_else(|| Failure::malformed("$changeStream that is no document"))
}

/// Adds the label `ResumableChangeStreamError`, by which drivers resume a stream, to the errors to which a `mongos`
/// adds it.
fn resumable(failure: Failure) -> Failure {
    let code = failure.code();
    // Stale routing data, RetryChangeStream, CursorNotFound.
    let resumable =
        code::is_retryable(code) || code::is_stale(code) || matches!(code, 63 | 234 | 43);
    if resumable { failure.labelled("ResumableChangeStreamError") } else { failure }
}

fn stream_answer(
    id: i64,
    namespace: &str,
    batch_name: &str,
    batch: &[RawDocumentBuf],
    promised: &str,
) -> Result<Answer, Failure> {
    let name = |text: &str| CString::try_from(text).map_err(Failure::malformed);
    let mut array = RawArrayBuf::new();
    for document in batch {
        array.push(document);
    }
    let mut token = RawDocumentBuf::new();
    token.append(name("_data")?, promised);
    let mut cursor = RawDocumentBuf::new();
    cursor.append(name(batch_name)?, array);
    cursor.append(name("postBatchResumeToken")?, RawBsonRef::Document(&token));
    cursor.append(name("id")?, id);
    cursor.append(name("ns")?, namespace);
    let mut answer = RawDocumentBuf::new();
    answer.append(name("cursor")?, RawBsonRef::Document(&cursor));
    answer.append(name("ok")?, 1.0);
    Answer::of_server(answer)
}
